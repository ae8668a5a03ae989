"""The commands against a real broker and small responders: valid JSON, exit statuses, readable lines."""

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from sandherd.client import Context
from sandherd.client.cli.leaving import status_of
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.lifecycle import TaskFailed
from sandherd.contracts.events.message import MessageAcknowledged, MessageDelivered, MessageQueued, MessageRejected
from sandherd.contracts.events.tools import AgentFileEdited, AgentToolCompleted, AgentToolUse
from sandherd.contracts.requests import (
    AskAudit,
    AskDead,
    AskEvents,
    AskOutput,
    AskTrajectory,
    Audit,
    DeadLetter,
    DeadLetters,
    Gap,
    HeartbeatSummary,
    LiveSandboxes,
    LiveTasks,
    Output,
    OutputChunk,
    PastSandboxes,
    PastTasks,
    Requeued,
    RequeueEventIngest,
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
def sandherd(
    context: Context, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """Run the command as a person would; gives its status, output and errors."""
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    monkeypatch.delenv("NATS_URL", raising=False)

    async def run(*words: str) -> tuple[int, str, str]:
        place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]
        status = await asyncio.to_thread(status_of, [*place, *words])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return run


@pytest.fixture
async def told(neighbours: Neighbours) -> Neighbours:
    """A task that has run, with a tool call, an edit and an answer to every question."""
    worker = f"sandbox/{SANDBOX}"
    await neighbours.begin()
    await neighbours.say(worker, AgentToolUse(tool="bash", tool_use_id="t1", input={"command": "ls \x1b]52;c;x\x07"}))
    await neighbours.say(worker, AgentToolCompleted(tool="bash", tool_use_id="t1", duration_ms=420))
    await neighbours.say(
        worker, AgentFileEdited(file_path="x.py", change_type="created", lines_added=1, full_diff=DIFF)
    )
    await neighbours.chat("it is 126410606437752")
    await neighbours.complete()
    await neighbours.go()
    await neighbours.answer(INGEST, AskTrajectory, lambda _: trajectory_of(neighbours))
    await neighbours.answer(INGEST, AskAudit, lambda _: an_audit(0))
    chunk = OutputChunk(stream_sequence=1, time=NOON, text="hello\x1b]0;title\x07 \x1b[32mgreen\x1b[0m\n")
    await neighbours.answer(INGEST, AskOutput, lambda _: Output(chunks=[chunk]))
    return neighbours


def trajectory_of(neighbours: Neighbours) -> Trajectory:
    found = neighbours.events(AskEvents(entity=SANDBOX, limit=1000)).events
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


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["tasks", "list"], "tasks"),
        (["tasks", "list", "--state", "completed"], "tasks"),
        (["tasks", "get", TASK], "state"),
        (["sandboxes", "list"], "sandboxes"),
        (["sandboxes", "get", SANDBOX], "runtime"),
        (["trajectory", SANDBOX], "heartbeat_summary"),
        (["audit"], "missing"),
        (["audit", SANDBOX], "sources"),
        (["tasks", "cancel", TASK], "task"),
        (["sandboxes", "terminate", SANDBOX], "sandbox"),
        (["run", "x", "--no-follow", "--", "true"], "task"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
async def test_an_answer_is_one_json_document(
    told: Neighbours, sandherd: Sandherd, words: list[str], field: str
) -> None:
    """`-o json` prints one document that has what was asked for; the same without it prints something to read."""
    at = words.index("--") if "--" in words else len(words)
    status, out, err = await sandherd(*words[:at], "-o", "json", *words[at:])
    assert (status, err) == (0, "")
    assert field in json.loads(out)
    status, out, _ = await sandherd(*words)
    assert status == 0
    assert out.strip()


@pytest.mark.parametrize(
    "words",
    [["events", SANDBOX], ["events", TASK], ["events", SANDBOX, "--follow"], ["events", TASK, "--follow"]],
    ids=" ".join,
)
async def test_events_are_json_lines(told: Neighbours, sandherd: Sandherd, words: Sequence[str]) -> None:
    """As JSON, events are one CloudEvents document in each line, stored or followed, each source in order."""
    status, out, err = await sandherd(*words, "-o", "json")
    assert (status, err) == (0, "")
    events = lines_of(out)
    assert {event["specversion"] for event in events} == {"1.0"}
    numbers = [event["sequence"] for event in events if event["source"] == f"/sandherd/sandbox/{SANDBOX}"]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(numbers) >= 6


async def test_events_are_chosen_by_type_and_time(told: Neighbours, sandherd: Sandherd) -> None:
    """A type, or a whole domain, can be chosen, live and from the history."""
    for more in ([], ["--follow"]):
        _, out, _ = await sandherd("events", SANDBOX, "--type", "agent.tool_use", "-o", "json", *more)
        assert [event["type"] for event in lines_of(out)] == ["agent.tool_use"]
        _, out, _ = await sandherd("events", SANDBOX, "--type", "sandbox", "-o", "json", *more)
        assert [event["type"] for event in lines_of(out)] == ["sandbox.requested", "sandbox.terminated"]


async def test_what_an_agent_says_does_not_move_the_cursor(told: Neighbours, sandherd: Sandherd) -> None:
    """Control characters in events and output are shown, never obeyed: a sandbox is not trusted with a terminal."""
    for words in (["events", SANDBOX], ["trajectory", SANDBOX], ["logs", SANDBOX], ["tasks", "list"]):
        _, out, _ = await sandherd(*words)
        assert "\x1b" not in out
        assert "\x07" not in out
    _, out, _ = await sandherd("logs", SANDBOX, "--raw")
    assert "\x1b]0;title\x07" in out


async def test_the_trajectory_is_a_picture(told: Neighbours, sandherd: Sandherd) -> None:
    """Calls are joined with what ended them and show how long they took; edits show their diff."""
    status, out, _ = await sandherd("trajectory", SANDBOX)
    assert status == 0
    assert "⚙ bash: ls" in out
    assert "0.420 s" in out
    assert "agent.tool_completed" not in out
    assert "✎ created x.py +1 −0" in out
    assert "+print(1)" in out
    assert "no heartbeats" in out


async def test_an_audit_with_gaps_fails(told: Neighbours, sandherd: Sandherd) -> None:
    """Something missing is status 1, and the table says where."""
    await told.answer(INGEST, AskAudit, lambda _: an_audit(2))
    status, out, err = await sandherd("audit")
    assert status == 1
    assert "3–4" in out
    assert "2 events are missing" in err


async def test_a_run_is_followed_to_its_end(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """`run` shows what happens from the first event, with the agent's output between, and ends with the task."""
    chunk = OutputChunk(stream_sequence=1, time=NOON, text="working…\n")
    await neighbours.answer(INGEST, AskOutput, lambda _: Output(chunks=[chunk]))
    running = asyncio.ensure_future(sandherd("run", "compute it", "--", "python3", "agent.py"))
    command = await neighbours.take(Principal.SPAWNER)
    neighbours.task = command.subject
    await neighbours.begin()
    await neighbours.chat("half way")
    await neighbours.complete()
    status, out, err = await running
    assert (status, err) == (0, "")
    assert "half way" in out
    assert "task.completed" in out.splitlines()[-1] or "working…" in out.splitlines()[-1]
    assert "│ working…" in out
    assert command.data.spec.harness.argv == ["python3", "agent.py"]


async def test_a_run_that_fails_is_status_1(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A task that did not complete fails the command, which says where to look."""
    running = asyncio.ensure_future(sandherd("run", "compute it", "-o", "json", "--", "false"))
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    await neighbours.say(neighbours.teller, TaskFailed(error="no sandbox", error_type="start"))
    status, out, err = await running
    assert status == 1
    assert lines_of(out)[-1]["type"] == "task.failed"
    assert "sandherd events" in err


@pytest.mark.parametrize("rejected", [False, True])
async def test_a_message_is_sent_to_its_receipt(neighbours: Neighbours, sandherd: Sandherd, rejected: bool) -> None:
    """`send` waits until the agent has the message, or can't have it, and shows how long the delivery took."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello", "-o", "json"))
    command = await neighbours.take(Principal.MESSAGE_RELAY)
    name = command.data.message
    source = f"message-relay/{name}"
    await neighbours.say(source, MessageQueued(message_id=name, content_length=5), entity=SANDBOX)
    if rejected:
        await neighbours.say(source, MessageRejected(message_id=name, reason="it has ended"), entity=SANDBOX)
    else:
        await neighbours.say(source, MessageDelivered(message_id=name, delivery_ms=1.5), entity=SANDBOX)
        await neighbours.say(source, MessageAcknowledged(message_id=name), entity=SANDBOX)
    status, out, err = await sending
    found = json.loads(out)
    assert status == int(rejected)
    assert found["state"] == ("rejected" if rejected else "acknowledged")
    assert found.get("delivery_ms") == (None if rejected else 1.5)
    assert ("it has ended" in err) is rejected


async def test_a_receipt_that_was_not_heard_is_found(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A receipt that the live subscription lost is found in the history."""
    sending = asyncio.ensure_future(sandherd("send", SANDBOX, "hello"))
    name = (await neighbours.take(Principal.MESSAGE_RELAY)).data.message
    source = f"message-relay/{name}"
    await neighbours.say(source, MessageQueued(message_id=name, content_length=5), heard=False, entity=SANDBOX)
    await neighbours.say(source, MessageAcknowledged(message_id=name), heard=False, entity=SANDBOX)
    assert (await sending)[0] == 0


async def test_a_service_that_is_away_is_named(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """Who does not answer is named, with the command that shows what runs."""
    await neighbours.silence(AskEvents)
    status, _, err = await sandherd("events", SANDBOX)
    assert status == 1
    assert "event-ingest is not there" in err
    assert "sandherd status" in err


async def test_without_the_spawner_the_history_answers(told: Neighbours, sandherd: Sandherd) -> None:
    """A list that the spawner can't give comes from the history, and says so."""
    await told.silence(LiveTasks)
    status, out, _ = await sandherd("tasks", "list", "-o", "json")
    assert status == 0
    assert json.loads(out)["from"] == "history"


@pytest.mark.parametrize("words", [["tasks", "cancel", TASK], ["sandboxes", "terminate", SANDBOX]], ids=" ".join)
async def test_a_command_is_kept_while_its_service_is_away(
    neighbours: Neighbours, sandherd: Sandherd, words: list[str]
) -> None:
    """With nobody to tell how a thing stands, the command is given all the same: the broker keeps it."""
    for request in (LiveTasks, LiveSandboxes, PastTasks, PastSandboxes):
        await neighbours.silence(request)
    status, out, _ = await sandherd(*words)
    assert status == 0
    assert "away" in out
    assert (await neighbours.take(Principal.SPAWNER)).subject == words[-1]


async def test_a_refusal_of_a_service_is_shown_whole(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A service's own refusal comes through with its remedy."""
    refusal = Problem(code=Code.REFUSED, message="not today", remedy="come back tomorrow")
    await neighbours.answer(INGEST, AskAudit, lambda _: refusal)
    status, _, err = await sandherd("audit")
    assert (status, err) == (1, "sandherd: not today; come back tomorrow\n")


async def test_another_project_is_refused_by_the_broker(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """A credential of one project asks in vain about another, and is told which credential would do."""
    status, _, err = await sandherd("tasks", "list", "--project", "other")
    assert status == 1
    assert "SANDHERD_CREDENTIALS" in err


async def test_dead_letters_are_for_operators(
    neighbours: Neighbours, sandherd: Sandherd, herd: Broker, context: Context
) -> None:
    """An operator lists, reads and puts back dead letters; anybody else is told which credential would do."""
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
    await neighbours.answer(INGEST, AskDead, lambda asked: DeadLetters(letters=letters.get(asked.number, [])))
    await neighbours.answer(INGEST, RequeueEventIngest, lambda asked: Requeued(number=asked.number, outcome="done"))
    assert (await sandherd("dead", "list"))[0] == 1
    operator = ["--credentials", str(herd.credentials(Principal.OPERATOR))]
    for words, field in ((["list"], "letters"), (["show", "7"], "payload"), (["requeue", "7"], "outcome")):
        status, out, _ = await sandherd(*operator, "dead", *words, "-o", "json")
        assert status == 0
        assert field in json.loads(out)
        assert (await sandherd(*operator, "dead", *words))[0] == 0
    assert (await sandherd(*operator, "dead", "show", "8"))[0] == 1


async def test_the_doctor_says_what_is_wrong(told: Neighbours, sandherd: Sandherd) -> None:
    """All right is status 0; a service that is away is found, named, and a remedy given."""
    status, out, _ = await sandherd("doctor", "-o", "json")
    checks = {check["check"]: check for check in json.loads(out)}
    assert status == 0
    assert checks["broker"]["state"] == "ok"
    assert "client of default" in checks["credential"]["found"]
    await told.silence(AskAudit)
    status, out, _ = await sandherd("doctor", "-o", "json")
    checks = {check["check"]: check for check in json.loads(out)}
    assert status == 1
    assert checks["history"]["remedy"]


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


@pytest.fixture
def started(context: Context) -> Callable[..., Any]:
    """Start the command as a process of its own."""

    async def start(*words: str) -> asyncio.subprocess.Process:
        place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            "from sandherd.client.cli import main; main()",
            *place,
            *words,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    return start


async def test_an_interrupted_run_says_what_goes_on(neighbours: Neighbours, started: Callable[..., Any]) -> None:
    """Ctrl-C ends the watching and not the task: status 130, one line with how to stop it, no traceback."""
    process = await started("run", "long work", "--", "sleep", "100")
    neighbours.task = (await neighbours.take(Principal.SPAWNER)).subject
    await neighbours.begin()
    async for line in process.stdout:
        if b"task.running" in line:
            process.send_signal(signal.SIGINT)
            break
    _, err = await process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines() == [
        f"sandherd: {neighbours.task} goes on; stop it with `sandherd tasks cancel {neighbours.task}`"
    ]


async def test_a_reader_that_leaves_is_no_traceback(told: Neighbours, started: Callable[..., Any]) -> None:
    """Output into a pipe that is closed, as `head` does, ends quietly."""
    process = await started("events", SANDBOX, "--follow", "-o", "json")
    process.stdout._transport.close()
    assert await process.stderr.read() == b""
    assert await process.wait() == 1
