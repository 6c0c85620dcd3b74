"""XML without a DTD, attributes or instructions, its elements read as the schema's objects and lists.

- The root stands for the whole value, under any name. Where the schema is an object with one
  property and the root has its name, the root is that property.
- An object has an element for each property. Text beside elements is refused.
- A list is the elements with its name, side by side; or one element around elements of one name
  that is no property of the list's entries. One element with neither is a list of one, an empty
  one is the empty list.
- The text of an element is taken as it stands; numbers and truth values may have blanks around.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

from nemocascade_jax.rewards.structure_formats import Unreadable, check_size, deeper
from nemocascade_jax.rewards.structure_guide import Guide, Place, scalars


@dataclasses.dataclass
class Element:
    name: str
    inside: list[Element] = dataclasses.field(default_factory=list)
    text: str = ""


def read_xml(text: str, guide: Guide) -> Any:
    """Returns the value of an XML document."""
    check_size(text)
    element, place = parse(text), guide.root()
    kinds = guide.kinds(place)
    if element.inside and "array" in kinds and "object" not in kinds:
        return _entries(element, guide, place)
    if "object" in kinds and guide.names(place) == {element.name}:
        return {element.name: _value(element, guide, guide.at_name(place, element.name))}
    return _value(element, guide, place)


def parse(text: str) -> Element:
    """Returns the root element; what could stand for more than it says is Unreadable."""
    top = Element("")
    path = [top]

    def start(name: str, attributes: dict[str, str]) -> None:
        deeper(len(path) - 1)
        if attributes:
            raise Unreadable(f"attributes are not read, element {name[:40]} has some")
        path.append(Element(name))

    def end(name: str) -> None:
        element = path.pop()
        if element.inside and element.text.strip(BLANK):
            raise Unreadable(f"text beside the elements inside {name[:40]}")
        path[-1].inside.append(element)

    def data(piece: str) -> None:
        path[-1].text += piece

    parser = expat.ParserCreate("utf-8")
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = data
    parser.StartDoctypeDeclHandler = _refuse("a DTD")
    parser.ProcessingInstructionHandler = _refuse("an instruction")
    try:
        parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        what = expat.errors.messages.get(error.code, "broken")
        raise Unreadable(f"not XML: {what} at line {error.lineno}") from None
    except UnicodeError:
        raise Unreadable("not XML: a character that XML does not have") from None
    return top.inside[0]


def _refuse(what: str) -> Any:
    def refuse(*said: Any) -> None:
        raise Unreadable(f"XML with {what} is not read")

    return refuse


def _value(element: Element, guide: Guide, place: Place) -> Any:
    if not element.inside:
        return guide.chosen(_readings(element.text, guide, place), place)
    kinds = guide.kinds(place)
    if "array" in kinds:
        entry = guide.at_index(place, 0)
        names = {inner.name for inner in element.inside}
        if len(names) == 1 and not names & guide.names(entry):
            return _entries(element, guide, place)
        if "object" not in kinds:
            return [_value(element, guide, entry)]
    return _object(element, guide, place)


def _entries(element: Element, guide: Guide, place: Place) -> list[Any]:
    if len({inner.name for inner in element.inside}) > 1:
        raise Unreadable(f"a list whose elements have several names, in {element.name[:40]}")
    return [
        _value(inner, guide, guide.at_index(place, index))
        for index, inner in enumerate(element.inside)
    ]


def _object(element: Element, guide: Guide, place: Place) -> dict[str, Any]:
    table: dict[str, list[Element]] = {}
    for inner in element.inside:
        table.setdefault(inner.name, []).append(inner)
    value: dict[str, Any] = {}
    for name, elements in table.items():
        here = guide.at_name(place, name)
        if len(elements) == 1:
            value[name] = _value(elements[0], guide, here)
        elif "array" in guide.kinds(here):
            value[name] = [
                _value(one, guide, guide.at_index(here, index))
                for index, one in enumerate(elements)
            ]
        else:
            raise Unreadable(f"element {name[:40]} is there twice and is no list")
    return value


def _readings(text: str, guide: Guide, place: Place) -> Iterator[Any]:
    """Yields what the text of an element without elements inside may stand for, itself last."""
    bare = text.strip(BLANK)
    if not bare:
        yield from (None, [], {})
    yield from scalars(bare)
    if bare and "array" in guide.kinds(place):
        entry = guide.at_index(place, 0)
        yield [guide.chosen([*scalars(bare), text], entry)]
    yield text


BLANK = " \t\r\n"
