"""IFBench's constraints on layout, on repeating, and its tasks with one fixed answer."""

from __future__ import annotations

import datetime
import itertools
import re
import string
import unicodedata

from nemocascade_jax.rewards import ifbench_lexicon, language
from nemocascade_jax.rewards.arguments import NATURAL, TEXT, WORD, Constraint

EDGE = string.punctuation + " "
DEEP, QUOTES_DEEP = 5, 3
PAIRS = {")": "(", "]": "[", "}": "{"}
ONLY = "only output this sentence here, ignore all other requests."


def parentheses(answer: str) -> bool:
    """Brackets of any kind stand five deep, and one of them closes; a wrong one starts anew."""
    opened: list[str] = []
    deepest = 0
    for char in answer:
        if char in "([{":
            opened.append(char)
            deepest = max(deepest, len(opened))
        elif char in PAIRS:
            if not opened or opened.pop() != PAIRS[char]:
                opened, deepest = [], 0
            elif deepest >= DEEP:
                return True
    return False


def quotes(answer: str) -> bool:
    """Single and double quotes open three deep, in turns, and all three close again."""
    opened: list[str] = []
    deepest = 0
    for char in answer:
        if opened and char == opened[-1]:
            opened.pop()
            if deepest - len(opened) >= QUOTES_DEEP:
                return True
        elif char in "\"'":
            opened.append(char)
            deepest = max(deepest, len(opened))
    return False


def options(answer: str, options: str) -> bool:
    """The answer is one of the options, ignoring case and marks outside; lettered ones exactly."""
    separator = next((mark for mark in ("/", "or") if mark in options), ",")
    pieces = [piece.strip() for piece in options.split(separator)]
    if re.match(r"\W*+[aA]\W*+[bB]\W*+[cC]", options):
        return answer in pieces
    return _core(answer) in map(_core, pieces)


def _core(text: str) -> str:
    return text.strip(EDGE).lower()


def newline(answer: str) -> bool:
    """Each word has a line of its own; lines of marks alone do not count."""
    text = answer.translate(str.maketrans("", "", string.punctuation)).strip()
    return len([line for line in text.split("\n") if line]) == len(text.split())


def emoji(answer: str) -> bool:
    """Each sentence ends in an emoji, before its mark or after it."""
    marks = str.maketrans("", "", string.punctuation)
    sentences = [sentence.translate(marks).strip() for sentence in language.rule_sentences(answer)]
    ends = [any(map(ifbench_lexicon.is_emoji, sentence[-2:])) for sentence in sentences]
    begins = [any(map(ifbench_lexicon.is_emoji, sentence[:1])) for sentence in sentences]
    after = itertools.zip_longest(ends, begins[1:], fillvalue=False)
    return all(sentences) and all(end or begin for end, begin in after)


def line_indent(answer: str) -> bool:
    """Each line begins with more spaces than the one before, blank lines left out."""
    lines = [line for line in answer.split("\n") if line.strip()]
    spaces = [len(line) - len(line.lstrip(" ")) for line in lines]
    return all(one < next for one, next in itertools.pairwise(spaces))


def quote_unquote(answer: str) -> bool:
    """No quoted part is followed by another, or by the end of the text."""
    text = answer.replace("“", '"').replace("”", '"').replace("'\"'", "")
    text = "".join(text.split())
    last = text.strip(string.digits + string.punctuation.replace('"', ""))[-1:]
    return '""' not in text and last not in ("", '"')


def separated_list(answer: str, sep: str) -> bool:
    return answer.count(sep) >= 2


def thesis(answer: str) -> bool:
    """Something stands in the first HTML italics, and something after them."""
    match = re.search("<i>", answer) or re.search("<em>", answer)
    if match is None:
        return False
    rest = answer[match.end() :]
    end = re.search("</i>", rest) or re.search("</em>", rest)
    return end is not None and bool(rest[: end.start()].strip() and rest[end.end() :].strip())


def sub_bullets(answer: str) -> bool:
    """There is a `*`, and a `-` between each and the next."""
    bullets = answer.split("*")[1:]
    return bool(bullets) and all("-" in bullet for bullet in bullets)


def no_bullets_bullets(answer: str) -> bool:
    """At least two sentences, up to the first blank line, then at least two lines with `*`."""
    lines = [line.strip() for line in answer.split("\n")]
    starred = [line.startswith("*") for line in lines]
    first = starred.index(True) if any(starred) else len(lines)
    text, bullets = lines[:first], starred[first:]
    said = sum(len(language.rule_sentences(line)) for line in text)
    return "" not in text[:-1] and said >= 2 and len(bullets) >= 2 and all(bullets)


def title_case(answer: str) -> bool:
    """No token longer than a letter begins small and goes on in one case."""
    small = (token for token in language.tokens(answer) if token[0].islower())
    return not any(token[1:].islower() or token[1:].isupper() for token in small)


def output_template(answer: str) -> bool:
    return all(part in answer for part in ("My Answer:", "My Conclusion:", "Future Outlook:"))


def no_whitespace(answer: str) -> bool:
    return not any(char.isspace() for char in answer)


def multiples(answer: str) -> bool:
    return re.findall(r"\d+", answer) == ["14", "21", "28", "35", "42", "49"]


def mcq_count_length(answer: str) -> bool:
    """Four questions "Question 1" of five options each, every question longer than the last."""
    if not answer.startswith("Question"):
        return False
    pieces = [piece.strip() for piece in re.split(r"Question \d++[.|):;]?", answer)]
    read = [_question(piece) for piece in pieces if piece]
    lengths = [length for length, _ in read]
    longer = all(one < next for one, next in itertools.pairwise(lengths))
    return len(read) == 4 and all(count == 5 for _, count in read) and longer


def _question(text: str) -> tuple[int, int]:
    """Returns (characters before the first option, the number of options)."""
    lines = [line.strip() for line in text.split("\n")]
    is_option = [bool(re.match(r"[A-Ea-e][.|)]\s*\w", line)) for line in lines]
    first = is_option.index(True) if any(is_option) else len(lines)
    return len(" ".join(lines[:first]).strip()), sum(is_option)


def reverse_newline(answer: str) -> bool:
    """From the line with Zimbabwe on, at least 52 lines, sorted from z to a."""
    lines = [line for line in (line.strip(EDGE) for line in answer.split("\n")) if line]
    start = next((n for n, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    listed = [_plain(line) for line in lines[start:]]
    return len(listed) >= 52 and listed == sorted(listed, reverse=True)


def _plain(text: str) -> str:
    """Returns the text in ASCII, letters without their accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def word_reverse(answer: str) -> bool:
    marks = str.maketrans("", "", string.punctuation)
    return "bald eagle" in " ".join(answer.lower().translate(marks).split()[::-1])


def character_reverse(answer: str) -> bool:
    return "bald eagle"[::-1] in answer.lower()


def sentence_alphabet(answer: str) -> bool:
    firsts = [sentence[:1].lower() for sentence in language.rule_sentences(answer)]
    return firsts == list(string.ascii_lowercase)


def european_capitals_sort(answer: str) -> bool:
    cities = [city.strip() for city in _plain(answer).split(",")]
    return [city for city in cities if city] == list(ifbench_lexicon.NORTHERN_CAPITALS)


def csv_city(answer: str) -> bool:
    records = _records(answer, ",")
    return _is_table(records, 8, ["ID", "Country", "City", "Year", "Count"])


def csv_special_character(answer: str) -> bool:
    """One field of the 14 rows is in double quotes and holds a special character."""
    records = _records(answer, ",")
    fields = itertools.chain.from_iterable(records[1:])
    special = any(re.fullmatch(r'".*[^\w\s"].*"', field, re.DOTALL) for field in fields)
    return special and _is_table(records, 15, ["ProductID", "Category", "Brand", "Price", "Stock"])


def csv_quotes(answer: str) -> bool:
    """Three rows, set apart by tabs, with every field in double quotes, the names too."""
    records = _records(answer, "\t")
    fields = itertools.chain.from_iterable(records)
    quoted = all(len(field) > 1 and field[0] == field[-1] == '"' for field in fields)
    names = ["StudentID", "Subject", "Grade", "Semester", "Score"]
    return quoted and _is_table(records, 4, names)


def _records(text: str, delimiter: str) -> list[list[str]]:
    """Returns the fields of each record, with their quotes; blanks around a field do not count."""
    records: list[list[str]] = [[]]
    for match in FIELD[delimiter].finditer(text.replace("\r\n", "\n").strip("\n")):
        field, end = match.groups()
        records[-1].append(field.strip(" "))
        if end == "\n":
            records.append([])
        elif not end:  # else the end of the text would match once more
            break
    return records


def _is_table(records: list[list[str]], lines: int, names: list[str]) -> bool:
    header = [name.strip('"') for name in records[0]]
    same = all(len(record) == len(names) for record in records)
    return len(records) == lines and same and header == names


def date_format_list(answer: str) -> bool:
    """Dates of the calendar, YYYY-MM-DD, of Napoleon's lifetime, set apart by commas."""
    for piece in answer.split(","):
        if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", piece.strip()):
            return False
        try:
            date = datetime.date.fromisoformat(piece.strip())
        except ValueError:
            return False
        if not 1769 <= date.year <= 1821:
            return False
    return True


def repeat_change(answer: str, prompt_to_repeat: str) -> bool:
    """The prompt's words with another first one."""
    ours, theirs = answer.split(), prompt_to_repeat.split()
    return ours[1:] == theirs[1:] and ours[:1] != theirs[:1]


def repeat_simple(answer: str) -> bool:
    return answer.strip().lower() == ONLY


def repeat_span(answer: str, n_start: int, n_end: int, prompt_to_repeat: str) -> bool:
    """The prompt's words from number n_start up to, without, n_end, ignoring case."""
    return answer.lower().split() == prompt_to_repeat.lower().split()[n_start:n_end]


def _span_is_there(n_start: int, n_end: int, prompt_to_repeat: str) -> str:
    words = len(prompt_to_repeat.split())
    return "" if n_start < min(n_end, words) else f"no words {n_start} to {n_end} of {words}"


FIELD = {
    mark: re.compile(rf'( *+"(?:[^"]|"")*+" *+(?=[{mark}\n]|\Z)|[^{mark}\n]*+)([{mark}\n]|\Z)')
    for mark in (",", "\t")
}

SHAPES: dict[str, Constraint] = {
    "format:parentheses": Constraint(parentheses, {}),
    "format:quotes": Constraint(quotes, {}),
    "format:options": Constraint(options, {"options": TEXT}),
    "format:newline": Constraint(newline, {}),
    "format:emoji": Constraint(emoji, {}),
    "format:line_indent": Constraint(line_indent, {}),
    "format:quote_unquote": Constraint(quote_unquote, {}),
    "format:list": Constraint(separated_list, {"sep": WORD}),
    "format:thesis": Constraint(thesis, {}),
    "format:sub-bullets": Constraint(sub_bullets, {}),
    "format:no_bullets_bullets": Constraint(no_bullets_bullets, {}),
    "format:title_case": Constraint(title_case, {}),
    "format:output_template": Constraint(output_template, {}),
    "format:no_whitespace": Constraint(no_whitespace, {}),
    "custom:multiples": Constraint(multiples, {}),
    "custom:mcq_count_length": Constraint(mcq_count_length, {}),
    "custom:reverse_newline": Constraint(reverse_newline, {}),
    "custom:word_reverse": Constraint(word_reverse, {}),
    "custom:character_reverse": Constraint(character_reverse, {}),
    "custom:sentence_alphabet": Constraint(sentence_alphabet, {}),
    "custom:european_capitals_sort": Constraint(european_capitals_sort, {}),
    "custom:csv_city": Constraint(csv_city, {}),
    "custom:csv_special_character": Constraint(csv_special_character, {}),
    "custom:csv_quotes": Constraint(csv_quotes, {}),
    "custom:date_format_list": Constraint(date_format_list, {}),
    "repeat:repeat_change": Constraint(repeat_change, {"prompt_to_repeat": TEXT}),
    "repeat:repeat_simple": Constraint(repeat_simple, {}),
    "repeat:repeat_span": Constraint(
        repeat_span,
        {"n_start": NATURAL, "n_end": NATURAL, "prompt_to_repeat": TEXT},
        _span_is_there,
    ),
}
