"""The tools of project management."""

from __future__ import annotations

from typing import Any

from nemocascade_jax.rewards.office.tables import (
    Office,
    ToolError,
    add,
    changed,
    field_of,
    find,
    has,
    next_id,
    one_of,
    without,
)

ID = "task_id"
LISTS = ("Backlog", "In Progress", "In Review", "Completed")
BOARDS = ("Back end", "Front end", "Design")


def get_task(office: Office, task_id: str, field: str) -> tuple[Office, Any]:
    """Returns one field of a task."""
    return office, field_of(find(office.tasks, ID, task_id, "Task"), field)


def search_tasks(
    office: Office,
    task_name: str = "",
    assigned_to_email: str = "",
    list_name: str = "",
    due_date: str = "",
    board: str = "",
) -> tuple[Office, Any]:
    """Returns the tasks that hold every text in its column; the address must be the whole one."""
    texts = {"task_name": task_name, "list_name": list_name, "due_date": due_date, "board": board}
    if not any((*texts.values(), assigned_to_email)):
        raise ToolError("No search parameters provided.")
    if assigned_to_email and "@" not in assigned_to_email:
        raise ToolError("Invalid email format for assigned_to_email.")
    return office, [
        task
        for task in office.tasks
        if all(has(task, column, text) for column, text in texts.items())
        and assigned_to_email.lower() in ("", task["assigned_to_email"].lower())
    ]


def create_task(
    office: Office,
    task_name: str,
    assigned_to_email: str,
    list_name: str,
    due_date: str,
    board: str,
) -> tuple[Office, Any]:
    """Adds a task and returns its id."""
    task = {
        ID: next_id(office.tasks, ID),
        "task_name": task_name,
        "assigned_to_email": assigned_to_email.lower(),
        "list_name": list_name,
        "due_date": due_date,
        "board": board,
    }
    for field, value in task.items():
        _check(office, field, value)
    return office._replace(tasks=add(office.tasks, task)), task[ID]


def delete_task(office: Office, task_id: str) -> tuple[Office, Any]:
    """Takes a task away."""
    task = find(office.tasks, ID, task_id, "Task")
    return office._replace(tasks=without(office.tasks, task)), "Task deleted successfully."


def update_task(office: Office, task_id: str, field: str, new_value: str) -> tuple[Office, Any]:
    """Sets one field of a task."""
    new_value = new_value.lower() if field == "assigned_to_email" else new_value
    _check(office, field, new_value)
    task = find(office.tasks, ID, task_id, "Task")
    one_of(field, tuple(task)[1:], "Field")
    tasks = changed(office.tasks, task, field, new_value)
    return office._replace(tasks=tasks), "Task updated successfully."


def _check(office: Office, field: str, value: str) -> None:
    """Raises ToolError for a list, a board or an address that there is not."""
    if field == "list_name":
        one_of(value, LISTS, "List")
    elif field == "board":
        one_of(value, BOARDS, "Board")
    elif field == "assigned_to_email" and value not in {
        task["assigned_to_email"].lower() for task in office.tasks
    }:
        raise ToolError("Assignee email not valid. Choose one of the team members.")
