"""Tool-using prompts in the published row schemas (paper 6.1): small errands in an invented office.

`workplace` rows are graded by what the office looks like afterwards, `single_step` rows by the call
itself. Every errand says all that its call needs; one of them asks a question, and nothing is to be
called. A demonstrator slips in an argument at rate `slip`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from nemocascade_jax.rows.generators import drawing
from nemocascade_jax.rows.messages import write_calls
from nemocascade_jax.rows.records import Conversation, Message, Row, ToolCall
from nemocascade_jax.rows.schema import parse_row

AGENTS = {
    "workplace": "workplace_assistant_simple_agent",
    "single_step": "single_step_tool_use_with_argument_comparison_agent",
}
PEOPLE = ("ada.brandt", "bruno.keita", "carla.nowak", "elif.moreau", "greta.ivers")
SUBJECTS = ("Lunch", "Budget", "Travel plan", "Weekly news", "Parking")
BODIES = ("See you at noon.", "Please have a look.", "It is done.", "Can we move it by a day?")
TITLES = ("Write the summary", "Check the numbers", "Order new chairs", "Clean the backlog")
BOARDS = ("Back end", "Front end", "Design")
VALUES = ("total_visits", "user_engaged", "visits_direct")
PLOTS = ("bar", "line", "scatter")
QUESTIONS = ("a roadmap", "an audit", "a backlog", "a survey", "a kick-off")
NUMBERS = 200  # every table of the office has this many records or more
SHORTER = ("15", "20", "25")  # minutes, as no event of the office has them

# What a tool does, and what its arguments mean; all are text.
TOOLS: dict[str, tuple[str, tuple[str, ...]]] = {
    "email_send_email": ("Sends a mail.", ("recipient", "subject", "body")),
    "email_delete_email": ("Removes a mail.", ("email_id",)),
    "calendar_update_event": ("Sets one field of an event.", ("event_id", "field", "new_value")),
    "project_management_create_task": (
        "Adds a task.",
        ("task_name", "assigned_to_email", "list_name", "due_date", "board"),
    ),
    "analytics_create_plot": (
        "Plots a value over some days.",
        ("time_min", "time_max", "value_to_plot", "plot_type"),
    ),
}


class Errand(NamedTuple):
    """A prompt and the call it asks for; without a tool it asks for an answer."""

    prompt: str
    tool: str
    arguments: dict[str, str]


def generate(split: str, count: int, seed: int, kind: str = "workplace") -> Iterator[Row]:
    """Yields `count` rows of distinct prompts; `kind` says how they are graded."""
    for index, errand in enumerate(draw_errands(split, count, seed)):
        line = file_object(index, errand, kind)
        yield parse_row(line, f"office:{split}:{index}", known=AGENTS.values())


def file_object(index: int, errand: Errand, kind: str) -> dict[str, Any]:
    """Returns the line of a file that holds the errand."""
    arguments = json.dumps(errand.arguments)
    call = {"name": errand.tool, "arguments": arguments}
    if kind == "workplace":
        fields: dict[str, Any] = {
            "ground_truth": [call] if errand.tool else [],
            "environment_name": "workbench",
            "category": "generated_office",
        }
    elif errand.tool:
        fields = {"expected_action": {"type": "function_call", **call}}
    else:
        fields = {"expected_action": {"type": "message", "content": "An answer."}}
    line = drawing.file_object(index, errand.prompt, AGENTS[kind], "generated_office", **fields)
    line["responses_create_params"]["tools"] = [_definition(name) for name in TOOLS]
    return line


def demonstrations(split: str, count: int, seed: int, slip: float) -> Iterator[Conversation]:
    """Yields the prompts of `generate`, carried out by one who mistakes an argument at rate `slip`."""
    drawing.check_slip("office", slip)
    rng = random.Random(f"office answers {split} {seed}")
    for index, errand in enumerate(draw_errands(split, count, seed)):
        wrong = rng.choice(sorted(errand.arguments)) if rng.random() < slip and errand.tool else ""
        arguments = {k: "unknown" if k == wrong else v for k, v in errand.arguments.items()}
        turns = (Message("user", errand.prompt), Message("assistant", answer(errand, arguments)))
        yield Conversation(turns, "tool_use", f"office:{split}:{index}")


def answer(errand: Errand, arguments: dict[str, str]) -> str:
    """Returns the turn that carries an errand out, in the chat format (paper 1.4)."""
    if not errand.tool:
        return "It helps a team to agree on what comes next."
    return write_calls([ToolCall(errand.tool, arguments)])


def _definition(name: str) -> dict[str, Any]:
    about, arguments = TOOLS[name]
    return {
        "type": "function",
        "name": name,
        "description": about,
        "parameters": {
            "type": "object",
            "properties": {argument: {"type": "string"} for argument in arguments},
            "required": list(arguments),
        },
        "strict": False,
    }


def draw_errands(split: str, count: int, seed: int) -> Iterator[Errand]:
    """Yields `count` errands of distinct prompts."""
    return drawing.distinct("office", _draw, split, count, seed)


def _draw(rng: random.Random) -> Errand:
    return rng.choice((_send, _delete, _shorten, _create, _plot, _ask))(rng)


def _send(rng: random.Random) -> Errand:
    to, subject, body = _address(rng), rng.choice(SUBJECTS), rng.choice(BODIES)
    prompt = f"Send a mail to {to}. Subject: {subject}. Text: {body}"
    return Errand(prompt, "email_send_email", {"recipient": to, "subject": subject, "body": body})


def _delete(rng: random.Random) -> Errand:
    number = _number(rng)
    return Errand(f"Delete mail {number}.", "email_delete_email", {"email_id": number})


def _shorten(rng: random.Random) -> Errand:
    number, minutes = _number(rng), rng.choice(SHORTER)
    arguments = {"event_id": number, "field": "duration", "new_value": minutes}
    return Errand(
        f"Make event {number} {minutes} minutes long.", "calendar_update_event", arguments
    )


def _create(rng: random.Random) -> Errand:
    title, to, board, day = rng.choice(TITLES), _address(rng), rng.choice(BOARDS), _day(rng)
    arguments = {
        "task_name": title,
        "assigned_to_email": to,
        "list_name": "Backlog",
        "due_date": day,
        "board": board,
    }
    prompt = f"Put a task on the {board} board, list Backlog, due {day}, for {to}: {title}"
    return Errand(prompt, "project_management_create_task", arguments)


def _plot(rng: random.Random) -> Errand:
    value, kind, days = rng.choice(VALUES), rng.choice(PLOTS), sorted((_day(rng), _day(rng)))
    arguments = {
        "time_min": days[0],
        "time_max": days[1],
        "value_to_plot": value,
        "plot_type": kind,
    }
    prompt = f"Plot {value} from {days[0]} to {days[1]} as a {kind} plot."
    return Errand(prompt, "analytics_create_plot", arguments)


def _ask(rng: random.Random) -> Errand:
    length = rng.choice(("one sentence", "two sentences", "ten words", "plain words"))
    return Errand(f"What is {rng.choice(QUESTIONS)} good for? Answer in {length}.", "", {})


def _address(rng: random.Random) -> str:
    return f"{rng.choice(PEOPLE)}@fernhill.example"


def _number(rng: random.Random) -> str:
    return str(rng.randrange(NUMBERS)).zfill(8)


def _day(rng: random.Random) -> str:
    return f"2031-{rng.randint(2, 3):02}-{rng.randint(1, 28):02}"
