"""What is asked about tasks durably: take one, call one off, try one again."""

from collections.abc import Iterable, Mapping
from typing import Any

from nacl.public import PrivateKey

from sandherd.bus.connection import Bus
from sandherd.bus.consuming import DONE, Dead, Delivery, Outcome, Retry
from sandherd.contracts.commands import CancelTask, Command, RetryTask, SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.lifecycle import TaskRejected
from sandherd.telemetry.traceparents import new_traceparent
from spawner.live import Live
from spawner.records.quota import Quota
from spawner.refusing import may_come, refusal_event, unknown
from spawner.resolving import Menu, Refusal
from spawner.sealed_commands import retry_values
from spawner.tasks import decisions as of_task
from spawner.tasks.dependencies import Waiting, absent, circle
from spawner.tasks.record import TaskRecord
from spawner.tasks.resuming import resume_refusal
from spawner.tasks.retry import asked_again, retry_refusal
from spawner.tasks.terms import Terms, terms_of


class TaskCommands:
    """Obeys the commands about tasks. A refusal is an event: a dead letter would be read by operators alone."""

    def __init__(self, bus: Bus, live: Live, menu: Menu, sealing: PrivateKey, quota: Quota) -> None:
        """`sealing` opens values of secrets that clients have sealed; `quota` is of the bucket `tasks`."""
        self._sealing = sealing
        self._quota = quota
        self._bus = bus
        self._live = live
        self._menu = menu
        self._waiting = Waiting()

    async def obey(self, command: Envelope[Command], delivery: Delivery) -> Outcome:
        """One command, to its end. Raises `StoreUnavailableError`."""
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
        terms = self._lacks_room(command.project) or terms_of(command.project, submit, self._menu)
        if isinstance(terms, Refusal):
            return await self._reject_new(command, submit, terms, delivery)
        if submit.spec.resume is not None:
            refused = await resume_refusal(self._live, command.project, submit.spec.resume)
            if refused:
                return await self._reject_new(command, submit, refused, delivery)
        if submit.spec.secrets:
            refused = await self._live.secrets.refusal(command.project, submit.spec.secrets)
            if refused:
                return await self._reject_new(command, submit, refused, delivery)
        if submit.spec.depends_on:
            kept = await self._check_dependencies(command, submit, delivery)
            if kept:
                return kept
        return await self._take(command, submit, terms, delivery)

    def _lacks_room(self, project: str) -> Refusal | None:
        index = self._live.task_index
        return self._quota.refusal(project, index.size_of(project), index.size())

    async def _take(self, command: Envelope[Any], submit: SubmitTask, terms: Terms, delivery: Delivery) -> Outcome:
        record = of_task.submitted(command, delivery.at, new_traceparent(), terms)
        held, ours = await self._live.tasks.create(record)
        if not ours and not of_task.same_task(held.record, command, terms):
            taken = Refusal(f"there is another task {submit.task}", "task")
            return await self._reject(command, submit.task, taken, delivery)
        await self._live.tasks.flush(held)
        return DONE

    async def _check_dependencies(
        self, command: Envelope[Any], submit: SubmitTask, delivery: Delivery
    ) -> Outcome | None:
        """What keeps the task from being taken, done already; None if nothing does."""
        project, names = command.project, submit.spec.depends_on
        lacking = await self._lacking(project, names)
        refused = circle(submit.task, names, lambda name: self._depends_on(project, name))
        if lacking and not refused:
            if may_come(delivery):
                self._waiting.note(f"{project}.{submit.task}", names)
                return Retry(0.5, f"no task {lacking[0]} yet")
            refused = absent(lacking, project)
        self._waiting.forget(f"{project}.{submit.task}")
        return await self._reject_new(command, submit, refused, delivery) if refused else None

    async def _lacking(self, project: str, names: Iterable[str]) -> list[str]:
        """Those that are no task: what another replica has taken is in the bucket, if not yet in our index."""
        unseen = [name for name in names if self._live.task_index.get(f"{project}.{name}") is None]
        return [name for name in unseen if await self._live.tasks.load(f"{project}.{name}") is None]

    def _depends_on(self, project: str, name: str) -> Iterable[str] | None:
        key = f"{project}.{name}"
        known = self._live.task_index.get(key)
        return known.view.depends_on if known else self._waiting.get(key)

    async def _reject_new(
        self, command: Envelope[Any], submit: SubmitTask, refused: Refusal, delivery: Delivery
    ) -> Outcome:
        """Not taken, unless this very command was taken before: what is allowed may have changed since."""
        held = await self._live.tasks.load(f"{command.project}.{submit.task}")
        if held is not None and held.record.life == command.id.hex:
            await self._live.tasks.flush(held)
            return DONE
        return await self._reject(command, submit.task, refused, delivery)

    async def _reject(self, command: Envelope[Any], task: str, refused: Refusal, delivery: Delivery) -> Outcome:
        self._live.meters.count("sandherd_refusals_total", command=command.type)
        said = TaskRejected(reason=refused.reason, field=refused.field)
        await self._bus.publish_event(refusal_event(self._bus.ids, command, said, delivery, task=task))
        return DONE

    async def _cancel(self, command: Envelope[Any], cancel: CancelTask, delivery: Delivery) -> Outcome:
        now = self._live.now()
        held = await self._live.change_task(
            f"{command.project}.{cancel.task}", lambda record: of_task.cancelled(record, cancel, now)
        )
        return DONE if held else unknown("task", cancel.task, delivery)

    async def _retry(self, command: Envelope[Any], retry: RetryTask, delivery: Delivery) -> Outcome:
        key = f"{command.project}.{retry.task}"
        held = await self._live.tasks.load(key)
        if held is None:
            return unknown("task", retry.task, delivery)
        if held.record.retried_by == command.id.hex:
            await self._live.tasks.flush(held)
            return DONE
        given = retry_values(retry, held.record.spec, self._sealing)
        if isinstance(given, Refusal):
            return await self._reject(command, retry.task, given, delivery)
        refused = await self._retry_refusal(held.record, given)
        if refused:
            return await self._reject(command, retry.task, refused, delivery)
        now = self._live.now()
        await self._live.change_task(key, lambda record: asked_again(record, command, now, given))
        return DONE

    async def _retry_refusal(self, record: TaskRecord, given: Mapping[str, str]) -> Refusal | None:
        lacking = await self._lacking(record.project, record.spec.depends_on)
        refused = retry_refusal(record, self._live.now(), given)
        if refused is None and lacking:
            return absent(lacking, record.project)
        return refused or await self._live.secrets.refusal(record.project, record.spec.secrets)
