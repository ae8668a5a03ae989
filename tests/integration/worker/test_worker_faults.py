"""Failures of a worker's broker, of its credential, and of the worker."""

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.identity import bearer
from sandherd.contracts.subjects import Principal
from sandherd_worker.worker_exit import ExitCode

pytestmark = pytest.mark.faults

WAITS = "while not os.path.exists('go'): time.sleep(0.02)"
TALKS = """
import json, os, sys, time
{first}
out = os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w")
for number in range({count}):
    data = {{"content": str(number), "content_length": len(str(number))}}
    out.write(json.dumps({{"type": "agent.message", "data": data}}) + "\\n")
    out.flush()
    time.sleep({pause})
{then}
"""


AHEAD = 250


def talks(count: int, pause: float = 0.0, then: str = "", first: str = "") -> str:
    """An agent that publishes this many numbered messages; with `WAITS` first, the test decides when it ends."""
    return TALKS.format(count=count, pause=pause, then=then, first=first)


def alive(process: int) -> bool:
    """Whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def whole(sandbox: Any, count: int) -> list[Any]:
    """All events of the sandbox, checked: each once, in sequence, without a gap, and every message of the agent."""
    events = await sandbox.events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.id for event in events}) == len(events)
    contents = [event.data.content for event in events if event.type == "agent.message"]
    assert contents == [str(number) for number in range(count)]
    return list(events)


@pytest.mark.own_broker
async def test_broker_killed_five_times_loses_no_event(sandbox: Any, herd: Any, eventually: Any) -> None:
    """Every event is stored once, in sequence, and the worker ends with everything acknowledged.

    However slow the test is, the agent is at most `AHEAD` messages further when the broker is killed: it waits there.
    """
    waits = f"while number % 300 == {AHEAD} and number < 1500 and not os.path.exists(f'killed-{{number}}'): time.sleep"
    sandbox.python(talks(2000, pause=0.001).replace("time.sleep", f"{waits}(0.01)\n    time.sleep"))
    await sandbox.start()
    for share in range(0, 1500, 300):

        async def so_far(wanted: int = share + 100) -> bool:
            return int((await sandbox.reader.js.stream_info("EVENTS")).state.messages) >= wanted

        await eventually(so_far, f"{share + 100} events")
        await herd.kill()
        (sandbox.work / f"killed-{share + AHEAD}").touch()
        await herd.restart()
    assert await sandbox.ended() == 0, sandbox.log.read_text()[-3000:]
    events = await whole(sandbox, 2000)
    assert [event.type for event in events[-2:]] == ["agent.completed", "agent.shutdown"]


@pytest.mark.own_broker
async def test_worker_without_a_broker_continues_and_is_drained_later(sandbox: Any, herd: Any, eventually: Any) -> None:
    """If it is stopped without a broker, its exit status states unsent events; a run with `--recover` sends them."""
    sandbox.python(talks(100, then="open('said', 'w').close(); time.sleep(600)"))
    await sandbox.start(SANDHERD_STOP_GRACE="3")
    await sandbox.event("tool_use")
    await herd.kill()
    await eventually((sandbox.work / "said").exists, "the agent works without a broker")
    await eventually(lambda: b'"content":"99"' in _spooled(sandbox.state / "spool"), "the spool has all")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == ExitCode.NOT_DRAINED
    assert list((sandbox.state / "spool").glob("*.log"))
    await herd.restart()
    assert await sandbox.run("--recover") == 0
    events = await whole(sandbox, 100)
    assert [event.type for event in events[-2:]] == ["agent.failed", "agent.shutdown"]
    assert events[-2].data.error_type == "stopped"
    assert not list((sandbox.state / "spool").glob("*.log"))


@pytest.mark.own_broker
async def test_worker_started_before_its_broker_joins_later(sandbox: Any, herd: Any, eventually: Any) -> None:
    """The agent of a worker without a broker waits for permission to start: no service could confirm the attempt."""
    await herd.kill()
    sandbox.task("touch done")
    await sandbox.start()
    await eventually(lambda: "broker not reachable, retrying" in sandbox.log.read_text(), "it looks for a broker")
    await herd.restart()
    assert await sandbox.ended() == 0
    await whole(sandbox, 0)


async def test_killed_worker_is_recovered(sandbox: Any, eventually: Any) -> None:
    """`--recover` ends the agent, sends stored events, and publishes the loss and the shutdown, once each."""
    sandbox.python(talks(300, then="open('pid', 'w').write(str(os.getpid())); time.sleep(600)"))
    await sandbox.start()
    await eventually(lambda: (sandbox.work / "pid").exists() and (sandbox.work / "pid").read_text(), "the agent's pid")
    sandbox.signal(signal.SIGKILL)
    assert await sandbox.ended() == -9
    agent = int((sandbox.work / "pid").read_text())
    assert await sandbox.run("--recover", SANDHERD_LOST_SIGNAL="9") == 0
    assert not alive(agent)
    events = await sandbox.events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events[-2:]] == ["agent.failed", "agent.shutdown"]
    assert (events[-2].data.error_type, events[-2].data.signal) == ("worker_lost", 9)
    assert await sandbox.run("--recover") == 0
    assert len(await sandbox.events()) == len(events)


async def test_worker_killed_after_its_agents_end_ends_it_once(sandbox: Any) -> None:
    """If `completed` was published, the recovery adds only the shutdown."""
    sandbox.task("true", linger_seconds=600)
    await sandbox.start()
    await sandbox.event("waiting")
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    assert await sandbox.run("--recover") == 0
    ends = [event.type for event in await sandbox.events("completed", "failed", "shutdown")]
    assert ends == ["agent.completed", "agent.shutdown"]


async def test_agent_is_never_started_twice(sandbox: Any, eventually: Any) -> None:
    """A worker that is started again in the same directory recovers the first one, even without `--recover`."""
    sandbox.task("echo x >> started; sleep 600")
    await sandbox.start()
    await eventually(lambda: (sandbox.work / "started").exists() and (sandbox.work / "started").read_text(), "a start")
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    assert await sandbox.run() == 0
    assert (sandbox.work / "started").read_text() == "x\n"
    assert (await sandbox.event("failed")).data.error_type == "worker_lost"


async def test_lost_worker_without_events_is_recovered(sandbox: Any) -> None:
    """The recovery of a lost worker without events publishes the task's end."""
    sandbox.task("true")
    assert await sandbox.run("--recover") == 0
    assert [event.type for event in await sandbox.events()] == ["agent.failed", "agent.shutdown"]


async def test_worker_stopped_before_its_signal_handler_was_stopped(sandbox: Any) -> None:
    """SIGTERM ends a starting worker without events: its task counts as stopped, and not as lost."""
    sandbox.task("true")
    assert await sandbox.run("--recover", SANDHERD_LOST_SIGNAL="15") == 0
    failed, last = await sandbox.events()
    assert (failed.data.error_type, failed.data.signal, last.data.reason) == ("stopped", 15, "stopped")


async def test_second_worker_in_the_same_directory_is_refused(sandbox: Any) -> None:
    """A second worker in the same directory is refused: two would use the same sequence numbers."""
    sandbox.task("sleep 600")
    await sandbox.start()
    await sandbox.event("tool_use")
    first = sandbox.process
    assert await sandbox.run("--recover") == ExitCode.BUSY
    first.terminate()
    await first.wait()


async def test_repeated_renewal_loses_no_event(sandbox: Any, desk: Any, eventually: Any) -> None:
    """With tokens of ten seconds, renewed at half their life, every event is stored once and in sequence."""
    desk.life = 10.0
    sandbox.python(
        talks(10**6, pause=0.02).replace("time.sleep", "os.path.exists('enough') and sys.exit(); time.sleep")
    )
    await sandbox.start()
    await eventually(lambda: len(desk.requested) >= 4, "three renewals")
    (sandbox.work / "enough").touch()
    assert await sandbox.ended() == 0, sandbox.log.read_text()[-3000:]
    await whole(sandbox, len(await sandbox.events("message")))
    assert len({question.public_key for question in desk.requested}) == 1
    assert {question.fence for question in desk.requested} == {7}
    # The renewal was in time: the broker never had to close the connection.
    assert "connection closed permanently" not in sandbox.log.read_text()


async def test_worker_key_is_private_and_reused(sandbox: Any, desk: Any) -> None:
    """The key is created in the state directory, only its owner can read it, and a restart uses it again.

    A recovery creates another key: the lost worker's may have been revoked since.
    """
    sandbox.task("true")
    await sandbox.run()
    key = sandbox.state / "worker.nk"
    assert key.stat().st_mode & 0o777 == 0o600
    await sandbox.run()
    assert len({question.public_key for question in desk.requested}) == 1
    await sandbox.run("--recover")
    assert len({question.public_key for question in desk.requested}) == 2


async def test_refused_worker_stops_its_agent_and_exits(sandbox: Any, desk: Any, eventually: Any) -> None:
    """A worker whose sandbox has ended or was replaced stops its agent and exits with a status of its own."""
    desk.life = 1.0
    sandbox.task("echo $$ > pid; sleep 600")
    await sandbox.start()
    await eventually(lambda: (sandbox.work / "pid").exists() and (sandbox.work / "pid").read_text(), "the agent's pid")
    desk.refuse()
    assert await sandbox.ended() == ExitCode.REFUSED
    assert not alive(int((sandbox.work / "pid").read_text()))


async def test_worker_refused_at_renewal_ends(sandbox: Any, desk: Any) -> None:
    """A worker that is refused at a renewal ends with the exit status of a refused worker."""
    desk.life = 2.0
    sandbox.task("sleep 600")
    await sandbox.start()
    await sandbox.event("tool_use")
    desk.refuse()
    assert await sandbox.ended() == ExitCode.REFUSED


async def test_worker_reconnects_after_its_credential_expired(sandbox: Any, desk: Any, eventually: Any) -> None:
    """A worker reconnects although its credential expired, and its connection closed, while the spawner was down."""
    desk.life = 1.5
    sandbox.python(talks(400, pause=0.01, then=WAITS))
    await sandbox.start()
    await sandbox.event("tool_use")
    desk.silent = True
    await eventually(lambda: "connection closed permanently" in sandbox.log.read_text(), "the broker closes it")
    (sandbox.work / "go").touch()
    desk.life, desk.silent = 3600.0, False
    assert await sandbox.ended() == 0, sandbox.log.read_text()[-3000:]
    await whole(sandbox, 400)


@pytest.mark.own_broker
async def test_full_spool_stops_the_agent_with_an_event(sandbox: Any, herd: Any, eventually: Any) -> None:
    """Without the broker and without space the agent is stopped, and the reason is published later."""
    sandbox.python(talks(10**7, first=WAITS))
    await sandbox.start(SANDHERD_SPOOL_MB="1")
    await sandbox.event("tool_use")
    await herd.kill()
    (sandbox.work / "go").touch()
    await eventually(lambda: b"agent.failed" in _spooled(sandbox.state / "spool"), "the end is in the spool")
    await herd.restart()
    assert await sandbox.ended() == 0, sandbox.log.read_text()[-3000:]
    events = await sandbox.events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    contents = [event.data.content for event in events if event.type == "agent.message"]
    assert contents == [str(number) for number in range(len(contents))]
    failed, shutdown = events[-2:]
    assert (failed.type, failed.data.error_type, shutdown.data.reason) == ("agent.failed", "internal", "spool")
    assert "limit" in failed.data.error


def _spooled(spool: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(spool.glob("*.log"))[-1:])


@pytest.mark.own_broker
async def test_output_and_events_survive_a_kill_of_broker_and_worker(sandbox: Any, herd: Any, eventually: Any) -> None:
    """All output and events that were stored before the kill are published afterwards."""
    sandbox.python(talks(200, then="print('x' * 100, flush=True); open('said', 'w').close(); time.sleep(600)"))
    await sandbox.start()
    await sandbox.event("tool_use")
    await herd.kill()
    await eventually((sandbox.work / "said").exists, "the agent has said all")
    await eventually(lambda: b'"content":"199"' in _spooled(sandbox.state / "spool"), "the spool has all")
    sandbox.signal(signal.SIGKILL)
    await asyncio.gather(sandbox.ended(), herd.restart())
    assert await sandbox.run("--recover") == 0
    await whole(sandbox, 200)


@pytest.mark.own_broker
async def test_worker_with_an_expired_credential_ends(sandbox: Any, herd: Any, eventually: Any) -> None:
    """A worker whose credential expires while the broker is down ends without having begun."""
    credentials = sandbox.state / "short.creds"
    credentials.write_text(
        herd.credentials(Principal.JOINER, project="default", sandbox=sandbox.name, life=1).read_text()
    )
    sandbox.environment = {"SANDHERD_CREDENTIALS": str(credentials)}
    await herd.kill()
    expires_at = bearer(credentials.read_text()).expires_at
    assert expires_at is not None
    await eventually(lambda: datetime.now(UTC) > expires_at, "the end of its credential")
    sandbox.task("touch begun")
    assert await sandbox.run() == ExitCode.NOT_STARTED
    assert not (sandbox.work / "begun").exists()
