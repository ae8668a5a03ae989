"""A sandbox without a task: no agent runs in it; it is there for commands and files until it is ended."""

import asyncio
from importlib.metadata import version

from sandherd.contracts.commands import SandboxSpec
from sandherd.contracts.events.agent import AgentError, AgentShutdown, AgentStarted
from sandherd.telemetry import logs
from sandherd_worker.access.room import Room
from sandherd_worker.agents import put_files
from sandherd_worker.emitter import now
from sandherd_worker.heartbeat import Heartbeat, measuring
from sandherd_worker.parts import Parts
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.tasks import first_of
from sandherd_worker.uplink import Uplink

SDK = "none"


class Bare:
    """Says that it lives, until it has to end."""

    def __init__(self, parts: Parts, spec: SandboxSpec, uplink: Uplink, room: Room) -> None:
        self._parts, self._spec, self._room = parts, spec, room
        who, emitter = parts.who, parts.emitter
        self._heartbeat = Heartbeat(who.heartbeat_interval, emitter.emit, measuring(parts.spool, uplink))
        self._trouble: Exception | None = None

    async def prepare(self) -> None:
        """Put the files where they belong, before there is leave to begin. What goes wrong is said later."""
        try:
            await asyncio.to_thread(put_files, self._spec, self._parts.who.work_dir)
        except (OSError, ValueError) as error:
            self._trouble = error

    async def run(self) -> None:
        """Live until the worker is asked to end, and say the last word. Raises `SpoolError`."""
        emitter, stop = self._parts.emitter, self._parts.stop
        try:
            await emitter.emit(self._started())
            await self._room.open()
            if self._trouble is not None:
                await emitter.emit(
                    AgentError(error=f"the files can't be put into place: {self._trouble}", phase="files")
                )
            await first_of(self._heartbeat.beat(), stop.asked())
        except SpoolError as error:
            logs.get("bare").error("what is said here can't be kept", error=str(error))
        await self._room.close()
        last = AgentShutdown(reason=stop.reason or "complete", timestamp=now())
        await emitter.emit(last, last_words=True)

    def _started(self) -> AgentStarted:
        return AgentStarted(
            timestamp=now(),
            sdk=SDK,
            worker_version=version("sandherd-worker"),
            task="",
            task_description_length=0,
            attempt=self._parts.who.attempt,
        )
