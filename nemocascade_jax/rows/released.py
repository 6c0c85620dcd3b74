"""The rows of the released RL data and of its neighbours, by the agent that they name (paper 6.1)."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from typing import Any

from nemocascade_jax.rows import schema
from nemocascade_jax.rows.records import Row

GOOD_SWE = (
    '{"responses_create_params": {"input": [], "metadata": {"instance_id": "demo__demo-1", '
    '"instance_dict": "{}"}}, "agent_ref": {"name": "swe_agents_train"}}'
)
SWE_METADATA = frozenset({"instance_id", "problem_statement", "instance_dict"})
TEST_LISTS = ("FAIL_TO_PASS", "PASS_TO_PASS")


def parse_released(
    obj: Mapping[str, Any],
    where: str,
    *,
    known: Container[str] = (),
    prompt_needed: bool = True,
) -> Row:
    """Returns a row whose agent is the one it names, if that is one of AGENTS or of `known`.

    So a row of an agent that has no verifier yet is read rightly and then refused by its agent's
    name, instead of being graded by another domain whose keys it happens to have.
    """
    ref, params = obj.get("agent_ref"), obj.get("responses_create_params")
    name = ref.get("name") if isinstance(ref, Mapping) else None
    metadata = params.get("metadata") if isinstance(params, Mapping) else None
    if _is_swe(name, metadata):
        name = name or "swe_agents_train"
        obj = {**_swe_object(obj, metadata or {}, where), "agent_ref": {"name": name}}
    known = AGENTS if isinstance(name, str) and name in AGENTS else known
    return schema.parse_row(obj, where, known=known, prompt_needed=prompt_needed)


def _is_swe(name: Any, metadata: Any) -> bool:
    if isinstance(name, str) and name:
        return name.startswith(schema.NO_PROMPT)
    return isinstance(metadata, Mapping) and metadata.keys() >= SWE_METADATA


def _swe_object(obj: Mapping[str, Any], metadata: Any, where: str) -> dict[str, Any]:
    """Returns a repository task with its `metadata` among the verifier's fields, JSON texts read."""
    field = "responses_create_params.metadata"
    if not isinstance(metadata, Mapping):
        raise schema.bad(where, field, "expected an object", GOOD_SWE)
    inner = schema.strip_nulls(dict(metadata))
    if isinstance(inner.get("instance_dict"), str):
        place = f"{where}: field {field}.instance_dict"
        inner["instance_dict"] = schema.parse_line(inner["instance_dict"].encode(), place, GOOD_SWE)
    new = {**obj, "metadata": inner}
    for key in TEST_LISTS:
        if isinstance(obj.get(key), str):
            try:
                new[key] = json.loads(obj[key])
            except (json.JSONDecodeError, RecursionError):
                raise schema.bad(where, key, "a text that is not JSON", GOOD_SWE) from None
        if not _is_names(new.get(key) or []):
            raise schema.bad(where, key, "expected a list of test names", GOOD_SWE)
    if all(obj.get(key) is None for key in ("id", "uuid", "hash_id")):
        new["id"] = inner.get("instance_id") or obj.get("instance_id")
    return new


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


# Agents of the released subsets, then of the stages that were not released; "swe_agents_*" aside.
AGENTS: dict[str, str] = {
    "instruction_following_simple_agent": "IF-RL, multi-domain-RL, MOPD",
    "mcqa_simple_agent": "multi-domain-RL, MOPD",
    "workplace_assistant_simple_agent": "multi-domain-RL, MOPD",
    "structured_outputs_simple_agent": "multi-domain-RL, MOPD",
    "math_with_judge_simple_agent": "MOPD",
    "code_gen_simple_agent": "code",
    "genrm_simple_agent": "RLHF",
    "genrm_simple_agent_reasoning_off": "RLHF",
    "lc_judge_simple_agent": "long context",
    "equivalence_llm_judge_simple_agent": "long context",
    "swerl_gen_simple_agent": "patches",
    "swerl_llm_judge_simple_agent": "patches",
}
