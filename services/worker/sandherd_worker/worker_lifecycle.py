"""A worker's life cycle: it opens the spool, joins the herd, does its work or recovers a lost worker, and drains."""

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


async def run_worker(assignment: Assignment, spec: SandboxSpec | None) -> ExitCode:
    """Run the worker and return its exit status. Raises `SpoolError`.

    Without a spec, or if an earlier worker has written to the spool, the worker recovers the earlier one's events.
    """
    spool = Spool.open(assignment.state_dir / "spool", limit=assignment.spool_limit)
    resources = make_resources(assignment, spec, spool)
    spool.listen(lambda: resources.stop.request(SPOOL) if spool.trouble else None)
    _handle_signals(resources.stop, resources.reaper)
    try:
        if spec is None or spool.sequence > 0:
            return await _recover(resources, lost=spec is None)
        return await _work(resources, spec)
    finally:
        await spool.close()
        resources.reaper.stop()
        _ignore_signals()


def make_resources(assignment: Assignment, spec: SandboxSpec | None, spool: Spool) -> WorkerResources:
    """The shared objects of a worker. Without a spec there are no secrets to redact."""
    key = token_urlsafe(32) if spec is not None and spec.agent_server is not None else ""
    known = [*(secrets(spec) if spec else ()), *([key] if key else ())]
    emitter = Emitter(spool, assignment, Redactor(known))
    inbox = Inbox(assignment, emitter, DeliveredMessages(assignment.state_dir / "injected"))
    return WorkerResources(
        assignment=assignment,
        spool=spool,
        emitter=emitter,
        inbox=inbox,
        line=CurrentConnection(),
        reaper=Reaper(),
        ownership=ProcessOwnership(),
        stop=StopRequest(),
        server_key=key,
    )


def _ignore_signals() -> None:
    """Ignore SIGTERM and SIGINT from now on, so that they can't change the exit status."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def _handle_signals(stop: StopRequest, reaper: Reaper) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.terminate)
    reaper.start()


async def _recover(resources: WorkerResources, *, lost: bool) -> ExitCode:
    from sandherd_worker.recovery import recover

    if lost:
        delete_key(resources.assignment.state_dir)
    resources.inbox.close("the agent has ended")
    session = BrokerSession(
        resources.assignment, resources.spool, resources.stop, [resources.inbox.serve], resources.line
    )
    try:
        await recover(resources)
        return await session.drain()
    finally:
        await session.close()


async def _work(resources: WorkerResources, spec: SandboxSpec) -> ExitCode:
    """Join the herd and prepare the work concurrently; start the work once the worker is admitted."""
    from sandherd_worker.access_server import AccessServer

    resources.spool.allocate()
    access = AccessServer(resources, spec)
    session = BrokerSession(
        resources.assignment, resources.spool, resources.stop, [resources.inbox.serve, access.serve], resources.line
    )
    preparing = asyncio.create_task(_prepare(resources, spec, session, access))
    try:
        if not await session.admitted():
            return ExitCode.NOT_STARTED
        await (await preparing).run()
        status = await session.drain()
        refused = resources.spool.trouble is not None
        return status if isinstance(spec, TaskSpec) else without_task(status, disk_refused=refused)
    finally:
        await cancel_and_wait([preparing], again_after=SHORT_CLEANUP_SECONDS)
        await access.close()
        await session.close()


async def _prepare(
    resources: WorkerResources, spec: SandboxSpec, session: BrokerSession, access: "AccessServer"
) -> "Attempt | TasklessSandbox":
    """Load the modules that the work needs, and write its files."""
    load = _load_attempt if isinstance(spec, TaskSpec) else _load_bare
    work = (await asyncio.to_thread(load))(resources, spec, session.uplink, access)
    await work.prepare()
    return work


_Make = Callable[[WorkerResources, Any, Uplink, "AccessServer"], "Attempt | TasklessSandbox"]


def _load_attempt() -> _Make:
    from sandherd_worker.attempt import Attempt

    return Attempt


def _load_bare() -> _Make:
    from sandherd_worker.taskless_sandbox import TasklessSandbox

    return TasklessSandbox
