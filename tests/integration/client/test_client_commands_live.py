"""The commands with a real broker and small responders: valid JSON, exit statuses, readable lines."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from sandherd.bus.auth.permissions import SERVICES
from sandherd.client import Context
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolCompleted, AgentToolUse
from sandherd.contracts.requests import (
    Audit,
    DeadLetter,
    DeadLetters,
    Gap,
    GetAudit,
    GetOutput,
    GetTrajectory,
    HeartbeatSummary,
    ListDeadLetters,
    ListEvents,
    ListLiveTasks,
    Output,
    OutputChunk,
    RequeueEventIngest,
    RequeueResult,
    SourceAudit,
    Trajectory,
)
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker

TASK, SANDBOX = "task-one", "sbx-one"
INGEST = Principal.EVENT_INGEST
Neighbours = Any
DIFF = "--- a/x.py\n+++ b/x.py\n@@ -0,0 +1 @@\n+print(1)\n"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
Sandherd = Callable[..., Any]


@pytest.fixture
async def filled(neighbours: Neighbours) -> Neighbours:
    """A task that has run, with a tool call, an edit and a reply to every request."""
    worker = f"sandbox/{SANDBOX}"
    await neighbours.begin()
    await neighbours.publish_event(
        worker, AgentToolUse(tool="bash", tool_use_id="t1", input={"command": "ls \x1b]52;c;x\x07"})
    )
    await neighbours.publish_event(worker, AgentToolCompleted(tool="bash", tool_use_id="t1", duration_ms=420))
    await neighbours.publish_event(
        worker, AgentFileEdited(file_path="x.py", change_type="created", lines_added=1, full_diff=DIFF)
    )
    await neighbours.chat("it is 126410606437752")
    await neighbours.complete()
    await neighbours.go()
    await neighbours.answer(INGEST, GetTrajectory, lambda _: trajectory_of(neighbours))
    await neighbours.answer(INGEST, GetAudit, lambda _: an_audit(0))
    chunk = OutputChunk(stream_sequence=1, time=NOON, text="hello\x1b]0;title\x07 \x1b[32mgreen\x1b[0m\n")
    await neighbours.answer(INGEST, GetOutput, lambda _: Output(chunks=[chunk]))
    return neighbours


def trajectory_of(neighbours: Neighbours) -> Trajectory:
    found = neighbours.events(ListEvents(entity=SANDBOX, limit=1000)).events
    return Trajectory(
        sandbox_id=SANDBOX,
        events=found,
        heartbeat_summary=HeartbeatSummary(count=0),
        total_events=len(found),
        trajectory_events=len(found),
    )


def an_audit(missing: int) -> Audit:
    gaps = [Gap(first=3, last=3 + missing - 1)] if missing else []
    source = SourceAudit(
        source=f"/sandherd/sandbox/{SANDBOX}",
        sandbox=SANDBOX,
        stored=9,
        highest=9 + missing,
        missing=missing,
        gaps=gaps,
        closed=True,
    )
    return Audit(
        sources=[source],
        source_count=4,
        event_count=20,
        missing=missing,
        duplicates_refused=0,
        unstored=0,
        dead=0,
    )


def lines_of(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


REPLIES: Final[tuple[tuple[list[str], str], ...]] = (
    (["tasks", "list"], "tasks"),
    (["tasks", "list", "--state", "completed"], "tasks"),
    (["tasks", "get", TASK], "state"),
    (["sandboxes", "list"], "sandboxes"),
    (["sandboxes", "get", SANDBOX], "runtime"),
    (["sandboxes", "get", TASK], "runtime"),
    (["trajectory", SANDBOX], "heartbeat_summary"),
    (["audit"], "missing"),
    (["audit", SANDBOX], "sources"),
    (["audit", TASK], "sources"),
    (["run", "x", "--no-follow", "--", "true"], "task"),
)
"""A command, and a field of its document."""


async def test_reply_is_one_json_document(filled: Neighbours, sandherd: Sandherd) -> None:
    """`-o json` prints one document with the requested data; without it the output is text."""
    for words, field in REPLIES:
        at = words.index("--") if "--" in words else len(words)
        status, out, err = await sandherd(*words[:at], "-o", "json", *words[at:])
        assert (status, err) == (0, ""), words
        assert field in json.loads(out)
        status, out, _ = await sandherd(*words)
        assert status == 0
        assert out.strip()


@pytest.mark.parametrize("words", [["tasks", "cancel", TASK], ["sandboxes", "terminate", SANDBOX]], ids=" ".join)
async def test_command_is_one_json_document(neighbours: Neighbours, sandherd: Sandherd, words: list[str]) -> None:
    """The document has action, object and earlier state; without `-o json` it is one line."""
    await neighbours.begin()
    status, out, err = await sandherd(*words, "-o", "json")
    assert (status, err) == (0, "")
    assert json.loads(out)["was"] == "running"
    status, out, _ = await sandherd(*words)
    assert (status, "requested to" in out) == (0, True)


@pytest.mark.parametrize(
    "words",
    [["events", SANDBOX], ["events", TASK], ["events", SANDBOX, "--follow"], ["events", TASK, "--follow"]],
    ids=" ".join,
)
async def test_events_are_json_lines(filled: Neighbours, sandherd: Sandherd, words: Sequence[str]) -> None:
    """As JSON, events are one CloudEvents document in each line, stored or followed, each source in order."""
    status, out, err = await sandherd(*words, "-o", "json")
    assert (status, err) == (0, "")
    events = lines_of(out)
    assert {event["specversion"] for event in events} == {"1.0"}
    numbers = [event["sequence"] for event in events if event["source"] == f"/sandherd/sandbox/{SANDBOX}"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 6


async def test_events_are_selected_by_type_and_time(filled: Neighbours, sandherd: Sandherd) -> None:
    """A type, or a whole domain, can be selected, live and from the history."""
    for more in ([], ["--follow"]):
        _, out, _ = await sandherd("events", SANDBOX, "--type", "agent.tool_use", "-o", "json", *more)
        assert [event["type"] for event in lines_of(out)] == ["agent.tool_use"]
        _, out, _ = await sandherd("events", SANDBOX, "--type", "sandbox", "-o", "json", *more)
        assert [event["type"] for event in lines_of(out)] == ["sandbox.requested", "sandbox.terminated"]


async def test_text_of_an_agent_does_not_move_the_cursor(filled: Neighbours, sandherd: Sandherd) -> None:
    """Control characters in events and output are shown and have no effect on the terminal."""
    for words in (["events", SANDBOX], ["trajectory", SANDBOX], ["logs", SANDBOX], ["tasks", "list"]):
        _, out, _ = await sandherd(*words)
        assert "\x1b" not in out
        assert "\x07" not in out
    _, out, _ = await sandherd("logs", SANDBOX, "--raw")
    assert "\x1b]0;title\x07" in out


async def test_trajectory_is_shown_as_a_timeline(filled: Neighbours, sandherd: Sandherd) -> None:
    """Calls are joined with their ends and show their duration; edits show their diff."""
    status, out, _ = await sandherd("trajectory", SANDBOX)
    assert status == 0
    assert "⚙ bash: ls" in out
    assert "0.420 s" in out
    assert "agent.tool_completed" not in out
    assert "✎ created x.py +1 −0" in out
    assert "+print(1)" in out
    assert "no heartbeats" in out


async def test_audit_with_gaps_exits_with_1(filled: Neighbours, sandherd: Sandherd) -> None:
    """An audit with gaps exits with 1, and its table names them."""
    await filled.answer(INGEST, GetAudit, lambda _: an_audit(2))
    status, out, err = await sandherd("audit")
    assert status == 1
    assert "3–4" in out
    assert "2 events are missing" in err
    assert len((await sandherd("audit", "-o", "name"))[1].split()) == len(an_audit(2).sources)


@pytest.mark.parametrize(
    ("found", "finding"),
    [
        ({"unsaid": 1, "unsaid_sandboxes": [SANDBOX]}, f"ended without a last event of the agent ({SANDBOX})"),
        ({"conflicts": 2}, "2 events have the sequence of another"),
        ({"implausible": 1}, "1 source claims over a million"),
    ],
)
async def test_audit_exits_with_1_for_other_faults(
    filled: Neighbours, sandherd: Sandherd, found: dict[str, Any], finding: str
) -> None:
    """An audit also exits with 1 for an ended sandbox with unpublished events, and for foreign sequence numbers."""
    await filled.answer(INGEST, GetAudit, lambda _: an_audit(0).model_copy(update=found))
    status, _, err = await sandherd("audit")
    assert status == 1
    assert finding in err


async def test_unavailable_service_is_named(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """The error names the unavailable service, and the command that shows the running ones."""
    await neighbours.silence(ListEvents)
    status, _, err = await sandherd("events", SANDBOX)
    assert status == 1
    assert "event-ingest is unavailable" in err
    assert "sandherd status" in err


async def test_without_the_spawner_lists_come_from_the_history(filled: Neighbours, sandherd: Sandherd) -> None:
    """Without the spawner the output states that the list comes from the history."""
    await filled.silence(ListLiveTasks)
    status, out, _ = await sandherd("tasks", "list", "-o", "json")
    assert status == 0
    assert json.loads(out)["from"] == "history"


async def test_refusal_of_a_service_is_shown_with_its_remedy(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A service's refusal is shown with its remedy."""
    refusal = Problem(code=Code.REFUSED, message="not today", remedy="come back tomorrow")
    await neighbours.answer(INGEST, GetAudit, lambda _: refusal)
    status, _, err = await sandherd("audit")
    assert (status, err) == (1, "sandherd: not today; come back tomorrow\n")


async def test_another_project_is_refused_by_the_broker(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """The error names the credential that would be permitted."""
    status, _, err = await sandherd("tasks", "list", "--project", "other")
    assert status == 1
    assert "SANDHERD_CREDENTIALS" in err


async def test_dead_letters_are_requeued_by_operators(
    neighbours: Neighbours, sandherd: Sandherd, herd: Broker, context: Context
) -> None:
    """A client lists and reads letters of its project; its error names an operator's credential, which requeues."""
    letter = DeadLetter(
        number=7,
        service="event-ingest",
        reason=Problem(code=Code.INVALID_FIELD, message="data.turn: too small", field="data.turn"),
        subject="sandherd.v1.event.default.sbx-one.agent.message",
        stream="EVENTS",
        stream_sequence=3,
        size=2,
        dead_at=NOON,
        payload="{}",
    )
    letters = {None: [letter], 7: [letter]}
    await neighbours.answer(
        INGEST, ListDeadLetters, lambda requested: DeadLetters(letters=letters.get(requested.number, []))
    )
    await neighbours.answer(
        INGEST, RequeueEventIngest, lambda requested: RequeueResult(number=requested.number, outcome="done")
    )
    assert [(await sandherd("dead", *words))[0] for words in (["list"], ["show", "7"])] == [0, 0]
    status, _, err = await sandherd("dead", "requeue", "7")
    assert status == 1
    assert "SANDHERD_CREDENTIALS" in err
    operator = ["--credentials", str(herd.credentials(Principal.OPERATOR))]
    for words, field in ((["list"], "letters"), (["show", "7"], "payload"), (["requeue", "7"], "outcome")):
        status, out, _ = await sandherd(*operator, "dead", *words, "-o", "json")
        assert status == 0
        assert field in json.loads(out)
        assert (await sandherd(*operator, "dead", *words))[0] == 0
    assert (await sandherd(*operator, "dead", "show", "8"))[0] == 1


async def test_doctor_reports_unavailable_services(filled: Neighbours, sandherd: Sandherd) -> None:
    """The status is 1, and each unavailable service has a remedy; other results are still correct."""
    status, out, _ = await sandherd("doctor", "-o", "json")
    checks = {check["check"]: check for check in json.loads(out)}
    assert status == 1
    assert [checks[name]["state"] for name in ("broker", "live state", "history")] == ["ok"] * 3
    assert "client of default" in checks["credential"]["found"]
    assert {name for name, check in checks.items() if check["state"] == "wrong"} == {*SERVICES}
    await filled.silence(GetAudit)
    status, out, _ = await sandherd("doctor", "-o", "json")
    wrong = [check for check in json.loads(out) if check["state"] == "wrong"]
    assert status == 1
    assert {check["check"] for check in wrong} == {*SERVICES, "history"}
    assert all(check["remedy"] for check in wrong)


async def test_settings_are_shown_with_their_sources(sandherd: Sandherd, monkeypatch: pytest.MonkeyPatch) -> None:
    """`config show` has every setting, where it comes from, and no secret."""
    monkeypatch.setenv("DATABASE_URL", "postgresql://user:hush@host/db")
    status, out, _ = await sandherd("config", "show", "-o", "json")
    settings = {setting["setting"]: setting for setting in json.loads(out)}
    assert status == 0
    assert settings["nats_url"]["source"] == "parameter"
    assert settings["database_url"]["source"] == "environment"
    assert settings["max_age"]["source"] == "default"
    assert "hush" not in out


async def test_closed_pipe_is_no_traceback(filled: Neighbours, started: Callable[..., Any]) -> None:
    """A closed pipe, as `head` leaves it, ends the command without a traceback."""
    process = await started("events", SANDBOX, "--follow", "-o", "json")
    process.stdout._transport.close()
    assert await process.stderr.read() == b""
    assert await process.wait() == 141
