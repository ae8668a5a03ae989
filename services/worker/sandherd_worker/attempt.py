"""One attempt at the task: the agent's work from its start to its end, and the last event after it."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.errors import ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentShutdown, AgentWaiting
from sandherd.telemetry import logs
from sandherd_worker.access.archive import write_files
from sandherd_worker.access_server import AccessServer
from sandherd_worker.attempt_events import started, terminal_event
from sandherd_worker.calls.annotations import CallAnnotations
from sandherd_worker.emitter import now
from sandherd_worker.file_tracker import FileTracker
from sandherd_worker.harness_factory import make_once
from sandherd_worker.harnesses.base import AgentEnd, Harness
from sandherd_worker.heartbeat import Heartbeat, heartbeat_factory
from sandherd_worker.repository.branch_saver import BranchSaver
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.toolchains import NoToolchainError
from sandherd_worker.uplink import Uplink
from sandherd_worker.work_snapshot import OutputTranscript, WorkSaver, time_to_save
from sandherd_worker.worker_resources import WorkerResources

_AGENTS_SHARE_OF_GRACE: Final = 0.4
"""The share of the runtime's grace period for the agent; the rest is for the final scan of its files and the spool."""
_END_SECONDS: Final = 20.0
"""How long an agent that has completed its task may take to end."""
_OUTPUT_BACKLOG: Final = 64 * 1024 * 1024
"""How many bytes may wait in the spool before the agent's output is no longer read."""
T = TypeVar("T")
_log: Final = logs.get("attempt")


class Attempt:
    """Runs one agent. Its events go to the spool; only terminal output waits while the spool's backlog is too large."""

    def __init__(self, resources: WorkerResources, spec: TaskSpec, uplink: Uplink, access: AccessServer) -> None:
        self._resources, self._spec, self._access = resources, spec, access
        self._assignment, self._spool, self._emitter = resources.assignment, resources.spool, resources.emitter
        self._inbox, self._stop = resources.inbox, resources.stop
        assignment, emitter = resources.assignment, resources.emitter
        self._heartbeat = Heartbeat(
            assignment.heartbeat_interval, emitter.emit, heartbeat_factory(resources.spool, uplink)
        )
        self._tracker = FileTracker(
            assignment.work_dir, assignment.state_dir / "shadow", emitter.redactor, self.publish, emitter.store_artifact
        )
        self._transcript = OutputTranscript(assignment.state_dir)
        self._work_saver = WorkSaver(assignment, emitter, resources.spool)
        self._branch = BranchSaver(spec, resources)
        self._calls = CallAnnotations()
        self._failure: AgentEnd | None = None
        self._harness: Harness | None = None
        self._lingering = self._agent_ended = False
        self._turns = 1
        self._began = asyncio.get_running_loop().time()

    async def prepare(self) -> None:
        """Write the spec's files, before the worker is admitted. An error becomes the attempt's failure."""
        try:
            await asyncio.to_thread(write_files, self._spec, self._assignment.work_dir)
        except (OSError, ValueError, ContractError) as error:
            self._failure = AgentEnd(
                error_type="start", error=f"the task's files can't be written into the work tree: {error}"
            )

    async def run(self) -> None:
        """Run the attempt, and publish all events. Raises `SpoolError` if even the last events can't be stored."""
        try:
            await self._work()
        except SpoolError as error:
            await self._fail(f"the agent's events can't be stored: {error}", error.reason)
        except Exception as error:  # noqa: BLE001  # an end and a last event must be published in any case
            _log.error("worker ended by an error", **logs.error_fields(error))
            await self._fail(f"the worker failed: {type(error).__name__}: {error}")

    # --- the harness's event sink

    async def publish(self, data: EventData) -> bool:
        """Publish an event. Events of tool calls get facts about checks and outages."""
        return await self._emitter.emit(self._calls.annotate(data))

    async def show(self, text: str) -> None:
        """Publish terminal output, once the spool's backlog is small enough."""
        limit = min(_OUTPUT_BACKLOG, self._assignment.spool_limit // 2)
        await self._spool.until(lambda: self._spool.backlog <= limit or self._spool.trouble is not None)
        output = text.encode("utf-8", "surrogateescape")
        self._transcript.add(output)
        await self._emitter.output(output)

    # --- the work

    async def _work(self) -> None:
        await self._emitter.emit(started(self._spec, self._assignment.attempt, self._assignment.work_dir))
        await self._access.open()
        heartbeat = asyncio.create_task(self._heartbeat.beat())
        try:
            ended = await self._run_agent()
            if ended.error_type == "stopped" and self._spool.trouble is not None:
                raise self._spool.trouble
            await self._store_results(ended)
            await self._emitter.emit(self._end(ended), use_reserve=True)
            if ended.error_type is None and self._spec.linger_seconds > 0:
                await self._linger()
        finally:
            await cancel_and_wait([heartbeat], again_after=SHORT_CLEANUP_SECONDS)
        await self._publish_shutdown(max(ended.turns, self._turns))

    async def _run_agent(self) -> AgentEnd:
        if self._failure is not None:
            return self._failure
        spec = self._spec
        inherits = self._assignment.previous_file or spec.resume or spec.work or spec.inputs or spec.repository
        if inherits and (failure := await self._inherit()) is not None:
            return failure
        await self._tracker.start()
        if self._stop.reason is not None:
            return AgentEnd(error_type="stopped", error="it was stopped before its agent had started")
        try:
            harness = self._make_harness()
        except (NoToolchainError, OSError) as error:
            return AgentEnd(error_type="start", error=str(error))
        self._harness = harness
        await harness.start()
        self._inbox.ready(harness)
        self._heartbeat.status = "running"
        ended = await self._unless_stopped(harness, harness.wait_done())
        if ended.error_type is None and self._spec.linger_seconds > 0 and harness.follows_up:
            await self._tracker.scan()
        else:
            await self._end_agent(harness)
        return ended

    def _make_harness(self) -> Harness:
        """The harness for this task. Raises `NoToolchainError`, and `OSError` if its files can't be written."""
        if self._spec.continuous is None:
            return make_once(self._spec, self._resources, self, self._on_turn)
        from sandherd_worker.continuous.factory import make_iterating_harness

        return make_iterating_harness(self._spec, self._spec.continuous, self._resources, self, self._on_turn)

    async def _unless_stopped(self, harness: Harness, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for the result of a coroutine. If the worker must end before, stop the agent."""
        running = asyncio.create_task(coroutine)
        stop_requested = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait([running, stop_requested], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await harness.stop(self._grace)
            return await running
        finally:
            await cancel_and_wait([stop_requested, running], again_after=SHORT_CLEANUP_SECONDS)

    @property
    def _grace(self) -> float:
        return self._assignment.stop_grace * _AGENTS_SHARE_OF_GRACE

    async def _end_agent(self, harness: Harness) -> None:
        """Refuse further messages, end the agent if it still runs, and scan its files a last time."""
        self._agent_ended = True
        self._inbox.close("the agent has ended and takes no follow-up")
        if harness.follows_up:
            await self._unless_stopped(harness, harness.stop(_END_SECONDS))
        await harness.ended()
        await self._tracker.finish()

    async def _inherit(self) -> AgentEnd | None:
        from sandherd_worker.task_resume import inherit

        return await inherit(self._spec, self._resources, self.publish)

    async def _store_results(self, ended: AgentEnd) -> None:
        """Store the results that the next attempt or a later task may use, before this attempt's end is published."""
        saved = await self._branch.save()
        not_committed = saved is not None and saved.commit is None and saved.left_out is not None
        await self._save_work(wanted=ended.error_type is not None or self._spec.keep_work or not_committed)
        self._transcript.close()
        await self._work_saver.save_transcript(self._transcript.read())

    async def _save_work(self, *, wanted: bool) -> None:
        if wanted:
            await self._work_saver.save_work(time_to_save(self._assignment, self._stop))

    async def _linger(self) -> None:
        """Wait until the worker must end. An agent that takes follow-ups continues with each message."""
        self._lingering = True
        if not self._follows_up:
            self._heartbeat.status = "waiting"
        if self._heartbeat.status == "waiting":
            await self._publish_waiting()
        await self._stop.wait()
        if self._harness is not None and not self._agent_ended:
            await self._end_agent(self._harness)
        await self._branch.save()
        await self._save_work(wanted=self._spec.keep_work)

    async def _on_turn(self, turn: int, working: bool) -> None:  # noqa: FBT001  # the harness's signature
        self._turns = max(self._turns, turn)
        self._heartbeat.status = "running" if working else "waiting"
        if self._lingering and not working:
            await self._tracker.scan()
            await self._branch.save()
            await self._publish_waiting()

    async def _publish_waiting(self) -> None:
        text = "the agent is done; " + (
            "it waits for a message" if self._follows_up else "the sandbox waits to be stopped"
        )
        await self._emitter.emit(AgentWaiting(turn=self._turns, message=text))

    @property
    def _follows_up(self) -> bool:
        return self._harness is not None and self._harness.follows_up

    async def _fail(self, error: str, reason: str | None = None) -> None:
        """End the agent, commands and the agent server; publish the last events in the space reserved for them."""
        self._inbox.close("the worker must end")
        await self._tracker.abandon()
        if self._harness is not None:
            await self._harness.stop(0)
        # Anything that still runs would use the space for the last events.
        await self._access.close()
        if reason is None:
            await self._save_branch_of_failure()
        await self._emitter.emit(
            self._end(AgentEnd(error_type="internal", error=error, stop_reason=reason)), use_reserve=True
        )
        await self._publish_shutdown(1)

    async def _save_branch_of_failure(self) -> None:
        try:
            await self._branch.save()
        except Exception as error:  # noqa: BLE001  # it may be the same error that ends the worker
            _log.error("branch not saved", **logs.error_fields(error))

    async def _publish_shutdown(self, turns: int) -> None:
        await self._access.close()
        last = AgentShutdown(reason=self._stop.reason or "complete", total_turns=turns, timestamp=now())
        await self._emitter.emit(last, use_reserve=True)

    def _end(self, ended: AgentEnd) -> AgentCompleted | AgentFailed:
        seconds, files = asyncio.get_running_loop().time() - self._began, len(self._tracker.changed)
        return terminal_event(
            ended, self._spec.harness.kind, seconds=seconds, files=files, cgroup=self._assignment.cgroup
        )
