"""The verifier of the workplace assistant: the office ends as the reference leaves it (paper 2.6).

All calls of an answer, in order, and those of `ground_truth` are replayed from the same office; a call
that fails changes nothing. An empty reference means that nothing is to be changed, and then the answer
has to say something. A row whose reference fails in its office is refused: an answer that does nothing
would be right.

`office_data` of a row names a folder of released tables. Without it the office is the invented one,
whose records have the same ids, so that most references to released records replay; what else is in
them, a policy can look up only in the tables that its rows were written for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards.office.seed import invented_office, load_office
from nemocascade_jax.rewards.office.tables import Office, same_state
from nemocascade_jax.rewards.office.tools import call_tool, definitions
from nemocascade_jax.rewards.tool_calls import (
    joined,
    no_message,
    read_call,
    read_turn,
    verdict,
    zero,
)
from nemocascade_jax.rows.messages import ParsedTurn
from nemocascade_jax.rows.records import Completion, Row, RowError, Score, ToolCall

AGENT = "workplace_assistant_simple_agent"
GOOD = (
    '{"ground_truth": [{"name": "email_delete_email", "arguments": "{\\"email_id\\": '
    '\\"00000012\\"}"}], "environment_name": "workbench"}'
)


def check(row: Row) -> None:
    """Raises RowError for a reference that cannot be read or fails, and for an office that is not there."""
    expected_state(row)


def score(row: Row, completion: Completion) -> Score:
    """Grades the calls of one text, which may be all an answer has."""
    return score_turns(row, [read_turn(completion.text, definitions())])


def score_turns(row: Row, turns: Sequence[ParsedTurn]) -> Score:
    """Grades the calls of all turns of an answer, and what is said in the last.

    A call that could not be read was answered with an error; only in the last turn it is a fault.
    """
    wanted, start = expected_state(row), starting_office(row)
    if not turns:
        return zero("empty answer")
    if turns[-1].faults:
        return zero(f"cannot be read: {turns[-1].faults[0]}")
    found = replay(start, joined(turns).calls)
    if not same_state(found, wanted):
        return zero("the office is not as it was to be", 1.0)
    fault = no_message(row, turns[-1]) if same_state(wanted, start) else ""
    return zero(fault) if fault else verdict(1.0)


def replay(office: Office, calls: Iterable[ToolCall]) -> Office:
    """Returns the office after some calls; one that fails changes nothing."""
    for call in calls:
        office = call_tool(office, call).office
    return office


def expected_state(row: Row) -> Office:
    """Returns the office as the row's reference leaves it."""
    reference = row.fields.get("ground_truth")
    if not isinstance(reference, list):
        raise _bad(row, "ground_truth", "expected a list of calls, empty to change nothing")
    office = starting_office(row)
    for index, entry in enumerate(reference):
        answer = call_tool(office, read_call(row, f"ground_truth[{index}]", entry))
        if answer.failed:
            remedy = "name the tables that it was written for in office_data"
            raise _bad(row, f"ground_truth[{index}]", f"fails: {answer.text}; {remedy}")
        office = answer.office
    return office


def starting_office(row: Row) -> Office:
    """Returns the office that the row's trajectories start from."""
    folder = row.fields.get("office_data")
    if folder is None:
        return invented_office()
    if not isinstance(folder, str):
        raise _bad(row, "office_data", "expected the path of a folder")
    try:
        return load_office(folder)
    except InputError as error:
        raise _bad(row, "office_data", str(error)) from None


def _bad(row: Row, field: str, problem: str) -> RowError:
    return RowError(f"{row.where}: field {field}: {problem}; a good row: {GOOD}")
