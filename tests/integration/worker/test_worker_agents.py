"""An agent in a real worker: its actions reach the broker, and messages reach it."""

import re
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

from sandherd.contracts import asyncapi
from sandherd.contracts.headers import MESSAGE_ID, REPUBLISHED
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.subjects import Principal


def letter(name: str, content: str, kind: Any = "user_message") -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message=name,
        project="default",
        sandbox="sbx-1",
        content=content,
        message_type=kind,
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


def kinds(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("agent.") for event in events]


async def test_message_during_a_run_reaches_standard_input_once(sandbox: Any, herd: Any) -> None:
    """A message that is delivered three times is acknowledged three times and injected once; the agent acts on it."""
    sandbox.python("print('up', flush=True)\nprint('heard', input(), flush=True)\nprint('and', input())")
    await sandbox.start()
    await sandbox.event("tool_use")
    async with herd.bus(Principal.MESSAGE_RELAY) as relay:
        first = letter("msg-1", "go on")
        for _ in range(3):
            receipt = await sandbox.deliver(relay, first)
            assert receipt.outcome == "acknowledged"
        assert len(await _settled(sandbox, "message_injected")) == 1
        await sandbox.deliver(relay, letter("msg-2", "that is all"))
    assert await sandbox.ended() == 0
    assert await sandbox.output() == "up\nheard go on\nand that is all\n"
    injected = await sandbox.events("message_injected")
    assert [event.data.message_id for event in injected] == ["msg-1", "msg-2"]


async def _settled(sandbox: Any, kind: str) -> list[Any]:
    await sandbox.event(kind)
    return list(await sandbox.events(kind))


async def test_message_to_an_ended_agent_is_rejected_with_the_reason(sandbox: Any, herd: Any) -> None:
    """While the sandbox lingers, its worker still replies, and rejects a message to the ended agent with the reason."""
    sandbox.task("true", linger_seconds=600)
    await sandbox.start()
    await sandbox.event("waiting")
    async with herd.bus(Principal.MESSAGE_RELAY) as relay:
        receipt = await sandbox.deliver(relay, letter("msg-1", "hello?"))
    assert (receipt.outcome, "has ended" in (receipt.reason or "")) == ("rejected", True)
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert kinds(await sandbox.events())[-3:] != ["failed", "shutdown"]
    assert (await sandbox.event("shutdown")).data.reason == "stopped"


async def test_heartbeats_continue_while_the_agent_is_busy(sandbox: Any, eventually: Any) -> None:
    """A program that blocks in one long call does not stop the worker's heartbeats."""
    sandbox.python("import time\ntime.sleep(600)")
    await sandbox.start(HEARTBEAT_INTERVAL="0.2")

    async def five() -> bool:
        beats = await sandbox.events("heartbeat")
        return len([beat for beat in beats if beat.data.status == "running"]) >= 5

    await eventually(five, "five heartbeats while the agent runs")
    beat = (await sandbox.events("heartbeat"))[-1].data
    assert beat.event_count >= 5
    assert beat.memory_bytes > 10_000_000
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0


async def test_edit_by_a_shell_is_reported_with_its_diff(sandbox: Any) -> None:
    """An edit is reported while the agent runs, and also an edit in its last moment."""
    sandbox.task(
        # It is written elsewhere and moved, as a scan may happen at any moment.
        "sed s/two/TWO/ notes.txt >../edited; mv ../edited notes.txt; read wait; rm notes.txt",
        files={"notes.txt": "one\ntwo\nthree\n", "a/b.txt": "x\n"},
    )
    await sandbox.start()
    edited = (await sandbox.event("file_edited")).data
    assert (edited.file_path, edited.change_type, edited.lines_added, edited.lines_removed) == (
        "notes.txt",
        "modified",
        1,
        1,
    )
    assert edited.full_diff == "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0


async def test_edit_in_the_last_moment_is_reported_before_the_end(sandbox: Any) -> None:
    """The last scan follows the end of all of the agent's processes, and precedes `completed`."""
    sandbox.task("echo done > last.txt; exit 0")
    assert await sandbox.run() == 0
    published = kinds(await sandbox.events("file_edited", "completed"))
    assert published == ["file_edited", "completed"]
    assert (await sandbox.event("completed")).data.files_changed == 1


async def test_large_diff_is_published_as_an_artifact(sandbox: Any) -> None:
    """The event has a reference; the chunks in the stream restore the diff."""
    sandbox.python("open('big.txt', 'w').write('\\n'.join('line %d of many' % n for n in range(7000)))")
    assert await sandbox.run() == 0
    edited = (await sandbox.event("file_edited")).data
    reference = edited.full_diff_ref
    assert edited.full_diff is None
    chunks = await sandbox.stored(reference.subject)
    assert [headers["Nats-Msg-Id"] for _, _, headers in chunks] == [
        f"{reference.artifact}-{index}" for index in range(reference.chunks)
    ]
    documented = asyncapi.document()["components"]["messages"]["artifact"]["headers"]["properties"]
    own = [{*headers} - {*REPUBLISHED} for _, _, headers in chunks]
    assert all({MESSAGE_ID} <= headers <= {*documented} for headers in own)
    assert all(re.search(documented[MESSAGE_ID]["pattern"], headers[MESSAGE_ID]) for _, _, headers in chunks)
    diff = b"".join(data for _, data, _ in chunks).decode()
    assert (len(diff), diff.count("\n+line"), edited.lines_added) == (edited.full_diff_size, 7000, 7000)


async def test_killed_agent_is_distinguished_from_a_failed_one(sandbox: Any) -> None:
    """A SIGKILL of the agent is reported as a signal; the worker survives it, and exits with 0."""
    sandbox.task("kill -9 $$")
    assert await sandbox.run() == 0
    failed = (await sandbox.event("failed")).data
    assert (failed.error_type, failed.signal, failed.exit_code) == ("signal", 9, None)
    assert kinds(await sandbox.events())[-2:] == ["failed", "shutdown"]


async def test_secret_does_not_reach_the_broker(sandbox: Any) -> None:
    """Output, a file's diff, the agent's events and its end are redacted."""
    secret = "correct-horse-battery"
    script = (
        "import os, json\nsecret = os.environ['TOKEN']\n"
        "print('got', secret)\nopen('leak.txt', 'w').write(secret + '\\n')\n"
        "line = {'type': 'agent.tool_use', 'data': {'tool': 'curl', 'tool_use_id': '1', 'input': {'h': secret}}}\n"
        "os.write(int(os.environ['SANDHERD_EVENTS_FD']), (json.dumps(line) + '\\n').encode())"
    )
    sandbox.python(script, env={"TOKEN": secret}, secret_env=["TOKEN"])
    assert await sandbox.run() == 0
    stored = await sandbox.stored(f"sandherd.v1.event.default.{sandbox.name}.agent.*")
    everything = b"".join(data for _, data, _ in stored) + (await sandbox.output()).encode()
    assert everything.count(b"[redacted]") >= 4
    assert secret.encode() not in everything
    assert secret not in sandbox.log.read_text()


async def test_trace_is_in_every_event(sandbox: Any) -> None:
    """Submission, start, work and history of a task have one trace."""
    sandbox.task("true")
    await sandbox.run()
    traces = {event.traceparent for event in await sandbox.events()}
    assert traces == {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}


async def test_worker_leaves_no_process_behind(sandbox: Any) -> None:
    """Processes in their own sessions that ignore SIGTERM end with the worker, too."""
    sandbox.task("(trap '' TERM; setsid sleep 4711 &) ; trap '' TERM; echo up; while :; do sleep 4711; done")
    await sandbox.start()
    await sandbox.event("tool_use")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert sandbox.processes() == []
    assert (await sandbox.event("failed")).data.error_type == "stopped"
