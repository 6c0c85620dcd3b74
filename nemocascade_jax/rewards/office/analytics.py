"""The tools that count the visits of the website, and the plots made of them."""

from __future__ import annotations

import collections
from typing import Any

from nemocascade_jax.rewards.office.tables import Office, Table, ToolError, add, one_of

PLOTTED = (
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
)
PLOT_TYPES = ("bar", "line", "scatter", "histogram")


def get_visitor(office: Office, visitor_id: str) -> tuple[Office, Any]:
    """Returns all visits of one visitor."""
    found = [visit for visit in office.visits if visit["visitor_id"] == visitor_id]
    if not found:
        raise ToolError("Visitor not found.")
    return office, found


def create_plot(
    office: Office, time_min: str, time_max: str, value_to_plot: str, plot_type: str
) -> tuple[Office, Any]:
    """Makes a plot, which is known by the path of its file, and returns the path."""
    one_of(value_to_plot, PLOTTED, "Value to plot")
    one_of(plot_type, PLOT_TYPES, "Plot type")
    path = f"plots/{time_min}_{time_max}_{value_to_plot}_{plot_type}.png"
    return office._replace(plots=add(office.plots, {"file_path": path})), path


def count_visits(office: Office, time_min: str = "", time_max: str = "") -> tuple[Office, Any]:
    """Returns the number of visits of each day."""
    days = collections.Counter(v["date_of_visit"] for v in _between(office, time_min, time_max))
    return office, dict(sorted(days.items()))


def count_engaged(office: Office, time_min: str = "", time_max: str = "") -> tuple[Office, Any]:
    """Returns the number of engaged visitors of each day."""
    return office, _per_day(_between(office, time_min, time_max), "user_engaged", "True")


def count_source(
    office: Office, time_min: str = "", time_max: str = "", traffic_source: str = ""
) -> tuple[Office, Any]:
    """Returns the number of visits of each day that came from one source, or from any."""
    if not traffic_source:
        return count_visits(office, time_min, time_max)
    return office, _per_day(_between(office, time_min, time_max), "traffic_source", traffic_source)


def average_duration(office: Office, time_min: str = "", time_max: str = "") -> tuple[Office, Any]:
    """Returns the mean length of the sessions of each day, in seconds."""
    days: dict[str, list[float]] = collections.defaultdict(list)
    for visit in _between(office, time_min, time_max):
        days[visit["date_of_visit"]].append(float(visit["session_duration_seconds"]))
    return office, {day: sum(seconds) / len(seconds) for day, seconds in sorted(days.items())}


def _between(office: Office, low: str, high: str) -> Table:
    """Returns the visits of some days; dates compare as text, as they are written."""
    return tuple(
        visit
        for visit in office.visits
        if (not low or visit["date_of_visit"] >= low)
        and (not high or visit["date_of_visit"] <= high)
    )


def _per_day(visits: Table, column: str, value: str) -> dict[str, int]:
    days = dict.fromkeys(sorted(visit["date_of_visit"] for visit in visits), 0)
    for visit in visits:
        days[visit["date_of_visit"]] += visit[column] == value
    return days
