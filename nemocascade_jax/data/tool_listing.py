"""The tools that a conversation may call, as the system turn lists them (paper 1.4).

The list is that of the Nemotron-3 format. The instruction behind it is worded by this project: a checkpoint
that ships a chat template is rendered by that, to its letter.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nemocascade_jax.errors import InputError
from nemocascade_jax.rows.messages import function_of

HEAD = "# Tools\n\nYou have access to the following functions:\n\n"
INSTRUCTION = """

A function is called by writing this, and nothing behind it:

<tool_call>
<function=NAME>
<parameter=ARGUMENT>
VALUE
</parameter>
<parameter=ANOTHER_ARGUMENT>
A VALUE MAY
TAKE SEVERAL LINES
</parameter>
</function>
</tool_call>

<IMPORTANT>
- Each call stands in tags of its own, in exactly this form; several calls follow one another
- All required arguments are given
- What is said to the user stands before the first call, never behind a call
- If no function is of use, answer as if there were none
</IMPORTANT>"""


def list_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns the section of the system turn, up to INSTRUCTION; tools may be nested or flat."""
    functions = [_function(function_of(tool), index) for index, tool in enumerate(tools)]
    return f"{HEAD}<tools>\n{''.join(functions)}</tools>"


def _function(function: Mapping[str, Any], index: int) -> str:
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"chat: tools[{index}]: name is {name!r}, expected the function's name")
    given = function.get("parameters")
    parameters = given if isinstance(given, Mapping) else {}
    inside = "".join(_parameter(*entry) for entry in _properties(parameters))
    inside += _others(parameters, ("type", "properties", "required"))
    inside += _named(parameters, "required")
    others = _others(function, ("type", "name", "description", "parameters"))
    said = _tag("name", name) + _description(function)
    return f"<function>\n{said}<parameters>\n{inside}</parameters>\n{others}</function>\n"


def _properties(parameters: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    properties = parameters.get("properties")
    found = properties.items() if isinstance(properties, Mapping) else ()
    return [(name, entry if isinstance(entry, Mapping) else {}) for name, entry in found]


def _parameter(name: str, schema: Mapping[str, Any]) -> str:
    kind = _tag("type", str(schema["type"])) if "type" in schema else ""
    said = _tag("name", name) + kind + _description(schema) + _named(schema, "enum")
    others = _others(schema, ("name", "type", "description", "enum"))
    return f"<parameter>\n{said}{others}</parameter>\n"


def _description(entry: Mapping[str, Any]) -> str:
    said = entry.get("description")
    return "" if said is None else _tag("description", str(said).strip())


def _named(entry: Mapping[str, Any], key: str) -> str:
    return _tag(key, entry[key]) if key in entry else ""


def _others(entry: Mapping[str, Any], known: Collection[str]) -> str:
    """Writes keys without a place of their own as tags."""
    return "".join(_tag(key, value) for key, value in entry.items() if key not in known)


def _tag(name: str, value: Any) -> str:
    nested = isinstance(value, Mapping | list | tuple)
    said = json.dumps(value, ensure_ascii=False) if nested else str(value)
    return f"<{name}>{said}</{name}>\n"
