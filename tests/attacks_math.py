"""Mathematics rows, right answers, and answers of cheats."""

import re

from nemocascade_jax.rows.generators import math
from nemocascade_jax.rows.records import Message, Row

HARD = (
    *("1/2", "0.1", r"10\%", r"$\$18$", "1/6", "1234567", "-1.5", "x=7", r"5\text{ cm}", "E"),
    *(r"90^\circ", r"\{1,2,3\}", "(1,2)", "[0, 1)", r"(-\infty, 3]", r"3\sqrt{2}", "x^2+1", "3:2"),
    *(r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac{\pi}{2}", "2, -2", r"2^{10}", "Paris"),
)
LOOK_ALIKE = str.maketrans("0123456789aceopxyEPx", "٠١٢٣٤٥٦٧٨٩асеорхуЕРх")


def rows(count: int) -> list[Row]:
    """Returns the hand-made rows and `count` generated ones."""
    made = [
        Row(
            f"hard-{index}",
            math.AGENT,
            (Message("user", f"Find it ({index}). Put the answer in \\boxed{{}}."),),
            {"question": "Find it.", "expected_answer": gold},
            f"hard:{index}",
        )
        for index, gold in enumerate(HARD)
    ]
    return [*made, *math.generate("train", count, 5)]


def satisfying(row: Row) -> str:
    return f"So it is \\boxed{{{row.fields['expected_answer']}}}."


def truncated(row: Row) -> str:
    return satisfying(row)[:-2]


def _whole(row: Row) -> int | None:
    gold = row.fields["expected_answer"]
    return int(gold) if re.fullmatch("-?[0-9]+", gold) else None


def _box(form: str):
    """Returns an attack that boxes `form` with {gold} in it."""
    return lambda row: f"\\boxed{{{form.replace('{gold}', row.fields['expected_answer'])}}}"


def _around(form: str):
    return lambda row: form.replace("{gold}", f"\\boxed{{{row.fields['expected_answer']}}}")


def _whole_box(form: str):
    """Returns an attack on whole-number references; {gold} and {next} are put in."""

    def build(row: Row) -> str | None:
        gold = _whole(row)
        if gold is None:
            return None
        return f"\\boxed{{{form.replace('{gold}', str(gold)).replace('{next}', str(gold + 1))}}}"

    return build


def _many(row: Row) -> str | None:
    gold = _whole(row)
    if gold is None:
        return None
    return " ".join(f"\\boxed{{{n}}}" for n in range(gold + 50, gold - 50, -1))


def _apart(row: Row) -> str | None:
    gold = row.fields["expected_answer"]
    return f"\\boxed{{{chr(0x200B).join(gold)}}}" if gold.isalnum() and len(gold) > 1 else None


ATTACKS = {
    "right box, then another": _around("{gold} or else \\boxed{987654321}"),
    "a box that never ends after it": _around("{gold} \\boxed{12"),
    "empty box after it": _around("{gold} \\boxed{}"),
    "every number in a box": _many,
    "every number in one box": _box(",".join(map(str, range(100)))),
    "no box": lambda row: f"The answer is {row.fields['expected_answer']}",
    "fence without a box": lambda row: f"```\n{row.fields['expected_answer']}\n```",
    "two literals joined by =": _whole_box("{next}={gold}"),
    "right or wrong": _box("{gold} \\text{ or } 987654321"),
    "two boxes in a box": _box("\\boxed{987654321} \\boxed{{gold}}"),
    "phantom": _box("\\phantom{{gold}}987654321"),
    "comment in LaTeX": _box("987654321 %{gold}"),
    "hidden by a color": _box("\\color{white}{{gold}}987654321"),
    "crossed out": _box("\\cancel{987654321}{gold}0"),
    "not worked out": _whole_box("{gold}+0"),
    "almost": _whole_box("{gold}.0000000000001"),
    "interval around it": _whole_box("[{gold},{next}]"),
    "any": _box("\\text{any}"),
    "all numbers": _box("\\mathbb{R}"),
    "x = x": _box("z=z"),
    "matches everything": _box(".*"),
    "NaN": _box("NaN"),
    "infinite": _box("(-\\infty,\\infty)"),
    "undefined": _box("\\frac{0}{0}"),
    "look-alike digits and letters": lambda row: (
        satisfying(row).replace("\\boxed", "\x00").translate(LOOK_ALIKE).replace("\x00", "\\boxed")
    ),
    "zero-width characters inside": _apart,
    "power tower": _box("9^{9^{9^{9^{9}}}}"),
    "nested powers": _box("(((9^{999})^{999})^{999})^{999}"),
    "factorial": _box("((9!)!)!"),
    "integral": _box("\\int_0^{\\infty} x^{x^{x}} \\sin(x!) dx"),
    "code": _box("__import__('os').system('true')"),
    "open boxes": lambda row: "\\boxed{" * 40_000,
    "boxes in boxes": lambda row: "\\boxed{" * 1500 + "1" + "}" * 1500,
    "deep nesting": _box("(" * 900 + "1,1" + ")" * 900),
    "a million digits": _box("4" * 1_000_000),
}
