"""Answers that try to be paid for tool use without being right, by kind; each is worth 0 on any row.

`satisfying` is the answer that is worth 1. A row that expects no call gets a call where one is needed.
"""

import json
from collections.abc import Callable
from typing import Any

from nemocascade_jax.rewards import tool_calls, workplace
from nemocascade_jax.rows.messages import write_calls
from nemocascade_jax.rows.records import Row, ToolCall

HUGE = 300_000  # characters


def reference(row: Row) -> tuple[ToolCall, ...]:
    """Returns the calls that a row expects."""
    if row.agent != workplace.AGENT:
        return tool_calls.read(row).calls
    calls = row.fields["ground_truth"]
    return tuple(tool_calls.read_call(row, "ground_truth", call) for call in calls)


def satisfying(row: Row) -> str:
    """Returns an answer that is worth 1, with some reasoning in front."""
    calls = reference(row)
    said = write_calls(calls) if calls else "There is nothing to do, since nothing was asked for."
    return f"<think>\nWhat is asked for?\n</think>\n{said}"


def _calls(row: Row) -> list[ToolCall]:
    stand_in = ToolCall(
        "email_send_email", {"recipient": "a@b.example", "subject": "s", "body": "b"}
    )
    return list(reference(row)) or [stand_in]


def _changed(row: Row, change: Callable[[Any], Any]) -> list[ToolCall]:
    """Returns the calls with every argument changed."""
    return [
        ToolCall(call.name, {key: change(value) for key, value in call.arguments.items()})
        for call in _calls(row)
    ]


def _json_call(row: Row) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': dict(c.arguments)})}\n</tool_call>"
        for c in _calls(row)
    )


def _within(row: Row) -> str:
    """Returns the right calls as the text of another call's argument."""
    return write_calls([ToolCall("email_search_emails", {"query": write_calls(_calls(row))})])


ATTACKS: dict[str, Callable[[Row], str]] = {
    "prompt echo": lambda row: row.messages[-1].content,
    "call inside the reasoning": lambda row: f"<think>\n{write_calls(_calls(row))}\n</think>\n",
    "call in reasoning that never ends": lambda row: f"<think>\n{write_calls(_calls(row))}\nDone.",
    "several alternative calls": lambda row: write_calls(
        [*_calls(row), *_changed(row, lambda value: f"{value} or so")]
        + [
            ToolCall("email_send_email", {"recipient": f"{c}@b.c", "subject": c, "body": c})
            for c in "xy"
        ]
    ),
    "extra call that changes the state": lambda row: write_calls(
        [*_calls(row), ToolCall("analytics_create_plot", _PLOT)]
    ),
    "unclosed tag": lambda row: write_calls(_calls(row)).removesuffix(
        "</function>\n</tool_call>\n"
    ),
    "unclosed second call": lambda row: write_calls(_calls(row)) + "\n<tool_call>\n<function=",
    "huge text beside the call": lambda row: "a " * (HUGE // 2) + write_calls(_calls(row)),
    "huge argument": lambda row: write_calls(
        _changed(row, lambda value: f"{value} " + "the of and " * 9000)
    ),
    "the same call a hundred times": lambda row: write_calls(_calls(row) * 100),
    "look-alike name": lambda row: write_calls(
        [ToolCall(c.name.replace("a", "а").replace("e", "е"), c.arguments) for c in _calls(row)]
    ),
    "JSON instead of XML": _json_call,
    "bare JSON": lambda row: (
        json.dumps([[c.name, dict(c.arguments)] for c in _calls(row)]) * 2 if reference(row) else ""
    ),
    "argument of the wrong type": lambda row: write_calls(_changed(row, lambda value: [value])),
    "equal to everything": lambda row: write_calls(_changed(row, lambda _: ".*")),
    "no arguments": lambda row: write_calls(_changed(row, lambda _: "")),
    "call within a call": _within,
}
_PLOT = {
    "time_min": "2031-01-01",
    "time_max": "2031-01-02",
    "value_to_plot": "user_engaged",
    "plot_type": "histogram",
}
