"""Runs a worker's start once while the worker waits for its identity, so that the real start takes half as long.

A forked process shares its memory pages with the fork server until it writes to them, and Python writes to every object
that it uses, also to each function that it calls. So most of the CPU time of a start is used for copying pages at the
first use of these objects. The rehearsal connects to its own broker (`rehearsal_broker`) and publishes an event to it.
It runs no program, and leaves no file or connection. A process that forks workers must not run it: they would share the
random numbers that it creates, and the ids derived from them.
"""

import asyncio
import base64
import gc
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Final

from sandherd.bus.identity import credentials_text
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.requests import CredentialGrant
from sandherd.telemetry import logs
from sandherd_worker.access.archive import write_files
from sandherd_worker.access_server import AccessServer
from sandherd_worker.assignment import Assignment
from sandherd_worker.attempt_events import started
from sandherd_worker.broker_session import BrokerSession
from sandherd_worker.emitter import now
from sandherd_worker.enrollment import own_key
from sandherd_worker.harness_factory import read_spec
from sandherd_worker.rehearsal_broker import serving
from sandherd_worker.spool import Spool
from sandherd_worker.worker_lifecycle import make_parts

_SECONDS: Final = 5.0
"""How long it may take; it takes a hundredth of that on an idle machine."""
_CLEANUP_SECONDS: Final = 0.01
"""nats-py may ignore a cancellation while it connects: it is repeated, as a claimed worker waits for the end."""
_LIFE: Final = timedelta(hours=1)
_SPEC: Final = {"text": "nothing", "harness": {"kind": "command", "argv": ["true"]}}


def rehearse(*ends: int) -> bool:
    """Do what a start does, up to the acknowledgement of the first event; whether that was done.

    It is ended once one of the descriptors `ends` is readable: a worker that is claimed starts without delay.
    """
    logs.configure("worker", logs.SILENT)
    done = False
    try:
        with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
            asyncio.run(_start(Path(folder), ends))
        done = True
    except asyncio.CancelledError:
        return False
    except Exception:  # noqa: BLE001,S110  # without it a start is slower, and otherwise the same
        pass
    gc.collect()
    return done


async def _start(folder: Path, ends: Sequence[int]) -> None:
    sandbox = f"sbx-{token_hex(8)}"  # part of the client's name, which no other process knows
    async with serving(sandbox) as url:
        who = Assignment.read(_variables(folder, sandbox, url))
        spec = read_spec(who)
        assert isinstance(spec, TaskSpec)
        spool = Spool.open(who.state_dir / "spool", limit=who.spool_limit)
        try:
            await _publish(who, spec, spool, ends)
        finally:
            await spool.close()


async def _publish(who: Assignment, spec: TaskSpec, spool: Spool, ends: Sequence[int]) -> None:
    parts = make_parts(who, spec, spool)
    access = AccessServer(parts, spec)
    link = BrokerSession(who, spool, parts.stop, [parts.inbox.serve, access.serve], parts.line)
    try:
        async with asyncio.timeout(_SECONDS):
            with _cancelled_by(ends):
                await asyncio.to_thread(write_files, spec, who.work_dir)
                await link.admitted()
                await parts.emitter.emit(started(spec, who.attempt, who.work_dir))
                await spool.until(lambda: spool.depth == 0)
    finally:  # not cancelled: what is not closed would stay open in the real start
        await access.close()
        await link.close(again_after=_CLEANUP_SECONDS)


@contextmanager
def _cancelled_by(descriptors: Sequence[int]) -> Iterator[None]:
    """The task is cancelled in this context once one of the descriptors is readable."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"

    def stop_watching() -> None:
        for descriptor in descriptors:
            loop.remove_reader(descriptor)

    def cancel() -> None:
        stop_watching()
        task.cancel()

    for descriptor in descriptors:
        loop.add_reader(descriptor, cancel)
    try:
        yield
    finally:
        stop_watching()


def _variables(folder: Path, sandbox: str, url: str) -> Mapping[str, str]:
    (folder / "work").mkdir()
    (folder / "task.json").write_text(json.dumps(_SPEC))
    jwt, seed = _credential(folder)
    (folder / "joiner.creds").write_text(credentials_text(jwt, seed))
    return {
        "SANDHERD_GRANT": CredentialGrant(jwt=jwt, expires_at=now() + _LIFE).model_dump_json(),
        "SANDHERD_PROJECT": "default",
        "SANDHERD_SANDBOX_ID": sandbox,
        "SANDHERD_TASK_ID": "task-rehearsal",
        "SANDHERD_ATTEMPT": "1",
        "SANDHERD_FENCE": "1",
        "NATS_URL": url,
        "SANDHERD_CREDENTIALS": str(folder / "joiner.creds"),
        "SANDHERD_TASK_FILE": str(folder / "task.json"),
        "SANDHERD_STATE_DIR": str(folder),
        "SANDHERD_WORK_DIR": str(folder / "work"),
    }


def _credential(folder: Path) -> tuple[str, str]:
    """A credential that no broker accepts, and the seed of its key. The worker reads only the credential's claims."""
    pair = own_key(folder)
    claims = {
        "sub": pair.public_key.decode(),
        "name": "sbx-rehearsal",
        "iat": int(now().timestamp()),
        "exp": int((now() + _LIFE).timestamp()),
        "nats": {"tags": ["principal:joiner", "project:default"]},
    }
    seed = pair.seed.decode()
    pair.wipe()
    return ".".join(map(_encoded, ({"typ": "JWT"}, claims, {}))), seed


def _encoded(part: Mapping[str, object]) -> str:
    """A part of a JWT: JSON in base64url without padding."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
