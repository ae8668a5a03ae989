"""A worker's life cycle: it opens the spool, joins the herd, runs its work or recovers a lost worker's, and drains."""

import asyncio
import signal
from collections.abc import Callable
from secrets import token_urlsafe
from typing import TYPE_CHECKING, Any

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.commands import SandboxSpec, TaskSpec
from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import BrokerSession, CurrentConnection
from sandherd_worker.emitter import Emitter
from sandherd_worker.enrollment import delete_key
from sandherd_worker.harness_factory import secrets
from sandherd_worker.inbox import DeliveredMessages, Inbox
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.redaction import Redactor
from sandherd_worker.spool import Spool
from sandherd_worker.uplink import Uplink
from sandherd_worker.worker_exit import SPOOL, ExitCode, StopRequest, without_task
from sandherd_worker.worker_resources import WorkerResources

if TYPE_CHECKING:
    from sandherd_worker.access_server import AccessServer
    from sandherd_worker.attempt import Attempt
    from sandherd_worker.taskless_sandbox import TasklessSandbox


async def live(who: Assignment, spec: SandboxSpec | None) -> ExitCode:
    """Run the worker and return its exit status. Raises `SpoolError`.

    Without a spec, or if an earlier worker has written to the spool, it recovers.
    """
    spool = Spool.open(who.state_dir / "spool", limit=who.spool_limit)
    parts = make_parts(who, spec, spool)
    spool.listen(lambda: parts.stop.request(SPOOL) if spool.trouble else None)
    _listen(parts.stop, parts.reaper)
    try:
        if spec is None or spool.sequence > 0:
            return await _recover(parts, lost=spec is None)
        return await _work(parts, spec)
    finally:
        await spool.close()
        parts.reaper.stop()
        _listen_no_more()


def make_parts(who: Assignment, spec: SandboxSpec | None, spool: Spool) -> WorkerResources:
    """The shared objects of a worker. Without a spec there are no secrets to redact."""
    key = token_urlsafe(32) if spec is not None and spec.agent_server is not None else ""
    known = [*(secrets(spec) if spec else ()), *([key] if key else ())]
    emitter = Emitter(spool, who, Redactor(known))
    inbox = Inbox(who, emitter, DeliveredMessages(who.state_dir / "injected"))
    return WorkerResources(
        who=who,
        spool=spool,
        emitter=emitter,
        inbox=inbox,
        line=CurrentConnection(),
        reaper=Reaper(),
        ownership=ProcessOwnership(),
        stop=StopRequest(),
        server_key=key,
    )


def _listen_no_more() -> None:
    """Everything is published: a SIGTERM that is received now must not make the exit status that of a killed worker."""
    for what in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(what)
        signal.signal(what, signal.SIG_IGN)


def _listen(stop: StopRequest, reaper: Reaper) -> None:
    loop = asyncio.get_running_loop()
    for what in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(what, stop.terminate)
    reaper.start()


async def _recover(parts: WorkerResources, *, lost: bool) -> ExitCode:
    from sandherd_worker.recovery import recover

    if lost:
        delete_key(parts.who.state_dir)
    parts.inbox.close("the agent has ended")
    link = BrokerSession(parts.who, parts.spool, parts.stop, [parts.inbox.serve], parts.line)
    try:
        await recover(parts)
        return await link.drain()
    finally:
        await link.close()


async def _work(parts: WorkerResources, spec: SandboxSpec) -> ExitCode:
    """Join, and meanwhile load and write what the work needs; start once the worker is admitted."""
    from sandherd_worker.access_server import AccessServer

    parts.spool.allocate()
    access = AccessServer(parts, spec)
    link = BrokerSession(parts.who, parts.spool, parts.stop, [parts.inbox.serve, access.serve], parts.line)
    making = asyncio.create_task(_prepare(parts, spec, link, access))
    try:
        if not await link.admitted():
            return ExitCode.NOT_STARTED
        await (await making).run()
        status = await link.drain()
        refused = parts.spool.trouble is not None
        return status if isinstance(spec, TaskSpec) else without_task(status, disk_refused=refused)
    finally:
        await cancel_and_wait([making], again_after=SHORT_CLEANUP_SECONDS)
        await access.close()
        await link.close()


async def _prepare(
    parts: WorkerResources, spec: SandboxSpec, link: BrokerSession, access: "AccessServer"
) -> "Attempt | TasklessSandbox":
    """Load what the work needs, concurrently with joining, and write its files."""
    load = _load_attempt if isinstance(spec, TaskSpec) else _load_bare
    work = (await asyncio.to_thread(load))(parts, spec, link.uplink, access)
    await work.prepare()
    return work


_Make = Callable[[WorkerResources, Any, Uplink, "AccessServer"], "Attempt | TasklessSandbox"]


def _load_attempt() -> _Make:
    from sandherd_worker.attempt import Attempt

    return Attempt


def _load_bare() -> _Make:
    from sandherd_worker.taskless_sandbox import TasklessSandbox

    return TasklessSandbox
