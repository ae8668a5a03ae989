"""The `command` harness with real programs: output, messages, exit, and leftover processes."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.inbox_messages import InboxMessage
from sandherd_worker import oom
from sandherd_worker.emitter import Emitter
from sandherd_worker.harnesses.base import MessageRefusedError
from sandherd_worker.harnesses.command import CommandHarness, one_line
from sandherd_worker.harnesses.program import Program
from sandherd_worker.harnesses.terminal_output import OutputRate, TerminalOutput
from sandherd_worker.inbox import DeliveredMessages, Inbox
from sandherd_worker.processes import PLACE_VARIABLE, Reaper, descendants, orphans
from sandherd_worker.redaction import Redactor

Make = Callable[..., CommandHarness]


@pytest.fixture
def older() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the tests that is older than the worker under test."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def make(tmp_path: Path, listener: Any, reaper: Reaper) -> Make:
    def make(
        *argv: str, kills: Callable[[], int | None] = lambda: 0, stdin: str | None = None, **environment: str
    ) -> CommandHarness:
        environment = {"PATH": os.environ["PATH"], **environment}
        program = Program(argv=argv, environment=environment, work_dir=tmp_path, stdin=stdin)
        return CommandHarness(program, listener, Redactor(["hunter2-hunter2"]), reaper, kills)

    return make


def message(content: str, kind: Any = "user_message") -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message="msg-1",
        project="p1",
        sandbox="sbx-1",
        content=content,
        message_type=kind,
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


async def test_program_is_reported_from_start_to_result(make: Make, listener: Any) -> None:
    """Turn, call, output and result are events; standard output and error are one stream, in order."""
    harness = make("/bin/sh", "-c", "echo one; echo two >&2; echo three")
    await harness.start()
    ended = await harness.ended()
    assert (ended.error_type, ended.exit_code) == (None, 0)
    assert listener.output == "one\ntwo\nthree\n"
    assert listener.types() == ["turn_started", "tool_use", "tool_result", "tool_completed", "turn_completed"]
    assert listener.events[2].result == "one\ntwo\nthree\n"
    assert [(event.outcome, event.exit_code) for event in listener.events[2:4]] == [("ok", 0)] * 2


@pytest.mark.parametrize(
    ("script", "error_type", "code", "killed_by"),
    [
        ("exit 3", "exit_status", 3, None),
        ("kill -9 $$", "signal", None, 9),
        ("kill -SEGV $$", "signal", None, 11),
        ("exit 137", "exit_status", 137, None),
    ],
)
async def test_failure_and_signal_are_distinguished(
    make: Make, listener: Any, script: str, error_type: str, code: int | None, killed_by: int | None
) -> None:
    """An exit code and a signal yield different results; the call has failed, with its exit code."""
    harness = make("/bin/sh", "-c", script)
    await harness.start()
    ended = await harness.ended()
    assert (ended.error_type, ended.exit_code, ended.signal) == (error_type, code, killed_by)
    assert [(event.outcome, event.exit_code) for event in listener.events[2:4]] == [("failed", code)] * 2


@pytest.mark.parametrize("script", ["kill -9 $$", "sh -c 'kill -9 $$'; exit $?"])
async def test_oom_kill_is_distinguished_from_sigkill(make: Make, script: str) -> None:
    """A SIGKILL, also one reported by a shell, is out of memory if the kernel's counter has moved."""
    counts = iter((4, 5))
    harness = make("/bin/sh", "-c", script, kills=lambda: next(counts))
    await harness.start()
    assert (await harness.ended()).error_type == "out_of_memory"


async def test_missing_program_is_a_start_error(make: Make, listener: Any) -> None:
    """The attempt ends like any other, with the call closed and the reason as text."""
    harness = make("/nowhere/agent")
    await harness.start()
    ended = await harness.ended()
    assert (ended.error_type, ended.error) == ("start", "/nowhere/agent: No such file or directory")
    assert listener.types()[-1] == "turn_completed"


async def test_messages_reach_standard_input_as_lines(make: Make, listener: Any, eventually: Any) -> None:
    """Messages arrive during the work and in order. Each is one line, whatever it contains."""
    harness = make(
        sys.executable, "-uc", "import sys\nprint('up')\nfor n in range(2): print(repr(sys.stdin.readline()))"
    )
    await harness.start()
    await eventually(lambda: "up" in listener.output, "the program runs")
    await harness.inject(message("first"))
    await harness.inject(message("a\\b\nc\rd"))
    await harness.ended()
    assert listener.output.splitlines() == ["up", repr("first\n"), repr("a\\\\b\\nc\\rd\n")]


def test_escaped_line_restores_the_message() -> None:
    """The escapes in a line are unambiguous."""
    text = "a\\n\n\\\\\r\n"
    line = one_line(text).decode().rstrip("\n")
    assert "\n" not in line
    assert line.encode().decode("unicode_escape") == text


async def test_interrupt_stops_the_work_but_not_the_program(make: Make, listener: Any, eventually: Any) -> None:
    """The program gets SIGINT, then the instruction on standard input, and continues."""
    script = (
        "import time\n"
        "try:\n    print('up', flush=True)\n    time.sleep(600)\n"
        "except KeyboardInterrupt:\n    print('stopped', input())"
    )
    harness = make(sys.executable, "-c", script)
    await harness.start()
    await eventually(lambda: "up" in listener.output, "the program runs")
    await harness.inject(message("do that", "interrupt"))
    assert (await harness.ended()).exit_code == 0
    assert "stopped do that" in listener.output


COUNTS = """
import signal, sys
stops = []
signal.signal(signal.SIGINT, lambda *_: stops.append(1))
print("up", flush=True)
signal.pause()
print([line[:3] for line in (sys.stdin.readline(), sys.stdin.readline())], len(stops))
"""


async def test_one_interrupt_sends_one_sigint(
    make: Make, listener: Any, eventually: Any, emitter: Emitter, tmp_path: Path, assignment: Any
) -> None:
    """One SIGINT is sent even if the interrupt waits behind an unread message: a second would end most programs."""
    harness = make(sys.executable, "-uc", COUNTS)
    inbox = Inbox(assignment(tmp_path), emitter, DeliveredMessages(tmp_path / "injected"))
    await harness.start()
    inbox.ready(harness)
    await eventually(lambda: "up" in listener.output, "the program runs")
    # More than a pipe takes, so that it waits until it is read; it is read after the signal.
    long = message("one" + "\n" * 60_000).model_copy(update={"message": "msg-0"})
    waiting = asyncio.ensure_future(inbox.deliver(long.model_dump_json().encode()))
    stop = message("two", "interrupt").model_dump_json().encode()
    receipts = await asyncio.gather(waiting, inbox.deliver(stop))
    assert [receipt and receipt.outcome for receipt in receipts] == ["acknowledged", "acknowledged"]
    assert (await harness.ended()).exit_code == 0
    assert listener.output.splitlines()[1:] == ["['one', 'two'] 1"]


async def test_closed_input_and_ended_program_refuse_messages(make: Make, listener: Any, eventually: Any) -> None:
    """Each message is refused with a reason, and none is silently dropped."""
    harness = make("/bin/sh", "-c", "exec 0<&-; echo closed; exec sleep 600")
    await harness.start()
    await eventually(lambda: "closed" in listener.output, "the input is closed")
    # The pipe may take a line before the kernel reports that it has no reader.
    await asyncio.gather(harness.inject(message("x")), return_exceptions=True)
    with pytest.raises(MessageRefusedError, match="closed its standard input"):
        await harness.inject(message("x"))
    await harness.stop(0)
    with pytest.raises(MessageRefusedError, match="has ended"):
        await harness.inject(message("x"))


async def test_program_with_its_task_on_stdin_refuses_messages(make: Make, listener: Any, eventually: Any) -> None:
    """Standard input is the task and then closed, however long; a message is refused with the reason."""
    harness = make("/bin/sh", "-c", "wc -c; exec sleep 600", stdin="x" * 300_000)
    await harness.start()
    await eventually(lambda: "300000" in listener.output, "it has read everything")
    with pytest.raises(MessageRefusedError, match="was its task"):
        await harness.inject(message("x"))
    await harness.stop(0)


async def test_program_that_does_not_read_its_task_ends(make: Make) -> None:
    """The unread part of the task is dropped."""
    harness = make("true", stdin="x" * 300_000)
    await harness.start()
    assert (await harness.ended()).exit_code == 0


async def test_stop_terminates_and_then_kills(make: Make, listener: Any, eventually: Any) -> None:
    """A program that handles SIGTERM ends by itself; another is killed, with all its children."""
    gentle = make("/bin/sh", "-c", "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    await gentle.start()
    await eventually(lambda: "up" in listener.output, "the program runs")
    await gentle.stop(20)
    assert ((await gentle.ended()).error_type, "bye" in listener.output) == ("stopped", True)
    assert {event.outcome for event in listener.events if hasattr(event, "outcome")} == {"cancelled"}
    listener.output = ""
    stubborn = make("/bin/sh", "-c", "trap '' TERM; (trap '' TERM; sleep 600) & echo up; while :; do sleep 600; done")
    await stubborn.start()
    await eventually(lambda: "up" in listener.output, "the program runs")
    before = descendants()
    await stubborn.stop(0.2)
    assert (await stubborn.ended()).signal == signal.SIGKILL
    assert not descendants() & before


async def test_no_process_outlives_its_program(make: Make, listener: Any) -> None:
    """A background job and a process in its own session end too, even if they ignore SIGTERM."""
    script = "sleep 600 & (trap '' TERM; setsid sleep 600 &) ; setsid sh -c 'sleep 600 & sleep 600' & echo done"
    harness = make("/bin/sh", "-c", script)
    await harness.start()
    assert (await harness.ended()).exit_code == 0
    assert not descendants()


async def test_process_of_other_tests_is_not_ended(older: subprocess.Popen[bytes], make: Make) -> None:
    """A harness ends what its program has left, and not what this process of the tests had started before."""
    harness = make("/bin/sh", "-c", "sleep 600 &")
    await harness.start()
    assert (await harness.ended()).exit_code == 0
    assert not descendants()
    assert older.poll() is None


async def test_orphans_are_reaped(make: Make, reaper: Reaper) -> None:
    """A process without its parent leaves no entry in the process table."""
    harness = make("/bin/sh", "-c", "(sh -c 'exit 5' &) ; sleep 0.2")
    await harness.start()
    await harness.ended()
    reaper.collect()
    with suppress(ChildProcessError):  # there is no other child
        assert os.waitpid(-1, os.WNOHANG)[0] == 0  # noqa: ASYNC222  # it does not wait


async def test_events_pipe_and_output_are_both_read(make: Make, listener: Any) -> None:
    """Lines on the events pipe become events; what is printed is output."""
    script = (
        "import os, json\nfd = int(os.environ['SANDHERD_EVENTS_FD'])\nprint('hello', flush=True)\n"
        'os.write(fd, b\'{"type":"agent.usage","data":{"input_tokens":5}}\\n{bad\\n\')'
    )
    harness = make(sys.executable, "-c", script)
    await harness.start()
    await harness.ended()
    assert [event.type for event in listener.events if event.type in {"agent.usage", "agent.error"}] == [
        "agent.usage",
        "agent.error",
    ]
    assert listener.output == "hello\n"


async def test_secret_in_the_output_is_redacted(make: Make, listener: Any) -> None:
    """Terminal output and the result are redacted, also if it comes in two pieces."""
    harness = make("/bin/sh", "-c", "printf 'a hunter2-'; sleep 0.3; echo 'hunter2 b'")
    await harness.start()
    ended = await harness.ended()
    assert listener.output == "a [redacted] b\n"
    assert ended.final_output == "a [redacted] b\n"


async def test_agent_is_blocked_while_its_output_cannot_be_stored(make: Make, listener: Any, tmp_path: Path) -> None:
    """Back-pressure holds the program in its write: nothing is dropped or accumulated."""
    listener.gate.set()
    script = (
        "import sys\nfor n in range(64):\n    sys.stdout.write('x' * 65536)\n    open('progress', 'w').write(str(n))"
    )
    harness = make(sys.executable, "-c", script)
    await harness.start()
    listener.gate.clear()
    held = await asyncio.wait([asyncio.ensure_future(harness.ended())], timeout=1.0)
    assert not held[0]
    progress = int((tmp_path / "progress").read_text())
    assert progress < 20
    listener.gate.set()
    assert (await harness.ended()).exit_code == 0
    assert len(listener.output) == 64 * 65536


async def test_characters_are_not_split(listener: Any) -> None:
    """A character whose bytes come in two pieces is shown whole; invalid bytes are unchanged."""
    reader = asyncio.StreamReader()
    reading = asyncio.ensure_future(TerminalOutput(Redactor(), listener.show).read(reader))
    euro = "€".encode()
    reader.feed_data(b"a " + euro[:1])
    await asyncio.sleep(0)
    reader.feed_data(euro[1:] + b" \xff\n")
    reader.feed_eof()
    await reading
    assert listener.output.encode("utf-8", "surrogateescape") == "a € ".encode() + b"\xff\n"


def test_output_is_rate_limited() -> None:
    """A burst is free; beyond it, bytes cost time; after a rest there is a burst again."""
    pace = OutputRate(rate=100, burst=1000)
    assert pace.wait(1000, now=10.0) == 0
    assert pace.wait(200, now=10.0) == pytest.approx(2.0)
    assert pace.wait(500, now=60.0) == 0


async def test_processes_of_a_lost_worker_are_found_by_their_environment(make: Make) -> None:
    """Only processes of the agent of this sandbox are found."""
    harness = make("/bin/sleep", "600", **{PLACE_VARIABLE: "sbx-lost"})
    await harness.start()
    assert len(orphans("sbx-lost")) == 1
    assert orphans("sbx-los") == orphans("sbx-other") == set()
    await harness.stop(0)
    assert orphans("sbx-lost") == set()


def test_oom_kills_are_read_from_the_sandboxs_group_first(tmp_path: Path) -> None:
    """The count is that of cgroup version 2, else of version 1, else of the machine; None if none can be read."""
    machine = tmp_path / "vmstat"
    assert oom.kills(tmp_path, machine) is None
    machine.write_text("pgfault 1\noom_kill 7\n")
    assert oom.kills(None, machine) == oom.kills(tmp_path, machine) == 7
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert oom.kills(tmp_path, machine) == 3
    (tmp_path / "memory.events").write_text("low 0\noom 2\noom_kill 2\n")
    assert oom.kills(tmp_path, machine) == 2


@pytest.mark.parametrize(
    ("files", "peak", "limit"),
    [
        ({}, None, None),
        ({"memory.peak": "700\n", "memory.max": "800\n"}, 700, 800),
        ({"memory.max": "max\n"}, None, None),
        ({"memory.max_usage_in_bytes": "700\n", "memory.limit_in_bytes": "800\n"}, 700, 800),
        ({"memory.limit_in_bytes": "9223372036854771712\n"}, None, None),
    ],
)
def test_memory_figures_are_those_of_the_sandboxs_group(
    tmp_path: Path, files: dict[str, str], peak: int | None, limit: int | None
) -> None:
    """The figures of cgroup versions 1 and 2 are read. A figure is None if it can't be read, or without a limit."""
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert oom.memory_fields(tmp_path) == {"memory_peak_bytes": peak, "memory_limit_bytes": limit}
    assert set(oom.memory_fields(None).values()) == {None}
