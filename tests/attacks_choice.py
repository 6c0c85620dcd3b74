"""Multiple-choice rows, right answers, and answers of cheats."""

from nemocascade_jax.rewards.choice import MODES
from nemocascade_jax.rows.generators import choice
from nemocascade_jax.rows.records import Message, Row

OPTIONS = ({"A": "three"}, {"B": "four"}, {"C": "a cat"}, {"D": "both"})
LOOK_ALIKE = str.maketrans("ABCDaceiopxy", "АВСДасеіорху")
# Patterns a row may bring: of the release, with several groups, and one that backtracks without end.
PATTERNS = (r"Answer:\s*([A-Z])", r"(?:Final|Answer):\s*(.+)", r"Answer:\s*(?:(?:x+)+y|([A-D]))")
BOMB = PATTERNS[2]


def rows(count: int) -> list[Row]:
    """Returns the hand-made rows and `count` generated ones."""
    kinds = [(mode, None) for mode in MODES] + [(MODES[2], pattern) for pattern in PATTERNS]
    made = [_hard(*kind, letter) for kind in kinds for letter in "ABC"]
    return [*made, *choice.generate("train", count, 5)]


def _hard(mode: str, pattern: str | None, letter: str) -> Row:
    asked = "\n".join(f"{key}: {text}" for option in OPTIONS for key, text in option.items())
    prompt = f"Which is it? End with Answer: and the letter, or \\boxed{{}}.\n{asked}"
    fields = {"options": list(OPTIONS), "expected_answer": letter, "grading_mode": mode}
    if pattern:
        fields["template_metadata"] = {"output_regex": pattern}
    name = f"hard:{mode}:{pattern}:{letter}"
    return Row(name, choice.AGENT, (Message("user", prompt),), fields, name)


def satisfying(row: Row) -> str:
    return _say(row, _right(row))


def truncated(row: Row) -> str:
    return satisfying(row).rstrip("}. ").removesuffix(_right(row))


def _form(row: Row) -> str:
    """Returns how the row wants its answer, {} for what is answered."""
    form = row.fields.get("template_metadata", {}).get("template_id")
    if form:
        return choice.FORMS[form][1].replace("{kind}", "thing").replace("{word}", "{}")
    if row.fields["grading_mode"].endswith("boxed"):
        return "It is \\boxed{{{}}}"
    return "So Answer: {}"


def _say(row: Row, what: str) -> str:
    return _form(row).format(what)


def _right(row: Row) -> str:
    letter = row.fields["expected_answer"]
    return _options(row)[letter] if not row.where.startswith("hard") else letter


def _options(row: Row) -> dict[str, str]:
    return {key: text for option in row.fields["options"] for key, text in option.items()}


def _wrong(row: Row) -> str:
    letter = next(key for key in _options(row) if key != row.fields["expected_answer"])
    return _options(row)[letter] if not row.where.startswith("hard") else letter


def _said(form: str):
    """Returns an attack that answers `form`, {right} and {wrong} put in."""
    return lambda row: _say(
        row, form.replace("{right}", _right(row)).replace("{wrong}", _wrong(row))
    )


def _every(row: Row) -> str:
    """Returns every option, one after another, the right one not last."""
    last = _wrong(row)
    listed = [
        text if not row.where.startswith("hard") else key for key, text in _options(row).items()
    ]
    return "\n".join(_say(row, what) for what in [*(one for one in listed if one != last), last])


def _bomb(row: Row) -> str | None:
    pattern = row.fields.get("template_metadata", {}).get("output_regex")
    return f"Answer: {'x' * 60}" if pattern == BOMB else None


ATTACKS = {
    "every option in turn": _every,
    "right, then wrong": lambda row: f"{satisfying(row)}\n{_say(row, _wrong(row))}",
    "right or wrong": _said("{right} or {wrong}"),
    "wrong and right": _said("{wrong} and {right}"),
    "both by a slash": _said("{right}/{wrong}"),
    "both by a comma": _said("{right}, {wrong}"),
    "no option": _said("Z"),
    "any": _said("any"),
    "matches everything": _said(".*"),
    "not the right one": _said("not {right}"),
    "glued letters": _said("{right}{wrong}{right}"),
    "look-alike letters": lambda row: _say(row, _right(row).translate(LOOK_ALIKE)),
    "zero-width characters inside": lambda row: _say(row, f"\u200b{_right(row)}"),
    "fence alone": lambda row: f"```\n{_right(row)}\n```",
    "open boxes": lambda row: f"\\boxed{{{_right(row)}" * 20_000,
    "template echoed": _said("A/B/C/D"),
    "pattern bomb": _bomb,
    "null characters": _said("\x00\x00"),
    "a million letters": lambda row: _right(row)[:1] * 1_000_000,
}
