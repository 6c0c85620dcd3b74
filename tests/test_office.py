"""The office: its tools, when two offices are the same, and the assistant's episode in it."""

import dataclasses
import json
import pickle
import subprocess
import sys

import pytest

from nemocascade_jax.environments import ENVIRONMENTS, has_environment, start_environment
from nemocascade_jax.rewards import check_row, workplace
from nemocascade_jax.rewards.office import customers, mail, tasks
from nemocascade_jax.rewards.office.seed import DIRECTORY, FILES, invented_office, load_office
from nemocascade_jax.rewards.office.tables import same_state
from nemocascade_jax.rewards.office.tools import TOOLS, call_tool, definitions
from nemocascade_jax.rows.generators import office
from nemocascade_jax.rows.messages import ParsedTurn, write_calls
from nemocascade_jax.rows.records import Completion, Message, Row, RowError, ToolCall

OFFICE = invented_office()
SEND = ToolCall(
    "email_send_email", {"recipient": "Ada@Fernhill.example", "subject": "Hi", "body": "There"}
)
PLOT = ToolCall(
    "analytics_create_plot",
    {"time_min": "a", "time_max": "b", "value_to_plot": "user_engaged", "plot_type": "bar"},
)
CRM = "customer_relationship_manager"


def row_of(*calls, **fields):
    wanted = [{"name": c.name, "arguments": json.dumps(dict(c.arguments))} for c in calls]
    messages = (Message("system", "Today is 2031-03-14."), Message("user", "Do it."))
    return Row("w", workplace.AGENT, messages, {"ground_truth": wanted, **fields}, "test:1")


def after(*calls):
    return workplace.replay(OFFICE, calls)


def done(name, /, **arguments):
    """Returns what a tool gives back in the invented office, which must not be an error."""
    answer = call_tool(OFFICE, ToolCall(name, arguments))
    assert not answer.failed, answer.text
    return json.loads(answer.text) if answer.text[:1] in "[{" else answer.text


def test_the_tools_are_the_27_published_ones():
    assert len(TOOLS) == 27
    counts = {"company": 1, "email": 6, "calendar": 5, "analytics": 6, "project": 5, "customer": 4}
    found = [name.split("_")[0] for name in TOOLS]
    assert {name: found.count(name) for name in counts} == counts
    listed = {tool["name"]: tool["parameters"] for tool in definitions()}
    assert listed["email_reply_email"]["required"] == ["email_id", "body"]
    assert listed[f"{CRM}_search_customers"]["properties"]["page"] == {"type": "integer"}


def test_the_invented_office_is_the_same_everywhere():
    assert OFFICE.emails[0]["email_id"] == "00000291"
    assert OFFICE.customers[-1]["customer_name"] == "Vera Ekman"
    for name, (_, ids) in FILES.items():
        table = getattr(OFFICE, name)
        assert len(table) >= 200
        assert ids == "visitor_id" or len({record[ids] for record in table}) == len(table)


@pytest.mark.parametrize(
    ("tool", "arguments", "table", "expected"),
    [
        (
            "email_send_email",
            dict(SEND.arguments),
            "emails",
            {"sender/recipient": "ada@fernhill.example"},
        ),
        ("email_reply_email", {"email_id": "00000291", "body": "Yes"}, "emails", {"body": "Yes"}),
        (
            "email_forward_email",
            {"email_id": "00000291", "recipient": "X@y.z"},
            "emails",
            {"subject": "FW: News on the survey", "sender/recipient": "x@y.z"},
        ),
        (
            "calendar_create_event",
            {
                "event_name": "Talk",
                "participant_email": "A@b.c",
                "event_start": "2031-04-01 10:00:00",
                "duration": "30",
            },
            "events",
            {"event_id": "00000300", "participant_email": "a@b.c", "duration": "30"},
        ),
        (
            "analytics_create_plot",
            dict(PLOT.arguments),
            "plots",
            {"file_path": "plots/a_b_user_engaged_bar.png"},
        ),
        (
            "project_management_create_task",
            {
                "task_name": "T",
                "assigned_to_email": "Ada.Brandt@fernhill.example",
                "list_name": "Backlog",
                "due_date": "2031-04-01",
                "board": "Design",
            },
            "tasks",
            {"task_id": "00000300", "assigned_to_email": "ada.brandt@fernhill.example"},
        ),
        (
            f"{CRM}_add_customer",
            {"customer_name": "N", "assigned_to_email": "A@b.c", "status": "Lead"},
            "customers",
            {"customer_id": "00000200", "notes": "", "assigned_to_email": "a@b.c"},
        ),
    ],
)
def test_a_tool_that_adds_puts_one_record_at_the_end(tool, arguments, table, expected):
    found = getattr(after(ToolCall(tool, arguments)), table)
    assert found[:-1] == getattr(OFFICE, table)
    assert expected.items() <= found[-1].items()
    assert list(found[-1]) == list(found[0])


@pytest.mark.parametrize(
    ("tool", "ids", "table"),
    [
        ("email_delete_email", mail.ID, "emails"),
        ("calendar_delete_event", "event_id", "events"),
        ("project_management_delete_task", tasks.ID, "tasks"),
        (f"{CRM}_delete_customer", customers.ID, "customers"),
    ],
)
def test_a_tool_that_removes_takes_one_record(tool, ids, table):
    found = getattr(after(ToolCall(tool, {ids: "00000007"})), table)
    assert [r for r in getattr(OFFICE, table) if r[ids] != "00000007"] == list(found)


@pytest.mark.parametrize(
    ("tool", "ids", "table", "field", "value"),
    [
        ("calendar_update_event", "event_id", "events", "duration", "25"),
        ("project_management_update_task", tasks.ID, "tasks", "task_name", "Anew"),
        (f"{CRM}_update_customer", customers.ID, "customers", "notes", "Called."),
    ],
)
def test_a_tool_that_updates_sets_one_field_of_one_record(tool, ids, table, field, value):
    call = ToolCall(tool, {ids: "00000007", "field": field, "new_value": value})
    for old, new in zip(getattr(OFFICE, table), getattr(after(call), table), strict=True):
        assert new == (old | {field: value} if old[ids] == "00000007" else old)


def test_reading_tools_count_what_the_tables_hold():
    """Each search against its own plain loop over the table."""
    words = [
        e for e in OFFICE.emails if "roadmap" in e["body"] and "hugo." in e["sender/recipient"]
    ]
    found = done("email_search_emails", query="ROADMAP hugo.", page_size=100)
    assert found["emails"] == sorted(words, key=lambda e: e["sent_datetime"], reverse=True)
    paged = done("email_search_emails", query="roadmap hugo.", page=2, page_size=3)
    assert paged["emails"] == found["emails"][3:6]
    assert paged["pagination"]["total_emails"] == len(words)
    low, high = "2031-03-01", "2031-03-10"
    days = done("analytics_total_visits_count", time_min=low, time_max=high)
    assert sum(days.values()) == sum(low <= v["date_of_visit"] <= high for v in OFFICE.visits)
    direct = done("analytics_traffic_source_count", traffic_source="direct")
    assert sum(direct.values()) == sum(v["traffic_source"] == "direct" for v in OFFICE.visits)
    won = done(f"{CRM}_search_customers", status="won", page_size=100)["customers"]
    assert won == [c for c in OFFICE.customers if c["status"] == "Won"]
    late = done(f"{CRM}_search_customers", follow_up_by_min="2031-04-20", page_size=100)[
        "customers"
    ]
    assert late == [c for c in OFFICE.customers if c["follow_up_by"] >= "2031-04-20"]
    events = done("calendar_search_events", time_min="2031-04-05 00:00:00", page_size=100)["events"]
    assert len(events) == sum(e["event_start"] >= "2031-04-05" for e in OFFICE.events)
    mine = done("project_management_search_tasks", assigned_to_email="HUGO.tanaka@fernhill.example")
    assert mine == [t for t in OFFICE.tasks if t["assigned_to_email"].startswith("hugo.")]
    assert done("company_directory_find_email_address", name="elif") == [
        "elif.moreau@fernhill.example"
    ]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (ToolCall("email_fly", {}), "there is no tool 'email_fly'"),
        (ToolCall("email_delete_email", {}), "email_id not provided"),
        (ToolCall("email_delete_email", {"email_id": "7"}), "Email not found"),
        (ToolCall("email_delete_email", {"email_id": 7}), "email_id must be text"),
        (ToolCall("email_delete_email", {"email_id": ["00000007"]}), "email_id must be text"),
        (ToolCall("email_delete_email", {"email_id": "00000007", "x": ""}), "has no argument 'x'"),
        (ToolCall("email_search_emails", {"page": "1"}), "page must be a whole number"),
        (ToolCall("email_search_emails", {"page_size": 0}), "page_size must lie between"),
        (ToolCall("email_search_emails", {"date_min": "soon"}), "Invalid date_min"),
        (
            ToolCall("email_get_email_information_by_id", {"email_id": "00000007", "field": "x"}),
            "Field 'x'",
        ),
        (ToolCall("calendar_delete_event", {"event_id": "7"}), "Expected 8 digits"),
        (
            ToolCall(
                "calendar_update_event",
                {"event_id": "00000007", "field": "event_id", "new_value": "1"},
            ),
            "Field not valid",
        ),
        (
            ToolCall(
                "calendar_update_event",
                {"event_id": "00000007", "field": "duration", "new_value": "-3"},
            ),
            "Invalid duration",
        ),
        (
            ToolCall(
                "project_management_update_task",
                {"task_id": "00000007", "field": "board", "new_value": "design"},
            ),
            "Board not valid",
        ),
        (
            ToolCall(
                "project_management_update_task",
                {"task_id": "00000007", "field": "assigned_to_email", "new_value": "q@q.q"},
            ),
            "Assignee email not valid",
        ),
        (
            ToolCall(
                f"{CRM}_update_customer",
                {"customer_id": "00000007", "field": "status", "new_value": "won"},
            ),
            "Status not valid",
        ),
        (ToolCall(f"{CRM}_search_customers", {}), "No search parameters"),
    ],
)
def test_a_call_that_cannot_be_done_says_so_and_changes_nothing(call, said):
    answer = call_tool(OFFICE, call)
    assert answer.failed
    assert answer.office is OFFICE
    assert said in answer.text


def test_letters_count_in_status_list_and_board_only():
    louder = dataclasses.replace(SEND, arguments={**SEND.arguments, "body": "THERE"})
    assert same_state(after(SEND), after(louder))
    for name, field in (("customers", "status"), ("tasks", "board"), ("tasks", "list_name")):
        first, *rest = getattr(OFFICE, name)
        upper = OFFICE._replace(**{name: ({**first, field: first[field].upper()}, *rest)})
        assert not same_state(OFFICE, upper)


def test_every_table_is_compared_and_so_is_its_order():
    for name in ("emails", "events", "plots", "tasks", "customers"):
        one = OFFICE._replace(plots=({"file_path": "a"}, {"file_path": "b"}))
        table = getattr(one, name)
        assert not same_state(one, one._replace(**{name: table[1:]}))
        assert not same_state(one, one._replace(**{name: table[::-1]}))
        copy = tuple(dict(record) for record in table)
        assert same_state(one, one._replace(**{name: copy}))


@pytest.mark.parametrize(
    ("reference", "calls", "reward"),
    [
        ([SEND], [SEND], 1),
        ([SEND], [], 0),
        ([SEND], [PLOT], 0),
        ([SEND], [SEND, SEND], 0),
        ([SEND], [SEND, PLOT], 0),
        ([SEND, PLOT], [PLOT, SEND], 1),  # other tables, so the order does not show
        ([SEND], [ToolCall("email_fly", {}), SEND], 1),  # an error changes nothing
        ([SEND], [ToolCall("email_search_emails", {"query": "roadmap"}), SEND], 1),
        ([], [], 1),
        ([], [ToolCall("email_search_emails", {"query": "roadmap"})], 1),
        ([], [SEND], 0),
    ],
)
def test_the_final_state_decides(reference, calls, reward):
    turns = [ParsedTurn("", "Done, I think.", tuple(calls), ())]
    assert workplace.score_turns(row_of(*reference), turns).reward == reward
    # One call a turn, and a call that could not be read on the way, are the same to the office.
    apart = [ParsedTurn("", "", (call,), ("broken",)) for call in calls]
    last = ParsedTurn("", "Done, I think.", (), ())
    assert workplace.score_turns(row_of(*reference), [*apart, last]).reward == reward


def test_nothing_to_change_still_needs_an_answer():
    for said, reward in (("No such mail.", 1), ("", 0), ("Do it.", 0)):
        assert workplace.score_turns(row_of(), [ParsedTurn("", said, (), ())]).reward == reward
    broken = [ParsedTurn("", "No such mail.", (), ("a call without end",))]
    assert workplace.score_turns(row_of(), broken).reward == 0


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"ground_truth": None}, "ground_truth: expected a list"),
        (
            {"ground_truth": [{"name": "email_fly", "arguments": "{}"}]},
            "fails: Error: there is no tool",
        ),
        (
            {
                "ground_truth": [
                    {"name": "email_delete_email", "arguments": '{"email_id": "00000999"}'}
                ]
            },
            "ground_truth[0]: fails: Error: Email not found.; name the tables",
        ),
        (
            {"ground_truth": [{"name": "email_delete_email", "arguments": "{"}]},
            "arguments: not JSON",
        ),
        ({"ground_truth": [], "office_data": "/nowhere"}, "office_data: office: /nowhere"),
    ],
)
def test_a_row_whose_reference_fails_is_refused(fields, problem):
    """Else an answer that does nothing would be right."""
    row = dataclasses.replace(row_of(), fields=fields)
    with pytest.raises(RowError) as caught:
        check_row(row)
    assert problem in str(caught.value)


def write_tables(folder, office):
    """Writes an office in the layout of the released tables."""
    for name, (file, _) in FILES.items():
        table = getattr(office, name)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        lines = [table[0].keys(), *(record.values() for record in table)]
        quoted = (",".join(f'"{text}"' for text in line) for line in lines)
        (folder / file).write_text("\n".join(quoted) + "\n")
    (folder / DIRECTORY).parent.mkdir(parents=True)
    (folder / DIRECTORY).write_text("\n".join(office.directory) + "\n")


def test_tables_of_a_folder_take_the_place_of_the_invented_ones(tmp_path):
    write_tables(tmp_path, OFFICE._replace(emails=OFFICE.emails[:3]))
    loaded = load_office(str(tmp_path))
    assert loaded == OFFICE._replace(emails=OFFICE.emails[:3], now=loaded.now)
    kept, gone = OFFICE.emails[0]["email_id"], OFFICE.emails[5]["email_id"]
    for number, fine in ((kept, True), (gone, False)):
        row = row_of(
            ToolCall("email_delete_email", {"email_id": number}), office_data=str(tmp_path)
        )
        if fine:
            check_row(row)
        else:
            with pytest.raises(RowError, match="Email not found"):
                check_row(row)
    (tmp_path / "processed/emails.csv").write_text("email_id,body\n00000001,x,y\n")
    load_office.cache_clear()
    with pytest.raises(RowError, match="emails.csv:2: a record that is not whole"):
        check_row(row_of(office_data=str(tmp_path)))


def episode(row, texts):
    """Plays an episode with given turns; returns the environment and the whole trajectory."""
    world = start_environment(row)
    said = list(world.reset(row))
    for text in texts:
        said.append(Message("assistant", text))
        said += world.step(Completion(text))
    return world, tuple(said)


def test_an_episode_answers_calls_and_is_graded_by_its_end():
    search = ToolCall("email_search_emails", {"query": "roadmap", "page_size": 1})
    texts = [
        f"<think>\nLook first.\n</think>\n{write_calls([search])}",
        "<think>\nx\n</think>\n"
        + write_calls([ToolCall("email_delete_email", {"email_id": "1"}), SEND]),
        "<think>\nx\n</think>\nSent.",
    ]
    row = row_of(SEND)
    world, said = episode(row, texts)
    told = [message.content for message in said if message.role == "tool"]
    assert [text[:20] for text in told] == [
        '{"emails": [{"email_',
        "Error: Email not fou",
        "Email sent successfu",
    ]
    assert said[-1].role == "assistant"
    assert world.score(said).reward == 1
    assert world.score(said[:-1]).reward == 1
    assert world.score(said[: said.index(Message("assistant", texts[1]))]).reward == 0
    assert world.score(row.messages).reward == 0


def test_a_call_that_cannot_be_read_is_answered_as_text():
    world, said = episode(
        row_of(SEND), ["<tool_call>\n<function=email_send_email>", write_calls([SEND]), "Sent."]
    )
    assert said[3].role == "tool"
    assert said[3].content.startswith("Error: ")
    assert world.score(said).reward == 1
    assert world.score(said[:4]).reward == 0


def test_the_state_is_plain_data_and_replays():
    texts = [write_calls([SEND]), write_calls([PLOT, SEND]), "Done."]
    world, said = episode(row_of(SEND), texts)
    again = pickle.loads(pickle.dumps(world.office))
    assert again == world.office == episode(row_of(SEND), texts)[0].office
    assert same_state(again, after(SEND, PLOT, SEND))
    assert invented_office.__wrapped__() == OFFICE
    assert said[0].content.startswith("Today")


def test_errands_have_offices_and_their_demonstrators_slip():
    """Train and held-out prompts never meet; every reference holds; one who slips is not paid."""
    train, held = (list(office.generate(split, 60, 5)) for split in ("train", "heldout"))
    assert not {row.messages for row in train} & {row.messages for row in held}
    for row in (*train, *held):
        check_row(row)
    for slip, paid in ((0.0, {1.0}), (1.0, {0.0})):
        shown = office.demonstrations("train", 60, 5, slip)
        rewards = {
            workplace.score(row, Completion(talk.messages[-1].content)).reward
            for row, talk in zip(train, shown, strict=True)
            if row.fields["ground_truth"]
        }
        assert rewards == paid


def test_environments_have_verifiers():
    for agent in ENVIRONMENTS:
        check_row(dataclasses.replace(row_of(SEND), agent=agent))
    assert not has_environment(dataclasses.replace(row_of(), agent="mcqa_simple_agent"))


CONFIG = """
from ml_collections import ConfigDict
from nemocascade_jax.configs import common, grpo


def get_config(arg=None):
    stage = grpo.stage(steps=2, prompts_per_step=2, group_size=2)
    stage.data = ConfigDict({"office": common.jsonl("PATH")})
    stage.turns = ConfigDict({"max_turns": 3, "turn_tokens": 16})
    stage.sampling.update({"max_prompt_tokens": 4096, "max_completion_tokens": 200})
    config = common.run(arg, {"office_rl": stage})
    config.model.update({"pattern": "*-", "width": 16, "max_positions": 8192})
    config.model.mlp_inner = 16
    config.mesh.data = 1
    config.evaluation.domains = {"workplace_assistant": common.jsonl("PATH")}
    config.evaluation.turns = ConfigDict({"max_turns": 2, "turn_tokens": 16})
    config.evaluation.sampling.update({"max_prompt_tokens": 4096, "max_completion_tokens": 64})
    return config
"""


@pytest.mark.slow
def test_a_stage_trains_and_scores_rows_of_several_turns(root, tmp_path):
    """End to end through the command; a prompt lists 27 tools, some 2,450 tokens."""
    rows = tmp_path / "rows.jsonl"
    errands = office.draw_errands("train", 4, 0)
    objects = [office.file_object(i, one, "workplace") for i, one in enumerate(errands)]
    rows.write_text("".join(json.dumps(one) + "\n" for one in objects))
    config = tmp_path / "office_rl.py"
    config.write_text(CONFIG.replace("PATH", str(rows)))
    run = [sys.executable, "launch/run.py", f"--config={config}", f"--workdir={tmp_path / 'w'}"]
    done = subprocess.run(run, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    steps = (tmp_path / "w" / "01_office_rl" / "metrics.jsonl").read_text().splitlines()
    assert len(steps) == 2
    records = (tmp_path / "w" / "01_office_rl" / "rollouts" / "2.jsonl").read_text().splitlines()
    assert {json.loads(record)["status"] for record in records} == {"ok"}
    ledger = json.loads((tmp_path / "w" / "cascade.json").read_text())
    assert {score["domain"] for score in ledger["scores"]} == {"workplace_assistant"}
