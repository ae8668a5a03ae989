"""The start of a worker: with or without permission, with or without a task, cold or after waiting warm."""

import asyncio
import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.identity import Minter, SpawnerKeys
from sandherd.bus.identity.keys import Key, KeyKind
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import CredentialGrant, WorkerExec
from sandherd.contracts.subjects import Principal
from sandherd_worker.worker_exit import ExitCode


@pytest.fixture(autouse=True)
def _cold(sandbox: Any) -> None:
    sandbox.cold = True


def kinds(events: list[Any]) -> list[str]:
    return [event.type.removeprefix("agent.") for event in events]


async def test_attempt_without_permission_does_not_start(sandbox: Any, desk: Any) -> None:
    """An attempt that is over does not run again, whichever process started its worker; nothing is to be recovered."""
    desk.may_start = False
    sandbox.task("touch begun")
    assert await sandbox.run() == ExitCode.NOT_STARTED
    assert not (sandbox.work / "begun").exists()
    assert await sandbox.events() == []
    assert not list((sandbox.state / "spool").glob("*.log"))


async def test_refused_worker_does_not_start(sandbox: Any, desk: Any) -> None:
    """A worker whose sandbox is unknown does not start either."""
    desk.refuse()
    sandbox.task("touch begun")
    assert await sandbox.run() == ExitCode.NOT_STARTED
    assert await sandbox.events() == []


async def test_worker_stopped_before_permission_publishes_nothing(sandbox: Any, desk: Any, eventually: Any) -> None:
    """A worker that is stopped before it gets permission publishes nothing: the attempt has never begun."""
    desk.silent = True
    sandbox.task("touch begun", files={"laid-out": "x"})
    await sandbox.start()
    await eventually((sandbox.work / "laid-out").exists, "what can be done without leave")
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == ExitCode.NOT_STARTED
    assert not (sandbox.work / "begun").exists()
    assert await sandbox.events() == []


async def test_permission_to_start_is_requested_once(sandbox: Any, desk: Any, eventually: Any) -> None:
    """A running attempt continues when a later credential lacks the permission: it may linger after its task."""
    desk.life = 2.0
    sandbox.task("while ! test -e enough; do sleep 0.05; done")
    await sandbox.start()
    await sandbox.event("tool_use")
    desk.may_start = False
    seen = len(desk.requested)
    await eventually(lambda: len(desk.requested) >= seen + 2, "two renewals")
    (sandbox.work / "enough").touch()
    assert await sandbox.ended() == 0
    assert kinds(await sandbox.events())[-2:] == ["completed", "shutdown"]


async def test_new_joiner_credential_is_stored_and_used(sandbox: Any, desk: Any, herd: Any, eventually: Any) -> None:
    """The new file replaces the old one atomically, and only its owner may read it."""
    fresh = herd.credentials(Principal.JOINER, project="default", sandbox=sandbox.name, life=7200).read_text()
    own = sandbox.state / "joiner.creds"
    own.write_text(herd.credentials(Principal.JOINER, project="default", sandbox=sandbox.name).read_text())
    sandbox.environment = {"SANDHERD_CREDENTIALS": str(own)}
    desk.joiner, desk.life = fresh, 2.0
    sandbox.task("while ! test -e enough; do sleep 0.05; done")
    await sandbox.start()
    await eventually(lambda: len(desk.requested) >= 2, "a renewal over the new way in")
    assert own.read_text() == fresh
    assert own.stat().st_mode & 0o777 == 0o600
    (sandbox.work / "enough").touch()
    assert await sandbox.ended() == 0
    assert not (sandbox.state / "joiner.creds.new").exists()


async def test_sandbox_without_a_task_lives_until_it_is_ended(sandbox: Any) -> None:
    """The worker publishes heartbeats, serves requests, and publishes a shutdown, but no end of a task."""
    sandbox.bare(files={"a/b.txt": "hi\n"}, env={"X": "1"})
    await sandbox.start(HEARTBEAT_INTERVAL="0.2")
    started = await sandbox.event("started")
    assert (started.data.sdk, started.data.task, started.taskid) == ("none", "", None)
    assert (await sandbox.exec("/bin/cat", "a/b.txt")).output[0].data == b"hi\n"
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    published = kinds(await sandbox.events())
    assert set(published) == {"started", "heartbeat", "exec_started", "exec_completed", "shutdown"}
    assert published[-1] == "shutdown"
    assert (await sandbox.event("shutdown")).data.reason == "stopped"


async def test_lost_worker_without_a_task_is_recovered(sandbox: Any) -> None:
    """Only the shutdown event is published, as there was no task that could fail."""
    sandbox.bare()
    await sandbox.start()
    await sandbox.event("started")
    sandbox.signal(signal.SIGKILL)
    await sandbox.ended()
    assert await sandbox.run("--recover", SANDHERD_LOST_SIGNAL="9") == 0
    assert [kind for kind in kinds(await sandbox.events()) if kind != "heartbeat"] == ["started", "shutdown"]
    assert (await sandbox.event("shutdown")).data.reason == "worker_lost"


async def _warm(sandbox: Any, eventually: Any) -> None:
    """Start a worker that has no identity yet, and wait until it waits for one."""
    everything = sandbox.variables()
    sandbox.variables = lambda: {name: everything[name] for name in ("PATH", "PYTHONPATH", "SANDHERD_STATE_DIR")}
    (sandbox.state / "environment.json").write_text(json.dumps(everything))
    await sandbox.start("--warm")
    await eventually(lambda: _opened(sandbox.state / "begin"), "it waits at its pipe")


def _opened(pipe: Path) -> bool:
    """Whether a process has opened the pipe for reading."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


async def test_warm_worker_idles_until_it_is_assigned(sandbox: Any, eventually: Any) -> None:
    """A warm worker begins only with a byte in its pipe; opening the pipe is no sign."""
    await _warm(sandbox, eventually)
    await eventually(lambda: _rests(sandbox.process.pid), "it has no more to do before it waits")
    spent = _cpu(sandbox.process.pid)
    for _ in range(5):
        await eventually(lambda: _opened(sandbox.state / "begin"), "it waits still")
    await eventually(lambda: _state(sandbox.process.pid) == "S", "it sleeps")
    assert _cpu(sandbox.process.pid) - spent <= 2
    sandbox.task("echo done")
    with (sandbox.state / "begin").open("wb", buffering=0) as pipe:
        pipe.write(b"\n")
    assert await sandbox.ended() == 0, sandbox.log.read_text()
    assert kinds(await sandbox.events())[-2:] == ["completed", "shutdown"]
    assert await sandbox.output() == "done\n"


async def _assign(sandbox: Any, grant: CredentialGrant) -> None:
    """Let a waiting worker begin, with this credential."""
    path = sandbox.state / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"SANDHERD_GRANT": grant.model_dump_json()}))
    (sandbox.state / "begin").write_bytes(b"\n")


async def test_warm_worker_connects_with_the_credential_of_its_assignment(
    sandbox: Any, desk: Any, herd: Any, eventually: Any
) -> None:
    """A warm worker uses the credential for its stored key, and requests none until it has to be renewed."""
    sandbox.task("while ! test -e enough; do sleep 0.05; done")
    await _warm(sandbox, eventually)
    key = (sandbox.state / "worker.pub").read_text()
    token, expires_at = herd.minter().mint_worker("default", sandbox.name, key, 3.0)
    await _assign(sandbox, CredentialGrant(jwt=token, expires_at=expires_at))
    await sandbox.event("started")
    await eventually(lambda: len(desk.requested) >= 1, "a renewal")
    (sandbox.work / "enough").touch()
    assert await sandbox.ended() == 0, sandbox.log.read_text()
    assert {request.public_key for request in desk.requested} == {key}
    assert kinds(await sandbox.events("started", "completed")) == ["started", "completed"]


async def test_warm_worker_with_a_refused_credential_does_not_start(
    sandbox: Any, desk: Any, herd: Any, eventually: Any
) -> None:
    """If the broker refuses the credential, as that of an ended attempt, the request for another one decides."""
    desk.may_start = False
    sandbox.task("touch begun")
    await _warm(sandbox, eventually)
    token, expires_at = herd.minter().mint_worker("default", sandbox.name, Key.new(KeyKind.USER).public, 3600)
    await _assign(sandbox, CredentialGrant(jwt=token, expires_at=expires_at))
    assert await sandbox.ended() == ExitCode.NOT_STARTED
    assert len(desk.requested) == 1
    assert not (sandbox.work / "begun").exists()
    assert await sandbox.events() == []


async def test_warm_worker_with_an_expired_credential_requests_one(
    sandbox: Any, desk: Any, herd: Any, eventually: Any
) -> None:
    """A worker that its host had suspended before it began requests a new credential."""
    sandbox.task("echo done")
    await _warm(sandbox, eventually)
    token, _ = herd.minter().mint_worker("default", sandbox.name, (sandbox.state / "worker.pub").read_text(), 3600)
    await _assign(sandbox, CredentialGrant(jwt=token, expires_at=datetime(2026, 1, 1, tzinfo=UTC)))
    assert await sandbox.ended() == 0, sandbox.log.read_text()
    assert len(desk.requested) == 1


async def test_warm_worker_with_an_old_credential_requests_one(
    sandbox: Any, desk: Any, herd: Any, eventually: Any
) -> None:
    """The attempt may have ended since the credential was issued, for example while the spawner was stopped."""
    desk.may_start = False
    sandbox.task("touch begun")
    await _warm(sandbox, eventually)
    issued_at = datetime.now(UTC) - timedelta(seconds=60)
    minter = Minter(SpawnerKeys.read(herd.spawner_identity), lambda: issued_at)
    token, expires_at = minter.mint_worker("default", sandbox.name, (sandbox.state / "worker.pub").read_text(), 3600)
    await _assign(sandbox, CredentialGrant(jwt=token, expires_at=expires_at))
    assert await sandbox.ended() == ExitCode.NOT_STARTED
    assert len(desk.requested) == 1
    assert not (sandbox.work / "begun").exists()
    assert await sandbox.events() == []


@pytest.mark.parametrize("grant", ["{", '{"jwt": "x", "expires_at": "2100-01-01T00:00:00Z"}'], ids=["cut", "no token"])
async def test_warm_worker_with_an_unreadable_credential_requests_one(
    sandbox: Any, desk: Any, eventually: Any, grant: str
) -> None:
    """A worker with an unreadable credential acts as if it had none; the text of the credential is not logged."""
    sandbox.task("echo done")
    await _warm(sandbox, eventually)
    path = sandbox.state / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"SANDHERD_GRANT": grant}))
    (sandbox.state / "begin").write_bytes(b"\n")
    assert await sandbox.ended() == 0, sandbox.log.read_text()
    assert len(desk.requested) == 1
    assert "2100" not in sandbox.log.read_text()


async def test_stopped_warm_worker_publishes_nothing(sandbox: Any, eventually: Any) -> None:
    """SIGTERM ends a waiting worker normally, and it publishes nothing."""
    await _warm(sandbox, eventually)
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0
    assert await sandbox.events() == []


async def test_warm_worker_without_an_environment_fails(sandbox: Any, eventually: Any) -> None:
    """An invalid environment file leads to the exit status of a usage error, and the log names the file."""
    await _warm(sandbox, eventually)
    (sandbox.state / "environment.json").write_text("[]")
    (sandbox.state / "begin").write_bytes(b"\n")
    assert await sandbox.ended() == ExitCode.USAGE
    assert "environment.json" in sandbox.log.read_text()


async def test_agent_sees_its_attempt(sandbox: Any) -> None:
    """A variable has the attempt's number; if no earlier attempt is offered, the agent gets no folder of one."""
    sandbox.task("echo $SANDHERD_ATTEMPT-$SANDHERD_PREVIOUS_DIR")
    assert await sandbox.run(SANDHERD_ATTEMPT="3", SANDHERD_PREVIOUS_DIR="/x") == 0
    assert await sandbox.output() == "3-\n"


async def test_early_command_is_answered_after_the_start(sandbox: Any) -> None:
    """The reply to a command follows `started`, however early the request was."""
    sandbox.task("sleep 600")
    await sandbox.start()
    answer = await sandbox.ask(WorkerExec(exec=new_name("exc"), command=["/bin/true"]))
    assert answer.state == "exited"
    assert kinds(await sandbox.events("started", "exec_started"))[0] == "started"
    sandbox.signal(signal.SIGTERM)
    assert await sandbox.ended() == 0


def _cpu(process: int) -> int:
    """The CPU time of a process in clock ticks."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def _rests(process: int) -> bool:
    """Whether a process uses no CPU time for a moment."""
    spent = _cpu(process)
    await asyncio.sleep(0.2)  # the moment in which its CPU time is compared
    return _cpu(process) == spent


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
