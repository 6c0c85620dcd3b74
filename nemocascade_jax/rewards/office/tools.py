"""The 27 tools by their published names, and what happens when one is called."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from nemocascade_jax.rewards.office import analytics, calendar, customers, mail, tasks
from nemocascade_jax.rewards.office.tables import Office, ToolError
from nemocascade_jax.rows.records import ToolCall

NUMBERS = ("page", "page_size")  # arguments that are whole numbers; every other is text
LARGEST_NUMBER = 10**9


class Tool(NamedTuple):
    """A tool: what it runs, what it says it does, the arguments it needs and those it may have."""

    run: Callable[..., tuple[Office, Any]]
    about: str
    needs: str = ""
    may_have: str = ""


class Answer(NamedTuple):
    """The office after a call, what the tool says, and whether that is an error."""

    office: Office
    text: str
    failed: bool = False


def call_tool(office: Office, call: ToolCall) -> Answer:
    """Returns what a call does; one that cannot be done changes nothing and says why."""
    try:
        after, result = _arguments(call).run(office, **call.arguments)
    except ToolError as error:
        return Answer(office, f"Error: {error}", failed=True)
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    return Answer(after, text)


def _arguments(call: ToolCall) -> Tool:
    """Returns the tool of a call whose arguments are all known, all there, and of the right type."""
    tool = TOOLS.get(call.name)
    if tool is None:
        raise ToolError(f"there is no tool {call.name[:60]!r}.")
    needed, known = tool.needs.split(), (tool.needs + " " + tool.may_have).split()
    for name, value in call.arguments.items():
        if name not in known:
            raise ToolError(f"{call.name} has no argument {name[:60]!r}.")
        if name not in NUMBERS and not isinstance(value, str):
            raise ToolError(f"argument {name} must be text.")
        if name in NUMBERS and not _is_number(value):
            raise ToolError(f"argument {name} must be a whole number.")
    missing = [name for name in needed if not call.arguments.get(name)]
    if missing:
        raise ToolError(f"{missing[0]} not provided.")
    return tool


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER


@functools.cache
def definitions() -> tuple[Mapping[str, Any], ...]:
    """Returns the tools as rows list them (paper 6.1)."""
    return tuple(
        {
            "type": "function",
            "name": name,
            "description": tool.about,
            "parameters": {
                "type": "object",
                "properties": {
                    argument: {"type": "integer" if argument in NUMBERS else "string"}
                    for argument in (tool.needs + " " + tool.may_have).split()
                },
                "required": tool.needs.split(),
                "additionalProperties": False,
            },
            "strict": False,
        }
        for name, tool in TOOLS.items()
    )


_PAGES = "page page_size"
_DAYS = "time_min time_max"
TOOLS: dict[str, Tool] = {
    "company_directory_find_email_address": Tool(
        mail.find_address, "Looks up addresses of the company by a name.", "", "name"
    ),
    "email_get_email_information_by_id": Tool(
        mail.get_email, "Reads one field of a mail.", "email_id field"
    ),
    "email_search_emails": Tool(
        mail.search_emails,
        "Lists the mails that hold all words of a query and were sent within some days.",
        "",
        f"query date_min date_max {_PAGES}",
    ),
    "email_send_email": Tool(mail.send_email, "Sends a mail.", "recipient subject body"),
    "email_delete_email": Tool(mail.delete_email, "Removes a mail.", "email_id"),
    "email_forward_email": Tool(mail.forward_email, "Sends a mail on.", "email_id recipient"),
    "email_reply_email": Tool(mail.reply_email, "Answers a mail.", "email_id body"),
    "calendar_get_event_information_by_id": Tool(
        calendar.get_event, "Reads one field of an event.", "event_id field"
    ),
    "calendar_search_events": Tool(
        calendar.search_events,
        "Lists the events whose name or participant holds a text and that start within a time.",
        "",
        f"query {_DAYS} {_PAGES}",
    ),
    "calendar_create_event": Tool(
        calendar.create_event,
        "Adds an event: event_start is YYYY-MM-DD HH:MM:SS, duration counts minutes.",
        "event_name participant_email event_start duration",
    ),
    "calendar_delete_event": Tool(calendar.delete_event, "Removes an event.", "event_id"),
    "calendar_update_event": Tool(
        calendar.update_event, "Sets one field of an event.", "event_id field new_value"
    ),
    "analytics_get_visitor_information_by_id": Tool(
        analytics.get_visitor, "Lists the visits of a visitor of the website.", "visitor_id"
    ),
    "analytics_create_plot": Tool(
        analytics.create_plot,
        f"Plots a value over some days. value_to_plot: {', '.join(analytics.PLOTTED)}. "
        f"plot_type: {', '.join(analytics.PLOT_TYPES)}.",
        f"{_DAYS} value_to_plot plot_type",
    ),
    "analytics_total_visits_count": Tool(
        analytics.count_visits, "Counts the visits of each day.", "", _DAYS
    ),
    "analytics_engaged_users_count": Tool(
        analytics.count_engaged, "Counts the engaged visitors of each day.", "", _DAYS
    ),
    "analytics_traffic_source_count": Tool(
        analytics.count_source,
        "Counts the visits of each day that came from a source.",
        "",
        f"{_DAYS} traffic_source",
    ),
    "analytics_get_average_session_duration": Tool(
        analytics.average_duration, "Averages the seconds of a session, day by day.", "", _DAYS
    ),
    "project_management_get_task_information_by_id": Tool(
        tasks.get_task, "Reads one field of a task.", "task_id field"
    ),
    "project_management_search_tasks": Tool(
        tasks.search_tasks,
        "Lists the tasks that hold every given text in its column.",
        "",
        "task_name assigned_to_email list_name due_date board",
    ),
    "project_management_create_task": Tool(
        tasks.create_task,
        f"Adds a task. list_name: {', '.join(tasks.LISTS)}. board: {', '.join(tasks.BOARDS)}.",
        "task_name assigned_to_email list_name due_date board",
    ),
    "project_management_delete_task": Tool(tasks.delete_task, "Removes a task.", "task_id"),
    "project_management_update_task": Tool(
        tasks.update_task, "Sets one field of a task.", "task_id field new_value"
    ),
    "customer_relationship_manager_search_customers": Tool(
        customers.search_customers,
        "Lists the customers that hold every given text in its column, dates between bounds.",
        "",
        "customer_name customer_email product_interest status assigned_to_email "
        "last_contact_date_min last_contact_date_max follow_up_by_min follow_up_by_max " + _PAGES,
    ),
    "customer_relationship_manager_update_customer": Tool(
        customers.update_customer, "Sets one field of a customer.", "customer_id field new_value"
    ),
    "customer_relationship_manager_add_customer": Tool(
        customers.add_customer,
        f"Adds a customer. status: {', '.join(customers.STATUSES)}. "
        f"product_interest: {', '.join(customers.PRODUCTS)}.",
        "customer_name assigned_to_email status",
        "customer_email customer_phone last_contact_date product_interest notes follow_up_by",
    ),
    "customer_relationship_manager_delete_customer": Tool(
        customers.delete_customer, "Removes a customer.", "customer_id"
    ),
}
