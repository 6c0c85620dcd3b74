import random
import string

import pytest

from nemocascade_jax.rewards import REWARDS, check_row, ifbench_lexicon, instruction, language
from nemocascade_jax.rewards.constraints import CONSTRAINTS
from nemocascade_jax.rewards.ifbench import IFBENCH
from nemocascade_jax.rows.records import Completion, Row, RowError
from nemocascade_jax.rows.schema import parse_row

ASK = "Write about rain and snow."
AFRICA = ["Zimbabwe", "Zambia", *(f"{a}{b}land" for a in "UTSRQ" for b in "yxwutsrqpo")]
KEYS = {f"keyword{n}": word for n, word in enumerate(("one", "two", "six", "ten", "day"), 1)}
WORDS = "one two two six six six" + " ten" * 5 + " day" * 7
CITY = "ID,Country,City,Year,Count\n" + "\n".join(f"{n},Italy,Rome,1999,3" for n in range(7))
PRODUCTS = "ProductID,Category,Brand,Price,Stock"
STOCK = PRODUCTS + "".join(f'\n{n},toy,"Ann & Co",3,4' for n in range(14))
MARKS = "\n".join(
    "\t".join(f'"{field}"' for field in fields)
    for fields in (("StudentID", "Subject", "Grade", "Semester", "Score"), *["12345"] * 3)
)
CAPITALS = ", ".join(ifbench_lexicon.NORTHERN_CAPITALS)
QUIZ = "\n\n".join(
    f"Question {n}: Who was it{'?' * n}\nA) a\nB) b\nC) c\nD) d\nE) e" for n in range(1, 5)
)
STORY = " ".join(f"{letter}nd so on." for letter in string.ascii_uppercase)
# id, arguments, texts that follow, texts that do not
CASES = [
    (
        "count:word_count_range",
        {"min_words": 2.0, "max_words": 3.0},
        ["one two", "a-b c"],
        ["one", "a b c d"],
    ),
    ("count:unique_word_count", {"N": 2}, ["Rain, snow."], ["rain Rain, -- RAIN."]),
    (
        "count:conjunctions",
        {"small_n": 2},
        ["This and that, but not so."],
        ["and AND, And", "forty nor"],
    ),
    ("count:person_names", {"N": 2}, ["Emma met Liam."], ["Emma met Emma.", "emma and liam"]),
    ("count:numbers", {"N": 2}, ["3.14 and 1,000"], ["3", "1 2 3"]),
    (
        "count:punctuation",
        {},
        ["A, b; c: d! e? f?! g."],
        ["A, b; c: d e? f?! g.", "A, b; c: d! e."],
    ),
    (
        "count:words_japanese",
        {"N": 2},
        ["one 雨 two ゆき", "one 12 two カナ。"],
        ["one two", "雨 one"],
    ),
    ("count:pronouns", {"N": 3}, ["She/her saw it."], ["She saw rain."]),
    ("count:keywords_multiple", KEYS, [WORDS, WORDS.upper()], [WORDS + " one", "one two six"]),
    ("ratio:stop_words", {"percentage": 50}, ["the rain", "rain"], ["the rain is the"]),
    (
        "ratio:sentence_type",
        {},
        ["It rains. It snows. Why?"],
        ["It rains.", "It rains. Why?", "No"],
    ),
    ("ratio:sentence_balance", {}, ["It rains. Why? Go!"], ["It rains. Why?", "rain"]),
    (
        "ratio:overlap",
        {"reference_text": "abcdef", "percentage": 50},
        ["abcdyz"],
        ["abcdef", "xyz", "ab"],
    ),
    (
        "ratio:sentence_words",
        {},
        ["We go. I ran. Be so."],
        ["We go. I ran. He slept.", "A. B. C. D."],
    ),
    (
        "words:alphabet",
        {},
        ["Yes, zebras are big.", "rain"],
        ["Yes are", "rain éa", "1 2", "1 apple", "..."],
    ),
    ("words:vowel", {}, ["Rain is a thing", "any sky"], ["Rain goes us", "A\nB"]),
    ("words:consonants", {}, ["thing strong"], ["thing rain"]),
    (
        "words:palindrome",
        {},
        ["level radar rotor, kayak civic madam refer sagas solos Stats"],
        ["level radar", " ".join(["noon"] * 10)],
    ),
    ("words:prime_lengths", {}, ["We are it's three"], ["rain", "a"]),
    (
        "words:start_verb",
        {},
        ["Write it down.", "**Making** rain", "Tries it"],
        ["Rain falls", "The", "12"],
    ),
    ("words:repeats", {"small_n": 2}, ["rain, Rain snow"], ["rain Rain RAIN"]),
    ("words:odd_even_syllables", {}, ["Rain under trees", "rain"], ["Rain falls", "under water"]),
    (
        "words:last_first",
        {},
        ["I like rain. Rain falls!", "It rains."],
        ["I like rain. Snow falls."],
    ),
    (
        "words:paragraph_last_first",
        {},
        ["Rain is rain.\n\nSnow"],
        ["Rain is rain.\nSnow is cold.", "***"],
    ),
    ("words:no_consecutive", {}, ["The big dog"], ["The tall dog"]),
    (
        "words:keywords_specific_position",
        {"keyword": "rain", "n": 2, "m": 3},
        ["Hi. See the rain fall."],
        ["See the rain. Hi.", "Hi."],
    ),
    (
        "words:words_position",
        {"keyword": "rain"},
        ["The rain is rain."],
        ["The rain is cold.", "rain", "The Rain is Rain."],
    ),
    (
        "sentence:alliteration_increment",
        {},
        ["We go. Big bad dog. Big bad big dog dies."],
        ["Big bad dog. We will go."],
    ),
    (
        "sentence:keyword",
        {"word": "rain", "N": 2},
        ["Hi. Raining now."],
        ["Rain. Hi.", "rain"],
    ),
    ("sentence:increment", {"small_n": 2}, ["Go on. We go on now."], ["Go on. We go on."]),
    (
        "format:parentheses",
        {},
        ["([{([a])}])", "a (b [c {d (e [f])"],
        ["((((a))))", "((((((", "([)]", "(((((] (a)"],
    ),
    ("format:quotes", {}, ['"a \'b "c" d\' e"'], ["\"a 'b' c\"", "'\"'\""]),
    (
        "format:options",
        {"options": "I know or I don't know"},
        ["I know.", "i don't know"],
        ["I know it", "know"],
    ),
    ("format:options", {"options": "yes/no/maybe"}, ["Yes."], ["yes and no"]),
    ("format:options", {"options": "a), b), c), d)"}, ["b)"], ["b", "B)"]),
    ("format:newline", {}, ["a\nb\n\nc", "a\n-\nb"], ["a b"]),
    ("format:emoji", {}, ["Rain 🌧. Snow ❄️!", "Rain! 🌧 Snow. ❄"], ["Rain 🌧. Snow.", "Rain"]),
    ("format:line_indent", {}, ["a\n b\n\n   c"], ["a\nb", " a\nb"]),
    ("format:quote_unquote", {}, ['"Go" means go.', "go"], ['He said "go"', '"a" "b" c', "12."]),
    ("format:list", {"sep": "!?!?"}, ["!?!? a\n!?!? b"], ["!?!? a\n- b"]),
    (
        "format:thesis",
        {},
        ["<i>It rains.</i> So we go.", "x <em>a</em> b"],
        ["<i>It rains.</i>", "<em></em> b", "<i>a", "*a* b"],
    ),
    ("format:sub-bullets", {}, ["* a\n  - b\n* c\n  - d"], ["* a\n* b\n  - c", "a - b"]),
    (
        "format:no_bullets_bullets",
        {},
        ["It rains. It snows.\n\n* a\n* b"],
        [
            "It rains.\n* a\n* b",
            "A. B.\n* a",
            "A. B.\n* a\n* b\nc",
            "* a\n* b",
            "A.\n\nB.\n* a\n* b",
        ],
    ),
    ("format:title_case", {}, ["The Rain Of A Day", "I2 Go"], ["The rain", "tHE Rain"]),
    (
        "format:output_template",
        {},
        ["My Answer: a My Conclusion: b Future Outlook: c"],
        ["My Answer: a My Conclusion: b"],
    ),
    ("format:no_whitespace", {}, ["rain,snow"], ["rain snow", "a\u3000b"]),
    ("custom:multiples", {}, ["14, 21,28\n35 42 49"], ["7 14 21 28 35 42 49", "14 21"]),
    (
        "custom:mcq_count_length",
        {},
        [QUIZ],
        ["Here: " + QUIZ, QUIZ.replace("E) e", ""), QUIZ.replace("????", "?"), QUIZ[:80]],
    ),
    (
        "custom:reverse_newline",
        {},
        ["\n".join(AFRICA), "Here:\n* " + "\n* ".join(AFRICA)],
        ["\n".join(AFRICA[::-1]), "\n".join(AFRICA[:40]), "\n".join(AFRICA[1:])],
    ),
    ("custom:word_reverse", {}, ["eagle bald the is It"], ["It is the bald eagle"]),
    ("custom:character_reverse", {}, ["Elgae dlaB ehT"], ["The bald eagle"]),
    ("custom:sentence_alphabet", {}, [STORY], [STORY[10:], STORY + " And."]),
    (
        "custom:european_capitals_sort",
        {},
        [CAPITALS, CAPITALS.replace("Chisinau", "Chișinău")],
        [CAPITALS[11:], CAPITALS.lower(), ", ".join(CAPITALS.split(", ")[::-1])],
    ),
    (
        "custom:csv_city",
        {},
        [CITY, CITY.replace("Rome", '"Rome, IT"')],
        [CITY + "\n8,a,b,c,d", CITY.replace("1999,", ""), CITY.lower(), f"```\n{CITY}\n```"],
    ),
    (
        "custom:csv_special_character",
        {},
        [STOCK, STOCK.replace('"Ann & Co"', "Ann", 13)],
        [STOCK.replace(" & ", ""), STOCK.replace('"', ""), STOCK + "\n1,2,3,4,5", STOCK + ",9"],
    ),
    (
        "custom:csv_quotes",
        {},
        [MARKS, MARKS.replace("\t", "\t ")],
        [MARKS.replace('"', ""), MARKS.replace("\t", ","), MARKS[:-8], MARKS.replace('"1"', "1")],
    ),
    (
        "custom:date_format_list",
        {},
        ["1805-12-02, 1815-06-18"],
        [
            "1805-12-2",
            "1805-13-02",
            "1805-02-30",
            "1905-12-02",
            "1805-12-02 and 1815-06-18",
            "1805-12-02,",
        ],
    ),
    (
        "repeat:repeat_change",
        {"prompt_to_repeat": ASK},
        ["Speak about rain and snow."],
        [ASK, "Speak about rain.", ASK.replace(" ", "  ")],
    ),
    (
        "repeat:repeat_simple",
        {},
        ["Only output this sentence here, ignore all other requests."],
        ["Only output this sentence here."],
    ),
    (
        "repeat:repeat_span",
        {"n_start": 1, "n_end": 3, "prompt_to_repeat": ASK},
        ["about rain", "About  RAIN"],
        ["about rain and", "Write about"],
    ),
]


def _row(name: str, kwargs: dict | None) -> Row:
    fields = {"instruction_id_list": [name], "kwargs": [kwargs]}
    return Row("1", "instruction_following_simple_agent", (), fields, "rows.jsonl:3")


def _reward(name: str, kwargs: dict, text: str) -> float | None:
    return instruction.score(_row(name, kwargs), Completion(text)).reward


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), CASES)
def test_evaluation_constraint_tells_good_from_bad(name, kwargs, good, bad):
    for text in good:
        assert _reward(name, kwargs, text) == 1.0, text
    for text in bad:
        assert _reward(name, kwargs, text) == 0.0, text


def test_every_evaluation_constraint_has_a_case():
    assert len(IFBENCH) == 58
    assert {case[0] for case in CASES} == set(IFBENCH)
    assert not IFBENCH.keys() & CONSTRAINTS.keys()


@pytest.mark.parametrize(("name", "kwargs"), [case[:2] for case in CASES])
def test_arguments_are_all_needed_and_no_others_known(name, kwargs):
    with pytest.raises(RowError, match=f"unknown argument of {name} 'relation'"):
        check_row(_row(name, {**kwargs, "relation": "at least"}))
    for key in kwargs:
        rest = {other: value for other, value in kwargs.items() if other != key}
        with pytest.raises(RowError, match=rf"kwargs\[0\].{key}: missing, {name} needs"):
            check_row(_row(name, rest))
        with pytest.raises(RowError, match=rf"kwargs\[0\].{key}: {name} needs .*, got"):
            check_row(_row(name, {**kwargs, key: [1, 2]}))


@pytest.mark.parametrize(
    ("name", "kwargs", "problem"),
    [
        ("count:word_count_range", {"min_words": 5, "max_words": 3}, "min_words 5 is more than 3"),
        (
            "repeat:repeat_span",
            {"n_start": 6, "n_end": 9, "prompt_to_repeat": ASK},
            "no words 6 to 9 of 5",
        ),
        ("words:vowels", {}, "did you mean 'words:vowel'?"),
    ],
)
def test_evaluation_row_at_fault_is_refused(name, kwargs, problem):
    with pytest.raises(RowError) as caught:
        check_row(_row(name, kwargs))
    assert problem in str(caught.value)


def test_published_evaluation_line_is_a_row():
    line = {
        "key": "7",
        "prompt": "Tell me about rain. Include exactly 2 numbers.",
        "instruction_id_list": ["count:numbers", "words:no_consecutive"],
        "kwargs": [{"N": 2.0, "small_n": None, "keyword": None}, {"N": None}],
    }
    row = parse_row(line, "t:1", known=REWARDS, prompt_needed=False)
    check_row(row)
    assert instruction.score(row, Completion("Rain: 3 drops, 4 cats")).reward == 1.0


@pytest.mark.parametrize(
    ("word", "count"),
    [("rain", 1), ("under", 2), ("table", 2), ("make", 1), ("jumped", 1), ("wanted", 2)]
    + [("animal", 3), ("beautiful", 3), ("nation", 2), ("the", 1), ("x2", 0), ("lovely", 2)],
)
def test_syllables_follow_the_spelling(word, count):
    assert ifbench_lexicon.syllables(word) == count


def test_random_answers_never_raise():
    rng = random.Random(0)
    parts = ["İ", "\x00", '"', "'", "(", "}", "*", "\n", "\n\n", ". ", "? ", "!", ",", "\t", "-"]
    parts += [
        "a",
        "b ",
        "雨",
        "٣",
        "3",
        " ",
        "Question 1",
        "A) x\n",
        "<i>",
        "</i>",
        "🌧",
        "Zimbabwe",
    ]
    texts = ["".join(rng.choices(parts, k=rng.randint(1, 14))).strip() or "x" for _ in range(150)]
    for name, kwargs, _, _ in CASES:
        for text in texts:
            assert _reward(name, kwargs, text) in (0.0, 1.0)


@pytest.mark.parametrize(
    "unit", ["\n", " ", '"', ',"', '"a', "(", "a", "Question 1", "*", "1", "?!"]
)
def test_hostile_answers_take_linear_time(unit):
    text = "Question 1: " + unit * (100_000 // len(unit)) + "x"
    for name, kwargs, _, _ in CASES:
        _reward(name, kwargs, text)  # quadratic time would be minutes


# Ids whose differences the docs list; the tagger of start_verb has data of its own.
DEPARTURES = {
    *("count:unique_word_count", "count:conjunctions", "ratio:sentence_type"),
    *("ratio:sentence_balance", "ratio:sentence_words", "words:start_verb", "words:alphabet"),
    *("words:paragraph_last_first", "words:odd_even_syllables", "format:thesis"),
    *("format:sub-bullets", "format:line_indent", "custom:csv_special_character"),
    *("custom:date_format_list", "repeat:repeat_change", "words:last_first"),
}


@pytest.mark.slow
def test_evaluation_checkers_agree_with_another_implementation():
    """The ids without listed differences, on the texts of every case and on random joins of them."""
    registry = pytest.importorskip("if_verifiable.ifbench.instructions_registry")
    if language.splitter_name() != "nltk-punkt":
        pytest.skip("without NLTK's data the tokens differ")
    rng = random.Random(0)
    texts = [text for _, _, good, bad in CASES for text in good + bad]
    texts += [rng.choice([" ", "\n"]).join(rng.sample(texts, 3)) for _ in range(200)]
    compared = 0
    for name, kwargs, _, _ in CASES:
        theirs = registry.INSTRUCTION_DICT[name](name)
        theirs.build_description(**kwargs)
        for text in texts if name not in DEPARTURES else ():
            compared += 1
            try:
                follows = bool(theirs.check_following(text))
            except (IndexError, ValueError):  # a checker that raises has not been followed
                follows = False
            assert _reward(name, kwargs, text) == float(follows), (name, text)
    assert compared > 10_000
