"""Values written in the formats of structured answers, by other means than those that read them."""

import csv
import io
import json
from xml.etree import ElementTree


def write_all(value):
    """Yields (format, text) for each format that can write a value without losing anything."""
    yield "json", json.dumps(value)
    yield "yaml", write_yaml(value)
    if isinstance(value, dict) and _everywhere(value, lambda one: one is not None):
        yield "toml", "".join(f"{json.dumps(k)} = {write_toml(v)}\n" for k, v in value.items())
    yield "xml", ElementTree.tostring(write_xml("root", value), encoding="unicode")
    rows = value if isinstance(value, list) else [value]
    if (
        rows
        and all(isinstance(row, dict) and row for row in rows)
        and len({frozenset(row) for row in rows}) == 1
        and not any(one == "" for row in rows for one in row.values())
        and (len(rows[0]) > 1 or all(one is not None for row in rows for one in row.values()))
    ):
        yield "csv", write_csv(rows)


def write_yaml(value, indent=0):
    """Returns blocks, texts in quotes."""
    pad = "  " * indent
    if isinstance(value, dict) and value:
        pairs = value.items()
        return "".join(f"\n{pad}{json.dumps(k)}: {write_yaml(v, indent + 1)}" for k, v in pairs)
    if isinstance(value, list) and value:
        return "".join(f"\n{pad}- {write_yaml(v, indent + 1)}" for v in value)
    return json.dumps(value)


def write_toml(value):
    """Returns an inline value."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {write_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(write_toml, value)) + "]"
    assert value is not None
    return json.dumps(value, ensure_ascii=False)


def write_xml(name, value):
    """Returns an element, lists with an element around their entries."""
    element = ElementTree.Element(name)
    if isinstance(value, dict):
        element.extend(write_xml(key, entry) for key, entry in value.items())
    elif isinstance(value, list):
        element.extend(write_xml("entry", entry) for entry in value)
    elif value is not None:
        element.text = value if isinstance(value, str) else json.dumps(value)
    return element


def write_csv(rows):
    """Returns a table whose lists, objects and truth values are JSON."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(rows[0])
    for row in rows:
        cells = [row[name] for name in rows[0]]
        table.writerow(
            [json.dumps(one) if isinstance(one, dict | list | bool) else one for one in cells]
        )
    return text.getvalue()


def _everywhere(value, holds):
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return holds(value) and all(_everywhere(one, holds) for one in inner)
