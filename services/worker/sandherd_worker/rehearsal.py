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
from sandherd_worker.worker_lifecycle import make_resources

_TIMEOUT_SECONDS: Final = 5.0
"""How long the rehearsal may take, in seconds. On an idle machine it takes a hundredth of that."""
_CLEANUP_SECONDS: Final = 0.01
"""After this many seconds the session's task is cancelled again, until it has ended: nats-py may ignore a cancellation
while it connects, and a claimed worker waits for the end of the rehearsal."""
_CREDENTIAL_LIFETIME: Final = timedelta(hours=1)
_SPEC: Final = {"text": "nothing", "harness": {"kind": "command", "argv": ["true"]}}


def rehearse(*stop_descriptors: int) -> bool:
    """Do what a start does, up to the acknowledgement of the first event. Returns whether it was completed.

    The rehearsal ends once one of `stop_descriptors` is readable, so that a claimed worker starts without delay.
    """
    logs.configure("worker", logs.SILENT)
    done = False
    try:
        with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
            asyncio.run(_rehearse_start(Path(folder), stop_descriptors))
        done = True
    except asyncio.CancelledError:
        return False
    except Exception:  # noqa: BLE001,S110  # without the rehearsal, a start is slower and otherwise the same
        pass
    gc.collect()
    return done


async def _rehearse_start(folder: Path, stop_descriptors: Sequence[int]) -> None:
    sandbox = f"sbx-{token_hex(8)}"  # part of the client's name, which no other process knows
    async with serving(sandbox) as url:
        assignment = Assignment.read(_variables(folder, sandbox, url))
        spec = read_spec(assignment)
        assert isinstance(spec, TaskSpec)
        spool = Spool.open(assignment.state_dir / "spool", limit=assignment.spool_limit)
        try:
            await _publish(assignment, spec, spool, stop_descriptors)
        finally:
            await spool.close()


async def _publish(assignment: Assignment, spec: TaskSpec, spool: Spool, stop_descriptors: Sequence[int]) -> None:
    resources = make_resources(assignment, spec, spool)
    access = AccessServer(resources, spec)
    session = BrokerSession(assignment, spool, resources.stop, [resources.inbox.serve, access.serve], resources.line)
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            with _cancelled_by(stop_descriptors):
                await asyncio.to_thread(write_files, spec, assignment.work_dir)
                await session.admitted()
                await resources.emitter.emit(started(spec, assignment.attempt, assignment.work_dir))
                await spool.until(lambda: spool.depth == 0)
    finally:  # outside of the cancellation, since what is not closed here would stay open in the real start
        await access.close()
        await session.close(again_after=_CLEANUP_SECONDS)


@contextmanager
def _cancelled_by(descriptors: Sequence[int]) -> Iterator[None]:
    """Cancel the current task within this context once one of the descriptors is readable."""
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
    """The environment variables of the rehearsed worker, and the files that they name."""
    (folder / "work").mkdir()
    (folder / "task.json").write_text(json.dumps(_SPEC))
    jwt, seed = _credential(folder)
    (folder / "joiner.creds").write_text(credentials_text(jwt, seed))
    return {
        "SANDHERD_GRANT": CredentialGrant(jwt=jwt, expires_at=now() + _CREDENTIAL_LIFETIME).model_dump_json(),
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
    """The JWT of a credential that no broker accepts, and the seed of its key. The worker reads only the claims."""
    key_pair = own_key(folder)
    claims = {
        "sub": key_pair.public_key.decode(),
        "name": "sbx-rehearsal",
        "iat": int(now().timestamp()),
        "exp": int((now() + _CREDENTIAL_LIFETIME).timestamp()),
        "nats": {"tags": ["principal:joiner", "project:default"]},
    }
    seed = key_pair.seed.decode()
    key_pair.wipe()
    return ".".join(map(_encode_part, ({"typ": "JWT"}, claims, {}))), seed


def _encode_part(part: Mapping[str, object]) -> str:
    """A part of a JWT: JSON in base64url without padding."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
