"""Jinja as the hub's chat templates expect it: a sandbox, `tojson`, `raise_exception`, generation blocks."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

from nemocascade_jax.errors import InputError

MARK = "_mark"  # the variable that tells `tojson` which code point must survive as it is


class Generation(jinja2.ext.Extension):
    """Takes `{% generation %}` blocks for their content; who produced what is found by `template.py`."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


@functools.lru_cache(maxsize=16)
def compile_template(source: str) -> jinja2.Template:
    """Returns a template ready to render; raises InputError with the line that is no Jinja."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise InputError(
            f"chat: the tokenizer's chat template, line {error.lineno}: {error}"
        ) from None


def render(template: jinja2.Template, variables: Mapping[str, Any], mark: str) -> str:
    """Returns the text of a template; raises InputError where it refuses the conversation."""
    try:
        return template.render({**variables, MARK: mark})
    except jinja2.TemplateError as error:
        # Undefined, so that templates with a date of their own to fall back on take that.
        dated = isinstance(error, jinja2.UndefinedError) and "strftime_now" in str(error)
        reason = NO_DATE if dated else str(error)
    except BROKEN as error:
        reason = f"{type(error).__name__}: {error}"
    raise InputError(f"chat: the tokenizer's chat template refuses the row: {reason}")


def _refuse(message: str) -> Any:
    raise jinja2.TemplateError(message)


@jinja2.pass_context
def _to_json(
    context: jinja2.runtime.Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Returns JSON as the hub's filter writes it: no HTML escapes, letters as they are."""
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    mark = context[MARK]
    return text.replace(f"\\u{ord(mark):04x}", mark)


BROKEN = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
NO_DATE = (
    "it asks for today's date (strftime_now), so that the same row would be another prompt every day; "
    "write a date into the template"
)
