"""Exact numbers as people write them: signs, separators, fractions, percent, powers, units."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

LARGEST_EXPONENT = 1_000
LARGEST_BITS = 8_192  # of a power's value; more is never worked out


class Number(NamedTuple):
    """A number with what stands around it: a mark ($, a degree sign) or a unit after it."""

    value: Fraction
    mark: str = ""
    unit: str = ""


def read_number(text: str) -> Number | None:
    """Returns the number that a cleaned text is, with its unit; None for any other text."""
    mark = ""
    signed = re.match(r"([+-]?) ?([$\u20ac\u00a3]) ?(?=[0-9.+-])", text)
    if signed:
        mark, text = signed.group(2), signed.group(1) + text[signed.end() :]
    match = REPEATING.match(text) or NUMBER.match(text)
    value = _value(match) if match else None
    if match is None or value is None:
        return None
    rest = text[match.end() :]
    if not rest:
        return Number(value, mark)
    if PERCENT.fullmatch(rest):
        return Number(value / 100, mark)
    if rest.strip() == "\u00b0" or DEGREES.fullmatch(rest):
        return Number(value, mark or "\u00b0")
    unit = read_unit(rest)
    return Number(value, mark, unit) if unit and not mark else None


def same_number(gold: Number, answer: Number) -> bool:
    """Returns whether the answer is the reference.

    A unit of the answer counts unless the reference has none; a mark may be left out on either side.
    """
    if gold.value != answer.value:
        return False
    if gold.mark and answer.mark and gold.mark != answer.mark:
        return False
    return not gold.unit or gold.unit == answer.unit


def _value(match: re.Match[str]) -> Fraction | None:
    """Returns the value of what NUMBER matched; None for a zero below a line or a huge power."""
    got = match.groupdict()
    sign = -1 if got["sign"] == "-" else 1
    if "again" in got:
        digits, again = len(got["digits"]), len(got["again"])
        part = Fraction(int(got["again"]), 10**digits * (10**again - 1))
        return sign * (_decimal(f"{got['before']}.{got['digits'] or 0}") + part)
    if got["over"] or got["slash"]:
        top, bottom = (got["over"], got["under"]) if got["over"] else (got["slash"], got["by"])
        below = _decimal(bottom)
        if below == 0:
            return None
        part = _decimal(top) / below
        whole = _decimal(got["whole"] or got["whole_by"] or "0")
        return sign * (whole + part)
    if got["to"]:
        base, exponent = int(got["base"] or got["ten"]), int(got["to"].strip("{}"))
        times = _decimal(got["times"] or "1")
        power = _power(base, exponent)
        return None if power is None else sign * times * power
    value = _decimal(got["plain"])
    if got["exponent"]:
        power = _power(10, int(got["exponent"]))
        return None if power is None else sign * value * power
    return sign * value


def _power(base: int, exponent: int) -> Fraction | None:
    small = abs(exponent) <= LARGEST_EXPONENT
    if not small or abs(exponent) * base.bit_length() > LARGEST_BITS or (base == 0 >= exponent):
        return None
    return Fraction(base) ** exponent


def _decimal(text: str) -> Fraction:
    return Fraction(text.replace(",", "").replace(" ", "").removesuffix("."))


def read_unit(rest: str) -> str:
    """Returns a bare unit in one spelling, "" where the rest is anything else."""
    match = UNIT.fullmatch(rest)
    if match is None:
        return ""
    words = re.findall("[A-Za-z]+", rest)
    if any(NO_UNIT.fullmatch(word.lower()) for word in words):
        return ""
    one = " ".join(re.sub(r'["{}\\.]', " ", rest).split()).casefold()
    return one.removesuffix("s") or one


UNSIGNED = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3}){1,99}|[1-9][0-9]{0,2}(?: [0-9]{3}){1,99}|[0-9]{1,400})"
DECIMAL = rf"(?:{UNSIGNED}(?:\.[0-9]{{1,400}})?|\.[0-9]{{1,400}})"
SIGNED = rf"-? ?{DECIMAL}"
WHOLE = r"[0-9]{1,100}"
NUMBER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:"
    rf"(?P<whole>{WHOLE})? ?\\frac ?\{{ ?(?P<over>{SIGNED}) ?\}} ?\{{ ?(?P<under>{SIGNED}) ?\}}"
    rf"|(?:(?P<whole_by>{WHOLE}) )?(?P<slash>{DECIMAL}) ?/ ?(?P<by>{DECIMAL})"
    rf"|(?:(?P<times>{DECIMAL}) ?(?:\\times|\\cdot|\*) ?(?P<ten>10)|(?P<base>{WHOLE}))"
    rf" ?\^ ?(?P<to>\{{[+-]?[0-9]{{1,4}}\}}|[0-9])"
    rf"|(?P<plain>{DECIMAL}\.?)(?:[eE](?P<exponent>[+-]?[0-9]{{1,4}}))?"
    rf")(?![0-9,.^/!_\\(]|\s?[0-9])"
)
REPEATING = re.compile(
    r"(?P<sign>[+-]?) ?(?P<before>[0-9]{1,100})\.(?P<digits>[0-9]{0,100})"
    r" ?\\(?:overline|bar|dot) ?(?:\{(?P<again>[0-9]{1,100})\})(?![0-9,.^/!_\\(]|\s?[0-9])"
)
PERCENT = re.compile(r' ?%| ?"? ?per ?cent ?"?')
DEGREES = re.compile(r' ?"? ?degrees?"?')
# Words that say how long, how much or of what; a lone letter would be a variable.
UNIT = re.compile(
    r' ?"[A-Za-z .]{1,40}(?:[/^][A-Za-z0-9 ]{1,20}){0,2}"(?: ?\^ ?\{?-?[0-9]\}?)?'
    r'(?: ?/ ?"[A-Za-z ]{1,40}"(?: ?\^ ?\{?-?[0-9]\}?)?)?'
    r"| (?:[A-Za-z]{2,20}\.?)(?: [A-Za-z]{1,20}\.?){0,3}(?: ?\^ ?\{?-?[0-9]\}?)?"
    r"| ?(?:mm|cm|km|mg|kg|ml|mL|hr|min|sec|ft|yd|lb|oz|mph|kmh|km/h|m/s|cm/s)"
    r"(?: ?\^ ?\{?[0-9]\}?)?"
    r"| (?:m|g|s|h|L|N|J|W|V)(?: ?\^ ?\{?[0-9]\}?)?"
    r"| ?\u00b0 ?\"?[CF]\"?"
)
NO_UNIT = re.compile(
    r"(?:or|and|not|nor|but|no|if|then|is|to|than|between|pi|e|i|sqrt|sin|cos|tan|sec|csc"
    r"|cot|log|ln|exp|infinity|inf|infty|mod|plus|minus|times|over|divided|squared|cubed"
    r"|factorial|choose|percent|hundred|thousand|million|billion|trillion|dozen|dozens"
    r"|half|halves|third|thirds|fourth|fourths|quarter|quarters|fifth|fifths|tenth|tenths"
    r"|hundredth|hundredths|thousandth|thousandths|base|negative|about|approximately)"
)
