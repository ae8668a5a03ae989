"""One attempt at the task: the agent's work from its beginning to its end, and the last word after it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import (
    AgentCompleted,
    AgentFailed,
    AgentShutdown,
    AgentWaiting,
)
from sandherd.telemetry import logs
from sandherd_worker.access.room import Room
from sandherd_worker.agents import make_harness, put_files
from sandherd_worker.emitter import now
from sandherd_worker.files import FileTracker
from sandherd_worker.harnesses.base import Ended, Harness
from sandherd_worker.heartbeat import Heartbeat, measuring
from sandherd_worker.parts import Parts
from sandherd_worker.saving import Keeping, Transcript, time_to_save
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.tasks import end_tasks
from sandherd_worker.telling import over, started
from sandherd_worker.toolchains import NoToolchainError
from sandherd_worker.uplink import Uplink

_AGENTS_SHARE_OF_GRACE: Final = 0.4
"""How much of the runtime's grace the agent gets; the rest is for the last look at its files and the spool."""
_TIME_TO_LEAVE: Final = 20.0
"""How long an agent that has done its task may take to end, in seconds."""
_OUTPUT_BACKLOG: Final = 64 * 1024 * 1024
"""How much may wait for the broker before the agent's output is no longer read."""
T = TypeVar("T")
_log: Final = logs.get("attempt")


class Attempt:
    """Runs one agent. Everything it says goes through the emitter; nothing here waits for the broker."""

    def __init__(self, parts: Parts, spec: TaskSpec, uplink: Uplink, room: Room) -> None:
        self._parts, self._spec, self._room = parts, spec, room
        self._who, self._spool, self._emitter = parts.who, parts.spool, parts.emitter
        self._inbox, self._stop = parts.inbox, parts.stop
        who, emitter = parts.who, parts.emitter
        self._heartbeat = Heartbeat(who.heartbeat_interval, emitter.emit, measuring(parts.spool, uplink))
        self._tracker = FileTracker(
            who.work_dir, who.state_dir / "shadow", emitter.redactor, self.say, emitter.put_aside
        )
        self._transcript = Transcript(who.state_dir)
        self._keeping = Keeping(who, emitter, parts.spool)
        self._failure: Ended | None = None
        self._harness: Harness | None = None
        self._lingering = self._parted = False
        self._turns = 1
        self._began = asyncio.get_running_loop().time()

    async def prepare(self) -> None:
        """Lay out the work tree, before there is leave to begin. What goes wrong is the attempt's failure."""
        try:
            await asyncio.to_thread(put_files, self._spec, self._who.work_dir)
        except (OSError, ValueError) as error:
            self._failure = Ended(
                error_type="start", error=f"the task's files can't be put into the work tree: {error}"
            )

    async def run(self) -> None:
        """Work, and say everything up to the last word. Raises `SpoolError` if not even that can be kept."""
        try:
            await self._work()
        except SpoolError as error:
            await self._give_up(f"what the agent says can't be kept: {error}", error.reason)
        except Exception as error:  # noqa: BLE001  # whatever broke, the herd is owed an end and a last word
            _log.error("the worker broke", **logs.place(error))
            await self._give_up(f"the worker broke: {type(error).__name__}: {error}")

    # --- the harness's voice

    async def say(self, data: EventData) -> bool:
        """Say an event."""
        return await self._emitter.emit(data)

    async def show(self, text: str) -> None:
        """Show terminal output, once what waits for the broker is not too much."""
        bound = min(_OUTPUT_BACKLOG, self._who.spool_limit // 2)
        await self._spool.until(lambda: self._spool.backlog <= bound or self._spool.trouble is not None)
        shown = text.encode("utf-8", "surrogateescape")
        self._transcript.add(shown)
        await self._emitter.output(shown)

    # --- the work

    async def _work(self) -> None:
        await self._emitter.emit(started(self._spec, self._who.attempt))
        await self._room.open()
        beating = asyncio.create_task(self._heartbeat.beat())
        try:
            ended = await self._run_agent()
            if ended.error_type == "stopped" and self._spool.trouble is not None:
                raise self._spool.trouble
            await self._put_by(ended)
            await self._emitter.emit(self._end(ended), last_words=True)
            if ended.error_type is None and self._spec.linger_seconds > 0:
                await self._linger()
        finally:
            await end_tasks([beating])
        await self._last_word(max(ended.turns, self._turns))

    async def _run_agent(self) -> Ended:
        if self._failure is not None:
            return self._failure
        left = self._who.previous_file or self._spec.resume
        if left is not None and (failure := await self._inherit()) is not None:
            return failure
        await self._tracker.start()
        if self._stop.reason is not None:
            return Ended(error_type="stopped", error="it was stopped before its agent had begun")
        try:
            harness = make_harness(self._spec, self._parts, self, self._turned)
        except (NoToolchainError, OSError) as error:
            return Ended(error_type="start", error=str(error))
        self._harness = harness
        await harness.start()
        self._inbox.ready(harness)
        self._heartbeat.status = "running"
        ended = await self._unless_stopped(harness, harness.done())
        if ended.error_type is None and self._spec.linger_seconds > 0 and harness.follows_up:
            await self._tracker.look()
        else:
            await self._part(harness)
        return ended

    async def _unless_stopped(self, harness: Harness, what: Coroutine[Any, Any, T]) -> T:
        """Wait for this, and end the agent meanwhile if the worker has to end."""
        doing = asyncio.create_task(what)
        asked = asyncio.create_task(self._stop.asked())
        try:
            await asyncio.wait([doing, asked], return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                await harness.stop(self._grace)
            return await doing
        finally:
            await end_tasks([asked, doing])

    @property
    def _grace(self) -> float:
        return self._who.stop_grace * _AGENTS_SHARE_OF_GRACE

    async def _part(self, harness: Harness) -> None:
        """The agent ends, if it has not; nothing is given to it any more, and its files are looked at a last time."""
        self._parted = True
        self._inbox.close("the agent has ended and takes no follow-up")
        if harness.follows_up:
            await self._unless_stopped(harness, harness.stop(_TIME_TO_LEAVE))
        await harness.ended()
        await self._tracker.finish()

    async def _inherit(self) -> Ended | None:
        from sandherd_worker.resuming import inherit

        return await inherit(self._spec, self._parts, self.say)

    async def _put_by(self, ended: Ended) -> None:
        """Put by what the next attempt or a later task may want, before the end of this one is said."""
        await self._save_work(wanted=ended.error_type is not None or self._spec.keep_work)
        self._transcript.close()
        await self._keeping.save_transcript(self._transcript.read())

    async def _save_work(self, *, wanted: bool) -> None:
        if wanted:
            await self._keeping.save_work(time_to_save(self._who, self._stop))

    async def _linger(self) -> None:
        """Stay until the worker has to end. An agent that takes follow-ups goes on with each message."""
        self._lingering = True
        if not self._follows_up:
            self._heartbeat.status = "waiting"
        if self._heartbeat.status == "waiting":
            await self._wait_openly()
        await self._stop.asked()
        if self._harness is not None and not self._parted:
            await self._part(self._harness)
        await self._save_work(wanted=self._spec.keep_work)

    async def _turned(self, turn: int, working: bool) -> None:  # noqa: FBT001  # as the harness tells it
        self._turns = max(self._turns, turn)
        self._heartbeat.status = "running" if working else "waiting"
        if self._lingering and not working:
            await self._tracker.look()
            await self._wait_openly()

    async def _wait_openly(self) -> None:
        text = "the agent is done; " + (
            "it waits for a message" if self._follows_up else "the sandbox waits to be stopped"
        )
        await self._emitter.emit(AgentWaiting(turn=self._turns, message=text))

    @property
    def _follows_up(self) -> bool:
        return self._harness is not None and self._harness.follows_up

    async def _give_up(self, why: str, reason: str | None = None) -> None:
        """End the agent and all beside it; say its end and the last word with what room is left."""
        self._inbox.close("the worker has to end")
        self._tracker.abandon()
        if self._harness is not None:
            await self._harness.stop(0)
        # Whatever still runs would take what room there is for the last words.
        await self._room.close()
        await self._emitter.emit(
            self._end(Ended(error_type="internal", error=why, stop_reason=reason)), last_words=True
        )
        await self._last_word(1)

    async def _last_word(self, turns: int) -> None:
        await self._room.close()
        last = AgentShutdown(reason=self._stop.reason or "complete", total_turns=turns, timestamp=now())
        await self._emitter.emit(last, last_words=True)

    def _end(self, ended: Ended) -> AgentCompleted | AgentFailed:
        seconds, files = asyncio.get_running_loop().time() - self._began, len(self._tracker.changed)
        return over(ended, self._spec.harness.kind, seconds=seconds, files=files, cgroup=self._who.cgroup)
