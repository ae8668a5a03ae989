"""A sandbox without a task: no agent runs in it; it serves commands and files until it is ended."""

import asyncio

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, run_until_first
from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events.agent import AgentError, AgentShutdown, AgentStarted
from sandherd.lazy_imports import version
from sandherd.telemetry import logs
from sandherd_worker.access.archive import write_files
from sandherd_worker.access_server import AccessServer
from sandherd_worker.emitter import now
from sandherd_worker.heartbeat import Heartbeat, heartbeat_factory
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.uplink import Uplink
from sandherd_worker.worker_exit import SPOOL
from sandherd_worker.worker_resources import WorkerResources

SDK = "none"


class TasklessSandbox:
    """Publishes heartbeats until it must end."""

    def __init__(self, resources: WorkerResources, spec: SandboxSpec, uplink: Uplink, access: AccessServer) -> None:
        self._resources, self._spec, self._access = resources, spec, access
        assignment, emitter = resources.assignment, resources.emitter
        self._heartbeat = Heartbeat(
            assignment.heartbeat_interval, emitter.emit, heartbeat_factory(resources.spool, uplink)
        )
        self._trouble: Exception | None = None

    async def prepare(self) -> None:
        """Write the spec's files, before the worker is admitted. An error is published later."""
        try:
            await asyncio.to_thread(write_files, self._spec, self._resources.assignment.work_dir)
        except (OSError, ValueError, ContractError) as error:
            self._trouble = error

    async def run(self) -> None:
        """Run until the worker must end, and publish the last event. Raises `SpoolError`."""
        emitter, stop = self._resources.emitter, self._resources.stop
        try:
            await emitter.emit(self._started())
            await self._access.open()
            if self._trouble is not None:
                await emitter.emit(AgentError(error=f"the files can't be written: {self._trouble}", phase="files"))
            await run_until_first(self._heartbeat.beat(), stop.wait(), again_after=SHORT_CLEANUP_SECONDS)
        except SpoolError as error:
            logs.get("taskless").error("events not written to spool", error=str(error))
        await self._access.close()
        if (trouble := self._resources.spool.trouble) is not None:
            text = f"the sandbox's events can't be stored: {trouble}"
            await emitter.emit(AgentError(error=text, phase=SPOOL), use_reserve=True)
        last = AgentShutdown(reason=stop.reason or "complete", timestamp=now())
        await emitter.emit(last, use_reserve=True)

    def _started(self) -> AgentStarted:
        return AgentStarted(
            timestamp=now(),
            sdk=SDK,
            worker_version=version("sandherd-worker"),
            task="",
            task_description_length=0,
            attempt=self._resources.assignment.attempt,
        )
