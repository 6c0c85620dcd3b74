import json
import random

import pytest

from nemocascade_jax.rewards import language
from nemocascade_jax.rewards.arguments import compare
from nemocascade_jax.rewards.constraints import CONSTRAINTS, IFEVAL
from nemocascade_jax.rows.generators import short_texts

ASK = "Write about rain."
# id, arguments, texts that follow, texts that do not
CASES = [
    (
        "keywords:existence",
        {"keywords": ["cloud", "C++"]},
        ["Clouds and c++"],
        ["cloud", "c+ cloud"],
    ),
    (
        "keywords:frequency",
        {"keyword": "rain", "frequency": 2, "relation": "at least"},
        ["Rain, rain.", "rainrain"],
        ["rain"],
    ),
    (
        "keywords:frequency",
        {"keyword": "rain", "frequency": 2, "relation": "less than"},
        ["rain"],
        ["rain rain"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["rain"]},
        ["rainy", "ра\u200bin"],
        ["It is RAIN.", "r\u200bain", "r\u0430in", "ｒａｉｎ", "ra\u00adin\u200d"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "A", "let_frequency": 3, "let_relation": "at least"},
        ["Aaa"],
        ["aa b"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "#", "let_frequency": 1, "let_relation": "at least"},
        ["#rain"],
        ["rain"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Der Regen fällt auf die Straße und wir gehen nach Hause."],
        ["The rain falls on the street and we walk home together.", "1 2 3 ..."],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 2, "relation": "at least"},
        ["It rains. We go home!", "Why? Because."],
        ["It rains, and we go home.", "Dr. Who is here"],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["a\n***\nb", "***a***b"],
        ["a", "a***b***c"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "less than"},
        ["two words"],
        ["three-part word"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Rain"},
        ["One.\n\nRain falls.", 'One.\n\n"Rain" falls.'],
        ["Rain.\n\nOne.", "One.\n\nRain.\n\nThree.", "Rain", "One.\n\nRainy day"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[a] and [b c]"],
        ["[a] and [b", "[[a]]"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Hi\nP.S. bye", "p. s."],
        ["PS bye"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["p. p.s later"],
        ["P.S. later"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b", "text\n* a\n- b"],
        ["* a", "* a\n* b\n* c", "** a\n** b", "a * b\nc - d"],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["Well. My answer is no."],
        ["No.", "my answer is no."],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*a* and *b*"],
        ["*a*", "* *  **", "*a\nb*"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\na\nSECTION 2\nb"],
        ["SECTION 1 only", "Section 1 Section 2", "SECTION A SECTION B"],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', "```json\n[1, 2]\n```"],
        ["a: 1", '{"a": 1} yes', "[" * 9999, "NaN", "[-Infinity]"],
    ),
    (
        "detectable_format:title",
        {},
        ["<<rain>>\nIt falls.", "a <<b>>"],
        ["<rain>", "<<>>", "<< >>", "<<a\nb>>"],
    ),
    (
        "combination:two_responses",
        {},
        ["a ****** b", "******\na******b"],
        ["a", "a******a", "a******b******c"],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": ASK},
        ["write about rain. It falls."],
        ["It falls. " + ASK],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "That is all."},
        ['"It rains. That is ALL."'],
        ["That is all. Bye."],
    ),
    ("startend:quotation", {}, ['"rain"'], ['"rain', '"', "'rain'"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["WE like RAIN."],
        ["We like RAIN."],
    ),
    (
        "change_case:english_capital",
        {},
        ["THE RAIN IS COLD AND WE ARE GOING HOME.", "RAIN!"],
        ["THE rain", "DER REGEN FÄLLT AUF DIE STRASSE UND WIR GEHEN NACH HAUSE."],
    ),
    (
        "change_case:english_lowercase",
        {},
        ["the rain is cold and we are going home.", "rain!"],
        ["The rain", "der regen fällt auf die straße und wir gehen nach hause."],
    ),
    ("punctuation:no_comma", {}, ["rain; snow"], ["rain, snow"]),
    (
        "copy:repeat_phrase",
        {"phrase": "the rain falls now", "small_n": 2},
        ["the snow falls now, the sun falls now", "the rain falls now the sun falls now"],
        [
            "the snow falls now",
            "the snow falls now the rain falls now",
            "the big sun now the sun falls now",
        ],
    ),
    ("copy:copy", {"prompt_to_repeat": ASK}, ["write about RAIN."], [ASK + " Ok."]),
    ("copy:copying_simple", {"prompt_to_repeat": ASK}, [ASK], ["Rain."]),
    (
        "copy:copying_multiple",
        {"prompt_to_repeat": ASK, "N": 2},
        [f"{ASK} ****** {ASK}"],
        [ASK, f"{ASK}******{ASK}******{ASK}", f"{ASK}******rain"],
    ),
    (
        "new:copy_span_idx",
        {"n_start": 0, "n_end": 5, "prompt_to_repeat": ASK},
        ["write"],
        ["Write about", "writ"],
    ),
    (
        "detectable_format:sentence_hyphens",
        {},
        ["It rains.-We go.", "It rains."],
        ["It rains. We go.", "It rains. - We go."],
    ),
    ("detectable_format:square_brackets", {}, ["[We] [go.]"], ["[We] go", "[We go]"]),
    (
        "detectable_format:bigram_wrapping",
        {},
        ["<<We go>> <<home now>>", "<<We go>> home"],
        ["We go", "<<We go home>>"],
    ),
    ("keywords:no_adjacent_consecutive", {}, ["all cats", "bad apples"], ["all birds", "A bird"]),
    ("keywords:word_once", {"keyword": "rain"}, ["Rain falls"], ["rain rain", "sun"]),
    (
        "keywords:word_count_different_numbers",
        {"keyword": "rain", "frequency": 1, "relation": "less than"},
        ["sun"],
        ["rain"],
    ),
    (
        "keywords:exclude_word_harder",
        {"keyword": "rain"},
        ["rain falls", "the Rain is"],
        ["the rain is", "the r\u0430in is", "the ra\u200bin is"],
    ),
    ("keywords:palindrome", {}, ["a level road"], ["Level roads.", "rain"]),
    (
        "keywords:keyword_specific_position",
        {"keyword": "rain", "n": 2, "m": 3},
        ["Hi. See the rain fall."],
        ["See the rain. Hi.", "Hi. See the Rain.", "Hi."],
    ),
    ("keywords:start_end", {}, ["Rain is rain"], ["Rain is rain.", "rain"]),
    ("paragraphs:paragraphs", {}, ["a\n***\nb"], ["a", "a\n\nb"]),
    ("paragraphs:paragraphs2", {}, ["a\n\nb"], ["a\nb", "a\n\nb\n\nc", "a\n\n\n\nb"]),
    (
        "first_word:first_word_sent",
        {"first_word": "we"},
        ["We go. We come!"],
        ["We go. They come."],
    ),
    (
        "first_word:first_word_answer",
        {"first_word": "we"},
        ["We go. They come."],
        ["They go", "We, they"],
    ),
    (
        "last_word:last_word_sent",
        {"last_word": "rain"},
        ["See rain. Hear Rain!"],
        ["See rain. Go."],
    ),
    ("last_word:last_word_answer", {"last_word": "rain"}, ["Go. See rain!"], ["See rain. Go."]),
    ("punctuation:punctuation_dot", {}, ["Go!"], ["Go.", "3.14"]),
    ("punctuation:punctuation_exclamation", {}, ["Go."], ["Go!"]),
    ("count:lowercase_counting", {"N": 2}, ["A big rain", "RAIN 12"], ["a big rain"]),
    (
        "count:counting_composition",
        {"n_sent": 2, "n_words": 3},
        ["We go. We come. *** We go! We come! *** It rains. We run."],
        [
            "We go. We come.",
            "We go. *** We go. *** We go.",
            "We go now. We come. *** We go. We come. *** It rains. We run.",
        ],
    ),
    ("count:count_unique", {}, ["we go home."], ["we go we", "Go. Come."]),
    (
        "count:count_increment_word",
        {"keyword1": "rain", "keyword2": "sun"},
        ["rain, sun, Sun"],
        ["rain, sun", "rain rain sun sun"],
    ),
    ("letters:letter_counting", {"N": 3, "relation": "at least"}, ["a b c"], ["a b 1"]),
    ("letters:letter_counting", {"N": 3, "relation": "less than"}, ["a b 1"], ["a b c"]),
    (
        "letters:letter_counting2",
        {"letter": "r", "let_frequency": 2, "let_relation": "less than"},
        ["rain"],
        ["Rain river"],
    ),
]


def _follows(name: str, kwargs: dict, text: str) -> bool:
    constraint = CONSTRAINTS[name]
    read = {key: constraint.arguments[key].read(value) for key, value in kwargs.items()}
    assert read.keys() == constraint.arguments.keys()
    return constraint.follows(text, **read)


@pytest.mark.parametrize(("name", "kwargs", "good", "bad"), CASES)
def test_constraint_tells_good_from_bad(name, kwargs, good, bad):
    for text in good:
        assert _follows(name, kwargs, text), text
    for text in bad:
        assert not _follows(name, kwargs, text), text


def test_every_constraint_has_a_case():
    assert len(CONSTRAINTS) == 54
    assert len(IFEVAL) == 25
    assert {case[0] for case in CASES} == set(CONSTRAINTS)


@pytest.mark.parametrize(("count", "less", "least"), [(2, True, False), (3, False, True)])
def test_relations_are_strict_below_and_inclusive_above(count, less, least):
    assert compare(count, "less than", 3) is less
    assert compare(count, "at least", 3) is least


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("It rains. We go!", ["It rains.", "We go!"]),
        ("Dr. Who pays 3.14 at x.com. He left.", ["Dr. Who pays 3.14 at x.com.", "He left."]),
        ('He said "go." Then he left', ['He said "go".', "Then he left"]),
        ("Wait... what?", ["Wait...", "what?"]),
        ("From the U.S.A. We go", ["From the U.S.A.", "We go"]),
        ("", []),
    ],
)
def test_rule_sentences_follow_the_rules(text, sentences):
    assert language.rule_sentences(text) == sentences


def test_plain_splitter_knows_marks_and_abbreviations():
    text = '"Go." He went! Why? Mr. Hill, e.g. here... knows (it. all.)'
    assert language._plain_sentences(text) == [
        *('"Go."', "He went!", "Why?", "Mr. Hill, e.g. here... knows (it.", "all.)"),
    ]
    tokens = language._plain_tokens("We don't go. It's (1.5) now!")
    assert tokens == ["We", "don't", "go", ".", "It's", "(", "1.5", ")", "now", "!"]


def test_detector_answers_the_same_every_time():
    texts = [
        "door is deep",
        "the dog is big",
        "rain is wet",
        "book",
        "la pluie",
        "UN DOS TRES",
        "?",
    ]
    first = [language.detect(text) for text in texts]
    for _ in range(5):
        assert [language.detect(text) for text in reversed(texts)] == first[::-1]
    assert first[-1] is None


def test_random_answers_never_raise():
    rng = random.Random(0)
    parts = [
        "\ue000",
        "İ",
        "\x00",
        "<<",
        ">>",
        "[",
        "***",
        "\n\n",
        ". ",
        '"',
        "-",
        "a",
        "雨",
        "٣",
        " ",
    ]
    texts = ["".join(rng.choices(parts, k=rng.randint(1, 12))).strip() or "x" for _ in range(150)]
    for name, kwargs, _, _ in CASES:
        for text in texts[:: 10 if name.startswith(("language", "change_case")) else 1]:
            assert _follows(name, kwargs, text) in (True, False)


LONG = 200_000


@pytest.mark.parametrize(
    "unit", ["\n", " ", ". ", "*", "[", "<<", "the ", "- ", ".", '"', "a.", "("]
)
def test_hostile_answers_take_linear_time(unit):
    text = unit * (LONG // len(unit)) + "x"
    for name, kwargs, _, _ in CASES:
        _follows(name, kwargs, text)  # quadratic time would be minutes


@pytest.mark.slow
def test_checkers_agree_with_another_implementation():
    """The 25 ids of IFEval on random texts; language tests apart, where the docs list differences."""
    registry = pytest.importorskip("if_verifiable.ifeval.instructions_registry")
    if language.splitter_name() != "nltk-punkt":
        pytest.skip("without NLTK's data the sentence counts differ")
    rng = random.Random(0)
    for name, kwargs, good, bad in CASES:
        if name not in IFEVAL or "language" in name or "english" in name or "#" in kwargs.values():
            continue
        if name == "keywords:existence":
            kwargs = {"keywords": ["cloud", "rain"]}
        theirs = registry.INSTRUCTION_DICT[name](name)
        theirs.build_description(**json.loads(json.dumps(kwargs)))
        texts = [*good, *(text for text in bad if len(text) < 999)]
        for _ in range(30):
            joined = rng.choice([" ", "\n", ""]).join(rng.choices(texts + ["rain", "* *"], k=4))
            texts.append(joined + short_texts.write(rng, "rain", {}))
        for text in texts:
            assert _follows(name, kwargs, text) == bool(theirs.check_following(text)), (name, text)
