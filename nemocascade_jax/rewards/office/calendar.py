"""The tools of the calendar."""

from __future__ import annotations

from typing import Any

from nemocascade_jax.rewards.office.tables import (
    ID_DIGITS,
    Office,
    Record,
    ToolError,
    add,
    changed,
    field_of,
    find,
    has,
    moment,
    next_id,
    one_of,
    page_of,
    without,
)

ID = "event_id"
CHANGEABLE = ("event_name", "participant_email", "event_start", "duration")


def get_event(office: Office, event_id: str, field: str) -> tuple[Office, Any]:
    """Returns one field of an event."""
    return office, field_of(_event(office, event_id), field)


def search_events(
    office: Office,
    query: str = "",
    time_min: str = "",
    time_max: str = "",
    page: int = 1,
    page_size: int = 5,
) -> tuple[Office, Any]:
    """Returns the events that start within a time and hold a text, the latest first."""
    low = moment(time_min, "time_min") if time_min else None
    high = moment(time_max, "time_max") if time_max else None
    found = []
    for event in office.events:
        start = moment(event["event_start"], "event_start")
        if (low is None or start >= low) and (high is None or start <= high):
            match = has(event, "event_name", query) or has(event, "participant_email", query)
            found += [event] if match else []
    found.sort(key=lambda event: moment(event["event_start"], "event_start"), reverse=True)
    return office, page_of(found, "events", page, page_size)


def create_event(
    office: Office, event_name: str, participant_email: str, event_start: str, duration: str
) -> tuple[Office, Any]:
    """Adds an event and returns its id."""
    moment(event_start, "event_start")
    _check_duration(duration)
    event = {
        ID: next_id(office.events, ID),
        "event_name": event_name,
        "participant_email": participant_email.lower(),
        "event_start": event_start,
        "duration": duration,
    }
    return office._replace(events=add(office.events, event)), event[ID]


def delete_event(office: Office, event_id: str) -> tuple[Office, Any]:
    """Takes an event away."""
    event = _event(office, event_id)
    return office._replace(events=without(office.events, event)), "Event deleted successfully."


def update_event(office: Office, event_id: str, field: str, new_value: str) -> tuple[Office, Any]:
    """Sets one field of an event."""
    event = _event(office, event_id)
    one_of(field, CHANGEABLE, "Field")
    if field == "event_start":
        moment(new_value, field)
    elif field == "duration":
        _check_duration(new_value)
    elif field == "participant_email":
        new_value = new_value.lower()
    events = changed(office.events, event, field, new_value)
    return office._replace(events=events), "Event updated successfully."


def _event(office: Office, event_id: str) -> Record:
    if len(event_id) != ID_DIGITS or not event_id.isdecimal():
        raise ToolError(f"Invalid event ID format. Expected {ID_DIGITS} digits.")
    return find(office.events, ID, event_id, "Event")


def _check_duration(text: str) -> None:
    if not (text.isascii() and text.isdecimal() and len(text) <= ID_DIGITS and int(text)):
        raise ToolError("Invalid duration. Expected a number of minutes above 0.")
