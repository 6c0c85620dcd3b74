"""The office a trajectory starts from: an invented one, or the tables of a folder."""

from __future__ import annotations

import csv
import datetime
import functools
import random
from pathlib import Path

from nemocascade_jax.errors import InputError
from nemocascade_jax.rewards.office import calendar, customers, mail, tasks
from nemocascade_jax.rewards.office.tables import ID_DIGITS, Office, Table

SEED = "office 1"
NOW = datetime.datetime(2031, 3, 14, 16, 30)  # of the invented office
RELEASED_NOW = "2023-11-30 23:59:00"  # of the released tables, as their rows' system message says
PEOPLE = (
    "ada.brandt",
    "bruno.keita",
    "carla.nowak",
    "dario.lindqvist",
    "elif.moreau",
    "farid.osei",
    "greta.ivers",
    "hugo.tanaka",
)
COMPANY = "fernhill.example"
TOPICS = ("budget", "roadmap", "hiring plan", "audit", "launch", "survey", "training day", "lease")
MEETINGS = ("review", "kick-off", "check-in", "workshop", "interview")
WORK = ("login page", "search box", "price list", "export job", "color scheme", "mail template")
DOING = ("Draft", "Fix", "Test", "Speed up", "Document")
FIRST = ("Nia", "Otto", "Pia", "Rolf", "Sana", "Tove", "Umar", "Vera", "Wim", "Yara")
LAST = ("Aalto", "Berg", "Costa", "Diaz", "Ekman", "Fischer")
FIRMS = ("bluepeak", "corvid", "dunes", "elmtree", "fjord")
SOURCES = ("direct", "referral", "search engine", "social media")
# As many records as the released tables have, so that references to their ids find one here too.
COUNTS = {"emails": 500, "events": 300, "tasks": 300, "customers": 200}
VISITS = 200

# Where each table lies in the folder of released tables, and the column that numbers its records.
FILES = {
    "emails": ("processed/emails.csv", mail.ID),
    "events": ("processed/calendar_events.csv", calendar.ID),
    "tasks": ("processed/project_tasks.csv", tasks.ID),
    "customers": ("processed/customer_relationship_manager_data.csv", customers.ID),
    "visits": ("processed/analytics_data.csv", "visitor_id"),
}
DIRECTORY = "raw/email_addresses.csv"


@functools.cache
def invented_office() -> Office:
    """Returns the office of rows that name no tables; the same on every machine."""
    rng = random.Random(SEED)
    people = tuple(f"{name}@{COMPANY}" for name in PEOPLE)
    # One stream for all tables, so their order here is part of the office.
    emails = tuple(_email(rng, number, people) for number in _numbers(rng, "emails"))
    events = tuple(_event(rng, number, people) for number in _numbers(rng, "events"))
    todo = tuple(_task(rng, number, people) for number in _numbers(rng, "tasks"))
    crm = tuple(_customer(rng, number, people) for number in _numbers(rng, "customers"))
    visits = tuple(_visit(rng) for _ in range(VISITS))
    return Office(emails, events, (), todo, crm, visits, people, str(NOW))


@functools.lru_cache(maxsize=4)
def load_office(folder: str) -> Office:
    """Returns the office of a folder in the layout of the released tables."""
    tables = {name: _read_table(Path(folder) / file, ids) for name, (file, ids) in FILES.items()}
    with _open(Path(folder) / DIRECTORY) as lines:
        directory = tuple(line.strip() for line in lines if line.strip())
    return Office(plots=(), directory=directory, now=RELEASED_NOW, **tables)


def _open(path: Path):  # type: ignore[no-untyped-def]
    try:
        return path.open(encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(
            f"office: {path} cannot be read: {error.strerror}; office_data names a folder with "
            f"{DIRECTORY} and {', '.join(file for file, _ in FILES.values())}"
        ) from None


def _read_table(path: Path, ids: str) -> Table:
    with _open(path) as lines:
        table = tuple(dict(record) for record in csv.DictReader(lines))
    for line, record in enumerate(table, start=2):
        if None in record or None in record.values() or not record.get(ids, "").isdecimal():
            raise InputError(f"office: {path}:{line}: a record that is not whole, or no {ids}")
    return table


def _numbers(rng: random.Random, name: str) -> list[str]:
    """Returns the ids of a table's records in mixed order, so that place tells nothing."""
    numbers = [str(number).zfill(ID_DIGITS) for number in range(COUNTS[name])]
    rng.shuffle(numbers)
    return numbers


def _day(rng: random.Random, first: int, last: int) -> datetime.date:
    return NOW.date() + datetime.timedelta(days=rng.randint(first, last))


def _moment(rng: random.Random, day: datetime.date) -> str:
    return f"{day} {rng.randint(9, 16):02}:{rng.choice((0, 15, 30, 45)):02}:00"


def _email(rng: random.Random, number: str, people: tuple[str, ...]) -> dict[str, str]:
    who, topic = rng.choice(people), rng.choice(TOPICS)
    news = rng.choice(("is ready for you", "needs one more day", "was well received"))
    return {
        mail.ID: number,
        "inbox/outbox": rng.choice(("inbox", "inbox", "outbox")),
        "sender/recipient": who,
        "subject": f"{rng.choice(('News on', 'Question about', 'Notes for'))} the {topic}",
        "sent_datetime": _moment(rng, _day(rng, -40, -1)),
        "body": f"Hello,\n\nthe {topic} {news}.\n\n{who.split('.')[0].title()}",
    }


def _event(rng: random.Random, number: str, people: tuple[str, ...]) -> dict[str, str]:
    return {
        calendar.ID: number,
        "event_name": f"{rng.choice(TOPICS)} {rng.choice(MEETINGS)}",
        "participant_email": rng.choice(people),
        "event_start": _moment(rng, _day(rng, -20, 30)),
        "duration": str(rng.choice((30, 45, 60, 90))),
    }


def _task(rng: random.Random, number: str, people: tuple[str, ...]) -> dict[str, str]:
    return {
        tasks.ID: number,
        "task_name": f"{rng.choice(DOING)} the {rng.choice(WORK)}",
        "assigned_to_email": rng.choice(people),
        "list_name": rng.choice(tasks.LISTS),
        "due_date": str(_day(rng, -10, 40)),
        "board": rng.choice(tasks.BOARDS),
    }


def _customer(rng: random.Random, number: str, people: tuple[str, ...]) -> dict[str, str]:
    first, last = rng.choice(FIRST), rng.choice(LAST)
    return {
        customers.ID: number,
        "assigned_to_email": rng.choice(people),
        "customer_name": f"{first} {last}",
        "customer_email": f"{first}.{last}@{rng.choice(FIRMS)}.example".lower(),
        "customer_phone": rng.choice(("", f"555-0{rng.randint(100, 199)}")),
        "last_contact_date": str(_day(rng, -60, -1)),
        "product_interest": rng.choice(customers.PRODUCTS),
        "status": rng.choice(customers.STATUSES),
        "follow_up_by": str(_day(rng, 1, 60)),
        "notes": rng.choice(("", "Asked for a demo.", "Prefers mail.")),
    }


def _visit(rng: random.Random) -> dict[str, str]:
    return {
        "date_of_visit": str(_day(rng, -30, -1)),
        "visitor_id": str(rng.randint(1, 60)).zfill(4),
        "page_views": str(rng.randint(1, 20)),
        "session_duration_seconds": str(rng.randint(1, 60)),
        "traffic_source": rng.choice(SOURCES),
        "user_engaged": rng.choice(("True", "False")),
    }
