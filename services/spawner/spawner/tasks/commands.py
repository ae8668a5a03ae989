"""Handles the commands about tasks: submit, cancel, retry.

A new task that is not accepted gets `task.rejected`: there is no task of this name. Every other command that is
rejected gets `task.refused`: an existing task is unchanged. The `life` of a task is the id of the command that created
it, like a Kubernetes `uid`.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from nacl.public import PrivateKey

from sandherd.bus.connection import Bus
from sandherd.bus.consumers.consumer import DONE, Dead, Delivery, Outcome, Retry
from sandherd.contracts.commands import CancelTask, Command, RetryTask, SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events import EventData
from sandherd.contracts.events.task import TaskRefused, TaskRejected
from sandherd.contracts.names import FLEET
from sandherd.contracts.specs import TaskSpec
from sandherd.telemetry.traceparents import new_traceparent
from spawner.harness_plugins import HarnessPlugins
from spawner.live_state import LiveState
from spawner.projects.defaults import with_defaults
from spawner.records.quota import Quota
from spawner.refusal_events import may_arrive_later, refusal_event, unknown
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.sealed_commands import retry_values
from spawner.spec_resolution import Refusal, SpawnPolicy
from spawner.tasks import task_transitions as of_task
from spawner.tasks.dependencies import PendingDependencies, cycle_refusal, missing_refusal
from spawner.tasks.resolved_task import NO_DEFAULTS, ResolvedTask, own_upload, resolve_task, uploaded, work_refusal
from spawner.tasks.resume_rules import resume_refusal
from spawner.tasks.task_inputs import input_refusal, load_dependencies
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.task_retry import retry_refusal, retry_requested


class TaskCommands:
    """Handles the commands about tasks. A rejection is published as an event, which the command's sender waits for."""

    def __init__(
        self,
        bus: Bus,
        live: LiveState,
        policy: SpawnPolicy,
        *,
        harnesses: HarnessPlugins,
        sealing_key: PrivateKey,
        quota: Quota,
        hosts: RepositoryHosts,
    ) -> None:
        """`sealing_key` decrypts secrets that clients sealed; `quota` limits what a project stores in `tasks`."""
        self._harnesses = harnesses
        self._sealing_key = sealing_key
        self._quota = quota
        self._hosts = hosts
        self._bus = bus
        self._live = live
        self._policy = policy
        self._waiting = PendingDependencies()

    async def handle(self, command: Envelope[Command], delivery: Delivery) -> Outcome:
        """Handle one command. Raises `StoreUnavailableError`."""
        match command.data:
            case SubmitTask() as submit:
                return await self._submit(command, submit, delivery)
            case CancelTask() as cancel:
                return await self._cancel(command, cancel, delivery)
            case RetryTask() as retry:
                return await self._retry(command, retry, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"{command.type} is not about a task"))

    async def _submit(self, command: Envelope[Any], submit: SubmitTask, delivery: Delivery) -> Outcome:
        resolved = self._quota_refusal(command.project) or await self._resolved_task(command.project, submit)
        if isinstance(resolved, Refusal):
            return await self._reject_new(command, submit, resolved, delivery)
        full_spec = with_defaults(submit.spec, resolved.defaults)
        refused = work_refusal(command.project, submit) or await self._refusal(command.project, full_spec)
        if refused:
            return await self._reject_new(command, submit, refused, delivery)
        if submit.spec.depends_on and (outcome := await self._check_dependencies(command, submit, delivery)):
            return outcome
        return await self._create(command, submit, resolved, delivery)

    async def _resolved_task(self, project: str, submit: SubmitTask) -> ResolvedTask | Refusal:
        """The task's resolved settings. The project's defaults are read from the bucket: the index may be outdated."""
        held = await self._live.projects.load(project) if project != FLEET else None
        return resolve_task(project, submit, self._policy, held.record.defaults if held else NO_DEFAULTS)

    async def submit_once(self, command: Envelope[SubmitTask], at: datetime) -> Refusal | None:
        """Create the task of a command from the spawner itself, unless it was created before.

        Returns why it is refused, or None. Raises `StoreUnavailableError`.
        """
        held = await self._live.tasks.load(f"{command.project}.{command.data.task}")
        if held is None:
            resolved = self._quota_refusal(command.project) or await self._resolved_task(command.project, command.data)
            if isinstance(resolved, Refusal):
                return resolved
            full_spec = with_defaults(command.data.spec, resolved.defaults)
            refused = work_refusal(command.project, command.data) or await self._refusal(command.project, full_spec)
            if refused:
                return refused
            held, _ = await self._live.tasks.create(of_task.submitted(command, at, new_traceparent(), resolved))
        if held.record.life != command.id.hex:
            return Refusal(f"another task {command.data.task} already exists", "task", Code.CONFLICT)
        await self._live.tasks.flush(held)
        return None

    async def _refusal(self, project: str, spec: TaskSpec) -> Refusal | None:
        """Why the spec's harness, repository, session or secrets can't be used, or None."""
        refused = await self._harnesses.refusal(spec)
        if refused is None and spec.repository is not None:
            refused = self._hosts.refusal(spec.repository)
        if refused is None and spec.resume is not None:
            refused = await resume_refusal(self._live, project, spec.resume)
        if refused is None and spec.secrets:
            refused = await self._live.secrets.refusal(project, spec.secrets)
        return refused

    def _quota_refusal(self, project: str) -> Refusal | None:
        index = self._live.task_index
        return self._quota.refusal(project, index.size_of(project), index.size())

    async def _create(
        self, command: Envelope[Any], submit: SubmitTask, resolved: ResolvedTask, delivery: Delivery
    ) -> Outcome:
        record = of_task.submitted(command, delivery.at, new_traceparent(), resolved)
        held, created = await self._live.tasks.create(record)
        if not created and not of_task.same_task(held.record, command, resolved):
            name_in_use = Refusal(f"another task {submit.task} already exists", "task", Code.CONFLICT)
            return await self._refuse_new(command, submit, name_in_use, delivery, held.record)
        await self._live.tasks.flush(held)
        return DONE

    async def _check_dependencies(
        self, command: Envelope[Any], submit: SubmitTask, delivery: Delivery
    ) -> Outcome | None:
        """The outcome if dependencies prevent submission (a rejection is already published); None if they don't."""
        project, names = command.project, submit.spec.depends_on
        missing = await self._missing(project, names)
        refused = cycle_refusal(submit.task, names, lambda name: self._depends_on(project, name))
        if missing and not refused:
            if may_arrive_later(delivery):
                self._waiting.note(f"{project}.{submit.task}", names)
                return Retry(0.5, f"no task {missing[0]} yet")
            refused = missing_refusal(missing, project)
        self._waiting.remove(f"{project}.{submit.task}")
        refused = refused or await self._input_refusal(project, submit.spec)
        return await self._reject_new(command, submit, refused, delivery) if refused else None

    async def _input_refusal(self, project: str, spec: TaskSpec) -> Refusal | None:
        return input_refusal(spec.inputs, await load_dependencies(self._live, project, spec.inputs))

    async def _missing(self, project: str, names: Iterable[str]) -> list[str]:
        """Names of missing tasks. A task that another replica created may be in the bucket but not in our index."""
        unindexed = [name for name in names if self._live.task_index.get(f"{project}.{name}") is None]
        return [name for name in unindexed if await self._live.tasks.load(f"{project}.{name}") is None]

    def _depends_on(self, project: str, name: str) -> Iterable[str] | None:
        key = f"{project}.{name}"
        known = self._live.task_index.get(key)
        return known.view.depends_on if known else self._waiting.get(key)

    async def _reject_new(
        self, command: Envelope[Any], submit: SubmitTask, refused: Refusal, delivery: Delivery
    ) -> Outcome:
        """Reject a task, unless the same command was accepted before: the settings may have changed since then."""
        held = await self._live.tasks.load(f"{command.project}.{submit.task}")
        if held is not None and held.record.life == command.id.hex:
            await self._live.tasks.flush(held)
            return DONE
        if held is not None:  # refused: the event of a rejection states that there is no task of that name
            return await self._refuse_new(command, submit, refused, delivery, held.record)
        event = TaskRejected(reason=refused.reason, field=refused.field, code=refused.code, command_id=str(command.id))
        outcome = await self._publish(command, submit.task, event, delivery)
        await self._delete_work(command.project, submit, None)
        return outcome

    async def _refuse_new(
        self, command: Envelope[Any], submit: SubmitTask, refused: Refusal, delivery: Delivery, existing: TaskRecord
    ) -> Outcome:
        """Reject a submission whose name another task has."""
        outcome = await self._refuse(command, submit.task, refused, delivery)
        await self._delete_work(command.project, submit, existing)
        return outcome

    async def _delete_work(self, project: str, submit: SubmitTask, existing: TaskRecord | None) -> None:
        """Delete the upload of a task that is not accepted, unless the existing task of that name begins with it."""
        work = own_upload(project, submit)
        if work is None or (existing and uploaded(existing.spec) == work):
            return
        await self._live.delete_upload(work.subject)

    async def _refuse(self, command: Envelope[Any], task: str, refused: Refusal, delivery: Delivery) -> Outcome:
        event = TaskRefused(
            command=command.type,
            reason=refused.reason,
            field=refused.field,
            code=refused.code,
            command_id=str(command.id),
            command_sequence=delivery.stream_sequence,
        )
        return await self._publish(command, task, event, delivery)

    async def _publish(self, command: Envelope[Any], task: str, event: EventData, delivery: Delivery) -> Outcome:
        self._live.meters.count("sandherd_refusals_total", command=command.type)
        await self._bus.publish_event(refusal_event(self._bus.ids, command, event, delivery, task=task))
        return DONE

    async def _cancel(self, command: Envelope[Any], cancel: CancelTask, delivery: Delivery) -> Outcome:
        now, life = self._live.now(), command.id.hex
        held = await self._live.change_task(
            f"{command.project}.{cancel.task}", lambda record: of_task.cancelled(record, cancel, now, life)
        )
        if held is None:
            return unknown("task", cancel.task, delivery)
        if held.record.cancelled_by == life:
            return DONE
        ended = Refusal(f"{cancel.task} is {held.record.state}: it has ended", "task", Code.CONFLICT)
        return await self._refuse(command, cancel.task, ended, delivery)

    async def _retry(self, command: Envelope[Any], retry: RetryTask, delivery: Delivery) -> Outcome:
        key = f"{command.project}.{retry.task}"
        held = await self._live.tasks.load(key)
        if held is None:
            return unknown("task", retry.task, delivery)
        if held.record.retried_by == command.id.hex:
            await self._live.tasks.flush(held)
            return DONE
        new_values = retry_values(retry, held.record.spec, self._sealing_key)
        if isinstance(new_values, Refusal):
            return await self._refuse(command, retry.task, new_values, delivery)
        refused = await self._retry_refusal(held.record, new_values)
        if refused:
            return await self._refuse(command, retry.task, refused, delivery)
        now = self._live.now()
        await self._live.change_task(key, lambda record: retry_requested(record, command, now, new_values))
        return DONE

    async def _retry_refusal(self, record: TaskRecord, new_values: Mapping[str, str]) -> Refusal | None:
        missing = await self._missing(record.project, record.spec.depends_on)
        refused = retry_refusal(record, self._live.now(), new_values)
        if refused is None and missing:
            return missing_refusal(missing, record.project)
        return refused or await self._live.secrets.refusal(record.project, record.spec.secrets)
