"""One line of a file as a record: strict JSON, the RL row schema, the SFT row schema (paper 6)."""

from __future__ import annotations

import difflib
import json
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any

from nemocascade_jax.rows.messages import shown
from nemocascade_jax.rows.records import Conversation, Message, Row, RowError
from nemocascade_jax.rows.turns import read_turns

GOOD_ROW = (
    '{"prompt": "Describe rain. Use no commas.", "instruction_id_list": ["punctuation:no_comma"], '
    '"kwargs": [null], "responses_create_params": {"input": [{"role": "user", "content": "Describe '
    'rain. Use no commas."}]}, "agent_ref": {"name": "instruction_following_simple_agent"}}'
)
GOOD_CONVERSATION = (
    '{"domain": "math", "messages": [{"role": "user", "content": "1+1?"}, '
    '{"role": "assistant", "content": "<think>\\nadd\\n</think>\\n2"}]}'
)
# Where a row goes when it names no agent: the one agent whose keys it has all of, and none of the
# keys that would make it another's.
AGENT_KEYS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    agent: (frozenset(needs.split()), frozenset(lacks.split()))
    for agent, needs, lacks in (
        ("instruction_following_simple_agent", "instruction_id_list kwargs", ""),
        ("mcqa_simple_agent", "options expected_answer", "instance_id"),
        ("swerl_llm_judge_simple_agent", "options expected_answer instance_id", ""),
        ("workplace_assistant_simple_agent", "ground_truth environment_name", ""),
        ("structured_outputs_simple_agent", "schema_str", ""),
        ("math_with_judge_simple_agent", "question expected_answer", "options context_length"),
        ("code_gen_simple_agent", "unit_tests", ""),
        ("swerl_gen_simple_agent", "instance mode", ""),
        ("single_step_tool_use_with_argument_comparison_agent", "expected_action", "pivot_tags"),
        ("xlam_fc_simple_agent", "expected_answers", ""),
    )
}
NO_PROMPT = ("swe_agents_",)  # agents that write the prompt themselves; their `input` is empty
NOT_FIELDS = ("responses_create_params", "agent_ref", "verifier_metadata", "completion", "response")


class UnknownRow(RowError):
    """A row that no environment knows."""


def bad(where: str, field: str, problem: str, good: str) -> RowError:
    """Returns the error of a row: where, which field, what is wrong, and a row that is right."""
    return RowError(f"{where}: field {field}: {problem}; a good row: {good}")


def read_lines(path: str | Path, good: str) -> Iterator[tuple[int, bytes]]:
    """Yields (line number, bytes) of a file's rows, without a byte-order mark and line ends."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise RowError(f"{path}: cannot be read: {error.strerror}") from None
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines:
        raise RowError(f"{path}: the file holds no row; a good row: {good}")
    for number, line in enumerate(lines, start=1):
        yield number, line.removesuffix(b"\r")


def parse_line(line: bytes, where: str, good: str = GOOD_ROW) -> dict[str, Any]:
    """Returns one JSON object; broken or ambiguous JSON raises RowError."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise bad(where, twice, "the key is there twice", good)
        return table

    def finite(word: str) -> Any:
        raise bad(where, "(line)", f"{word} is not JSON", good)

    try:
        value = json.loads(line.decode(), object_pairs_hook=unique, parse_constant=finite)
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate cannot be written again
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        raise bad(where, "(line)", f"not UTF-8 ({error.reason})", good) from None
    except json.JSONDecodeError as error:
        problem = f"broken JSON at column {error.colno} ({error.msg})" if line.strip() else "blank"
        raise bad(where, "(line)", problem, good) from None
    except RecursionError:
        raise bad(where, "(line)", "JSON nested too deep", good) from None
    except RowError:
        raise
    except ValueError as error:  # a number with more digits than Python converts
        raise bad(where, "(line)", str(error).split(";")[0], good) from None
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise bad(where, "(line)", f"expected a JSON object, got a {kind}", good)
    return value


def read_jsonl(path: str | Path, good: str = GOOD_ROW) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of a JSON Lines file; the first bad line raises RowError."""
    for number, line in read_lines(path, good):
        yield number, parse_line(line, f"{path}:{number}", good)


def strip_nulls(value: Any) -> Any:
    """Returns `value` without null entries of objects, at any depth; a list keeps its nulls."""
    if isinstance(value, dict):
        return {key: strip_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [strip_nulls(entry) for entry in value]
    return value


def parse_row(
    obj: Mapping[str, Any], where: str, *, known: Container[str] = (), prompt_needed: bool = True
) -> Row:
    """Returns an RL row; verifier fields stand at the top level or under `verifier_metadata`.

    An agent of `known` is taken as named; another one's row goes where its keys fit. A row that is
    only graded needs no prompt: without `prompt_needed` it may be absent or empty.
    """
    params = obj.get("responses_create_params")
    if "_hf_placeholder" in obj or (isinstance(params, Mapping) and "_hf_placeholder" in params):
        problem = "the row is a placeholder whose text must first be filled in from its source"
        raise bad(where, "_hf_placeholder", problem, GOOD_ROW)
    fields = _fields(obj, where)
    agent = _agent(obj, fields, where, known)
    if params is None and not prompt_needed:
        params = {}
    if not isinstance(params, Mapping):
        problem = "missing" if params is None else f"expected an object, got {shown(params)}"
        raise bad(where, "responses_create_params", problem, GOOD_ROW)
    prompt_needed = prompt_needed and not agent.startswith(NO_PROMPT)
    system = params.get("instructions")
    if system is not None and not isinstance(system, str):
        problem = f"expected text, got {shown(system)}"
        raise bad(where, "responses_create_params.instructions", problem, GOOD_ROW)
    messages = _input(params.get("input"), where, prompt_needed)
    if system:
        messages = (Message("system", system), *messages)
    tools = parse_tools(params.get("tools"), where, "responses_create_params.tools", GOOD_ROW)
    name = next((obj[key] for key in ("id", "uuid", "hash_id") if obj.get(key) is not None), where)
    if not isinstance(name, str | int):
        raise bad(where, "id", f"expected text or a whole number, got {shown(name)}", GOOD_ROW)
    return Row(str(name), agent, messages, fields, where, tools)


def parse_conversation(obj: Mapping[str, Any], where: str) -> Conversation:
    """Returns an SFT example; it holds at least one assistant turn."""
    entries = obj.get("messages")
    if not isinstance(entries, list) or not entries:
        problem = "missing" if entries is None else "expected a list of {role, content}, not empty"
        raise bad(where, "messages", problem, GOOD_CONVERSATION)
    messages = _messages(entries, where, "messages", GOOD_CONVERSATION)
    if not any(message.role == "assistant" for message in messages):
        raise bad(where, "messages", "no assistant turn to learn from", GOOD_CONVERSATION)
    domain = obj.get("domain")
    if domain is not None and not isinstance(domain, str):
        raise bad(where, "domain", f"expected text, got {shown(domain)}", GOOD_CONVERSATION)
    tools = parse_tools(obj.get("tools"), where, "tools", GOOD_CONVERSATION)
    return Conversation(messages, domain or "unnamed", where, tools)


def _fields(obj: Mapping[str, Any], where: str) -> dict[str, Any]:
    nested = obj.get("verifier_metadata")
    if nested is not None and not isinstance(nested, Mapping):
        raise bad(where, "verifier_metadata", f"expected an object, got {shown(nested)}", GOOD_ROW)
    top = strip_nulls({key: obj[key] for key in obj if key not in NOT_FIELDS})
    deep = strip_nulls(dict(nested or {}))
    for key in deep:
        if key in top and top[key] != deep[key]:
            problem = "stands at the top level and under verifier_metadata, and the two differ"
            raise bad(where, key, problem, GOOD_ROW)
    return {**top, **deep}


def _agent(
    obj: Mapping[str, Any], fields: Mapping[str, Any], where: str, known: Container[str]
) -> str:
    """Returns the agent a row names, or the only one whose keys it has."""
    ref = obj.get("agent_ref")
    if ref is not None and not isinstance(ref, Mapping):
        raise bad(where, "agent_ref", f"expected an object, got {shown(ref)}", GOOD_ROW)
    name = ref.get("name") if ref else None
    if name is not None and not isinstance(name, str):
        raise bad(where, "agent_ref.name", f"expected text, got {shown(name)}", GOOD_ROW)
    if name and (name in known or name in AGENT_KEYS or name.startswith(NO_PROMPT)):
        return name
    fits = [
        agent
        for agent, (needs, lacks) in AGENT_KEYS.items()
        if needs <= fields.keys() and not lacks & fields.keys()
    ]
    if len(fits) == 1:
        return fits[0]
    what = "missing" if name is None else f"unknown agent {name!r}"
    close = difflib.get_close_matches(name or "", AGENT_KEYS, n=1)
    hint = f", did you mean {close[0]!r}?" if close else ""
    said = "no domain has" if not fits else f"{len(fits)} domains have"
    keys = ", ".join(sorted(fields)) or "none"
    problem = f"{what}{hint} and {said} the row's keys ({keys})"
    raise UnknownRow(str(bad(where, "agent_ref.name", problem, GOOD_ROW)))


def _input(value: Any, where: str, needed: bool) -> tuple[Message, ...]:
    field = "responses_create_params.input"
    if value is None or value in ("", []):
        if not needed:
            return ()
        problem = "missing" if value is None else "empty"
        raise bad(where, field, problem, GOOD_ROW)
    if isinstance(value, str):
        return (Message("user", value),)
    if isinstance(value, list):
        return _messages(value, where, field, GOOD_ROW)
    raise bad(where, field, f"expected text or a list of messages, got {shown(value)}", GOOD_ROW)


def _messages(entries: list[Any], where: str, field: str, good: str) -> tuple[Message, ...]:
    try:
        return read_turns(entries, where, field)
    except RowError as error:
        raise RowError(f"{error}; a good row: {good}") from None


def parse_tools(value: Any, where: str, field: str, good: str) -> tuple[Mapping[str, Any], ...]:
    """Returns the tools that a row lists, in either form; absent and null are none."""
    tools = strip_nulls(value or [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise bad(where, field, "expected a list of objects", good)
    return tuple(tools)
