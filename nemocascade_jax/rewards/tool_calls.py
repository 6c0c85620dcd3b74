"""The verifier of one tool-using turn: the right calls with the right arguments, or a message (2.6).

`expected_action` is a call, a batch of calls in any order, or a message, for which any message does;
`expected_answers` is a list of calls whose named arguments must be there exactly, empty where a
message is the answer. What is asked of arguments and numbers of calls stands in COMPARISONS by the
row's agent; `tool_call_comparator_config` of a row overrides it under the published names.

Stricter than the published server: the number of calls counts by default, true is not 1, a turn that
cannot be read whole is worth nothing, and neither silence nor the prompt said again is a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nemocascade_jax.rewards.call_matching import Comparison, match_calls
from nemocascade_jax.rewards.structure_formats import Unreadable, read_json
from nemocascade_jax.rows.messages import ParsedTurn, function_of, parse_turn
from nemocascade_jax.rows.records import Completion, Row, RowError, Score, ToolCall

LONGEST = 200_000  # characters of an answer that is looked at
MOST_CALLS = 64  # of one answer
GOOD = (
    '{"expected_action": {"type": "function_call", "name": "get_weather", "arguments": '
    '"{\\"city\\": \\"Paris\\"}"}}'
)
TYPES = {
    bool: "boolean",
    int: "number",  # 3.0 and 3 are one number
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


class Expected(NamedTuple):
    """What a row asks for: these calls, or a message where there are none."""

    calls: tuple[ToolCall, ...]
    how: Comparison


def check(row: Row) -> None:
    """Raises RowError for a reference or a comparison that no answer can be held against."""
    read(row)


def score(row: Row, completion: Completion) -> Score:
    """Grades the turn that the text holds; calls within its reasoning are thoughts, not calls."""
    return score_turns(row, [read_turn(completion.text, tools_of(row))])


def score_turns(row: Row, turns: Sequence[ParsedTurn]) -> Score:
    """Grades the calls of all turns and what is said in the last, taken apart already.

    `parts` says whether they could be read at all.
    """
    calls, how = read(row)
    turn = joined(turns)
    if turn.faults:
        return zero(f"cannot be read: {turn.faults[0]}")
    if not calls:
        reason = "a tool is called where a message was expected" if turn.calls else ""
        reason = reason or no_message(row, turn)
        return zero(reason, 1.0) if reason else verdict(1.0)
    if not turn.calls:
        return zero("no tool is called", float(bool(turn.content.strip())))
    return verdict(*match_calls(calls, turn.calls, how))


def read_turn(text: str, tools: Sequence[Mapping[str, Any]]) -> ParsedTurn:
    """Returns an assistant turn taken apart; one too large to be read is nothing but a fault."""
    if len(text) > LONGEST:
        return unreadable(f"{len(text)} characters, at most {LONGEST} are read")
    turn = parse_turn(text, tools)
    if len(turn.calls) > MOST_CALLS:
        return unreadable(f"{len(turn.calls)} calls, at most {MOST_CALLS} are read")
    return turn


def joined(turns: Sequence[ParsedTurn]) -> ParsedTurn:
    """Returns several turns as one: all that was called, what was said last, every fault."""
    calls = tuple(call for turn in turns for call in turn.calls)
    faults = tuple(fault for turn in turns for fault in turn.faults)
    return ParsedTurn("", turns[-1].content if turns else "", calls, faults)


def unreadable(fault: str) -> ParsedTurn:
    """Returns a turn of which nothing could be read."""
    return ParsedTurn("", "", (), (fault,))


def no_message(row: Row, turn: ParsedTurn) -> str:
    """Returns why a turn says nothing to the user, "" if it says something."""
    said = turn.content.split()
    if not said:
        return "empty answer"
    if any(said == message.content.split() for message in row.messages):
        return "the prompt said again"
    return ""


def tools_of(row: Row) -> tuple[Mapping[str, Any], ...]:
    """Returns the tools that an answer's text is read with: the row's, typed as the reference is.

    A text has no types of its own, and what tools say of theirs does not always fit the reference.
    """
    known = {call.name: call.arguments for call in read(row).calls}
    others = [tool for tool in row.tools if function_of(tool).get("name") not in known]
    listed = {function_of(tool).get("name"): function_of(tool) for tool in row.tools}
    return (*others, *(_typed(name, listed.get(name, {}), given) for name, given in known.items()))


def _typed(name: str, tool: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = tool.get("parameters")
    listed = parameters.get("properties") if isinstance(parameters, Mapping) else None
    types = {key: {"type": TYPES[type(value)]} for key, value in given.items() if value is not None}
    properties = {**(listed if isinstance(listed, Mapping) else {}), **types}
    return {"type": "function", "name": name, "parameters": {"properties": properties}}


def zero(reason: str, form: float = 0.0) -> Score:
    """Returns the verdict of an answer that is worth nothing."""
    return verdict(0.0, reason, form)


def verdict(reward: float, reason: str = "", form: float = 1.0) -> Score:
    """Returns the verdict of an answer, its reason short and in plain letters."""
    shown = reason if len(reason) <= 200 else f"{reason[:197]}..."
    plain = shown.encode("ascii", "backslashreplace").decode()
    return Score(reward, "ok", plain, {"format": form, "correct": reward})


def read(row: Row) -> Expected:
    """Returns the reference of a row and how answers are compared with it."""
    action, answers = row.fields.get("expected_action"), row.fields.get("expected_answers")
    if (action is None) == (answers is None):
        raise _bad(row, "expected_action", "the row needs it, or expected_answers, and not both")
    if action is None:
        if not isinstance(answers, list):
            raise _bad(row, "expected_answers", "expected a list of calls")
        calls = [read_call(row, f"expected_answers[{i}]", one) for i, one in enumerate(answers)]
        return Expected(tuple(calls), _comparison(row, COMPARISONS[XLAM]))
    how = COMPARISONS.get(row.agent, COMPARISONS[AGENT])
    return Expected(_action(row, action), _comparison(row, how))


def read_call(row: Row, field: str, call: Any) -> ToolCall:
    """Returns a call of a reference; its arguments are an object, or JSON text that is one."""
    name = call.get("name") if isinstance(call, Mapping) else None
    if not isinstance(name, str) or not name:
        raise _bad(row, field, "expected a call with a name and arguments")
    arguments = call.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments)
        except Unreadable as problem:
            raise _bad(row, f"{field}.arguments", str(problem)) from None
    if not isinstance(arguments, Mapping):
        raise _bad(row, f"{field}.arguments", "expected an object, or JSON text that is one")
    return ToolCall(name, arguments)


def _action(row: Row, action: Any) -> tuple[ToolCall, ...]:
    kind = action.get("type") if isinstance(action, Mapping) else None
    if kind == "message":
        return ()
    if kind == "function_call":
        return (read_call(row, "expected_action", action),)
    if kind != "function_call_batch":
        problem = "is none of message, function_call, function_call_batch"
        raise _bad(row, "expected_action.type", f"{kind!r} {problem}")
    calls = action.get("calls")
    if not isinstance(calls, list) or not 0 < len(calls) <= MOST_CALLS:
        raise _bad(row, "expected_action.calls", f"expected a list of 1 to {MOST_CALLS} calls")
    return tuple(
        read_call(row, f"expected_action.calls[{i}]", call) for i, call in enumerate(calls)
    )


def _comparison(row: Row, how: Comparison) -> Comparison:
    """Returns the comparison of the row's agent with what the row itself says of it."""
    field = "tool_call_comparator_config"
    own = row.fields.get(field, {})
    if not isinstance(own, Mapping):
        raise _bad(row, field, "expected an object")
    for key, value in own.items():
        if key not in SETTINGS:
            raise _bad(row, f"{field}.{key}", f"unknown; known: {', '.join(SETTINGS)}")
        name, allowed = SETTINGS[key]
        if not allowed(value):
            raise _bad(row, f"{field}.{key}", f"{value!r} is not a value that it can have")
        change: dict[str, Any] = {name: MODES[value] if name == "mode" else value}
        how = how._replace(**change)
    return how if how.counted else how._replace(mode="binary", fewer=False, more=True)


def _share(value: Any, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most


def _bad(row: Row, field: str, problem: str) -> RowError:
    return RowError(f"{row.where}: field {field}: {problem}; a good row: {GOOD}")


AGENT = "single_step_tool_use_with_argument_comparison_agent"
XLAM = "xlam_fc_simple_agent"
_ONE_STEP = Comparison(
    similarity=0.1,
    tolerance=1e-6,
    mode="binary",
    fewer=False,
    more=False,
    counted=True,
    extra_arguments=False,
)
COMPARISONS: dict[str, Comparison] = {
    AGENT: _ONE_STEP,
    f"toolcall_schema_{AGENT}": _ONE_STEP,
    f"search_pivot_{AGENT}": _ONE_STEP._replace(similarity=0.3),
    f"parallel_tool_calls_{AGENT}": _ONE_STEP._replace(mode="f1", fewer=True, more=True),
    XLAM: _ONE_STEP._replace(similarity=None, tolerance=0.0, extra_arguments=True),
}
MODES = {"binary_strict": "binary", "fractional": "fraction", "f1": "f1"}
# The published names of a comparison's settings, ours, and what each can be.
SETTINGS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "word_count_similarity_threshold": ("similarity", lambda value: _share(value, 0.5)),
    "floating_point_comparison_threshold": ("tolerance", lambda value: _share(value, 1.0)),
    "parallel_tool_call_reward_mode": ("mode", lambda value: value in (*MODES,)),
    "allow_subset": ("fewer", lambda value: isinstance(value, bool)),
    "allow_superset": ("more", lambda value: isinstance(value, bool)),
    "parallel_tool_call_rewarding": ("counted", lambda value: isinstance(value, bool)),
}
