"""Handles requests about schedules: set, list, pause, trigger, delete."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import (
    DeleteSchedule,
    ListSchedules,
    PauseSchedule,
    Request,
    ScheduleDeleted,
    ScheduleList,
    ScheduleTriggered,
    ScheduleView,
    SetSchedule,
    TriggerSchedule,
)
from sandherd.service.requests import Answerer, IncomingRequest
from spawner.live_state import LiveState
from spawner.records.availability import available, unknown
from spawner.records.base_record import StoreUnavailableError
from spawner.records.store import StoredRecord
from spawner.schedules import due_decisions
from spawner.schedules.refusals import schedule_refusal
from spawner.schedules.schedule_record import ScheduleRecord
from spawner.schedules.views import next_times, running_by_schedule, schedule_view
from spawner.spec_resolution import Refusal, SpawnPolicy
from spawner.tasks.resolved_task import resolve_task

MAX_SCHEDULES: Final = 100
"""Maximum schedules of a project."""
MAX_WAITING_STARTS: Final = 10
"""Maximum tasks of a schedule that wait to be started. A user can't trigger a further one."""
_NEXT_TIMES: Final = 5
"""The number of next due times in the view of a single schedule."""
ANSWERED: Final[tuple[type[Request[Any]], ...]] = (
    SetSchedule,
    ListSchedules,
    PauseSchedule,
    TriggerSchedule,
    DeleteSchedule,
)
"""The requests about schedules."""


class ScheduleRequestHandler:
    """The handlers of requests about schedules. They raise `ContractError`."""

    def __init__(self, live: LiveState, policy: SpawnPolicy) -> None:
        self._live = live
        self._policy = policy

    def handlers(self) -> Mapping[type[Request[Any]], Answerer]:
        """The handler of each request in `ANSWERED`."""
        return {
            SetSchedule: self.set_schedule,
            ListSchedules: self.list_schedules,
            PauseSchedule: self.pause_schedule,
            TriggerSchedule: self.trigger_schedule,
            DeleteSchedule: self.delete_schedule,
        }

    async def set_schedule(self, incoming: IncomingRequest[SetSchedule]) -> ScheduleView:
        """Create or replace a schedule. Its due times until now are not considered."""
        project, request, now = _single_project(incoming.project), incoming.request, self._live.now()
        record = ScheduleRecord(
            project=project,
            schedule=request.name,
            spec=request.schedule,
            decided=now,
            created_at=now,
            updated_at=now,
            updated_by=request.updated_by,
        )
        with available("schedules"):
            refused = schedule_refusal(record, now) or await self._task_refusal(record)
            if refused:
                remedy = f"change {(refused.field or 'it').rpartition('.')[2]}"
                raise ContractError(refused.code, refused.reason, field=refused.field, remedy=remedy)
            return self._view(await self._store(record, replace=request.replace))

    async def list_schedules(self, incoming: IncomingRequest[ListSchedules]) -> ScheduleList:
        """The schedules of a project or of all projects, or the schedule that the request names."""
        with available("schedules"):
            if incoming.request.name is not None:
                held = await self._load(_single_project(incoming.project), incoming.request.name)
                return ScheduleList(schedules=[self._view(held.record)])
            records = await self._records(None if incoming.project == FLEET else incoming.project)
        tasks, now = running_by_schedule(self._live), self._live.now()
        views = []
        for record in records:
            views.append(schedule_view(record, tasks[record.key], next_times(record, now, 1)))
            await asyncio.sleep(0)  # computing the next time of a rare schedule takes milliseconds
        return ScheduleList(schedules=views)

    async def pause_schedule(self, incoming: IncomingRequest[PauseSchedule]) -> ScheduleView:
        """Pause or resume a schedule."""
        wanted, now = incoming.request.paused, self._live.now()
        record = await self._change(
            incoming.project, incoming.request.name, lambda old: due_decisions.paused(old, now, wanted=wanted)
        )
        return self._view(record)

    async def trigger_schedule(self, incoming: IncomingRequest[TriggerSchedule]) -> ScheduleTriggered:
        """Record that a task has to start now. The replica that holds the lease starts it."""
        now, name = self._live.now(), incoming.request.name

        def decide(record: ScheduleRecord) -> ScheduleRecord:
            start = due_decisions.triggered_start(record, now)
            if start in record.starts:
                return record
            if len(record.starts) >= MAX_WAITING_STARTS:
                raise ContractError(Code.BUSY, f"{len(record.starts)} tasks of {name} are about to start", field="name")
            return record.model_copy(update={"starts": (*record.starts, start)})

        record = await self._change(incoming.project, name, decide)
        return ScheduleTriggered(name=name, task=due_decisions.triggered_start(record, now).task)

    async def delete_schedule(self, incoming: IncomingRequest[DeleteSchedule]) -> ScheduleDeleted:
        """Delete a schedule. Its tasks are not affected."""
        project, name = _single_project(incoming.project), incoming.request.name
        with available("schedules"):
            held = await self._load(project, name)
            while not await self._live.schedules.remove(held):
                newer = await self._load(project, name)
                if newer.revision == held.revision:
                    raise StoreUnavailableError(f"schedules {held.record.key}: not deleted")
                held = newer
        return ScheduleDeleted(name=name)

    async def _change(
        self, project: str, name: str, decide: Callable[[ScheduleRecord], ScheduleRecord]
    ) -> ScheduleRecord:
        with available("schedules"):
            held = await self._live.schedules.change(
                f"{_single_project(project)}.{name}", lambda record, _: decide(record)
            )
        if held is None:
            raise unknown("schedule", project, name)
        return held.record

    async def _store(self, record: ScheduleRecord, *, replace: bool) -> ScheduleRecord:
        if not replace:
            await self._check_maximum(record.project)
            held, created = await self._live.schedules.create(record)
            if not created or held.record.created_at != record.created_at:
                remedy = "use another name, or replace it with --replace"
                raise ContractError(Code.CONFLICT, f"schedule {record.schedule} exists", field="name", remedy=remedy)
            return held.record
        changed = await self._live.schedules.change(record.key, lambda old, _: _with_new_spec(old, record))
        return changed.record if changed else await self._store(record, replace=False)

    async def _check_maximum(self, project: str) -> None:
        count = sum(key.partition(".")[0] == project for key in await self._live.schedules.keys())
        if count >= MAX_SCHEDULES:
            raise ContractError(
                Code.REFUSED,
                f"project {project} has {count} schedules; the maximum is {MAX_SCHEDULES}",
                field="name",
                remedy="delete a schedule that is not needed",
            )

    async def _task_refusal(self, record: ScheduleRecord) -> Refusal | None:
        """Why a task of the schedule would be refused if it was submitted now, or None."""
        start = due_decisions.triggered_start(record, record.created_at)
        terms = resolve_task(record.project, SubmitTask(task=start.task, spec=record.task_spec()), self._policy)
        if isinstance(terms, Refusal):
            return _as_schedule_refusal(terms)
        absent = await self._live.secrets.refusal(record.project, record.spec.task.secrets)
        return _as_schedule_refusal(absent) if absent else None

    async def _records(self, project: str | None) -> list[ScheduleRecord]:
        keys = sorted(key for key in await self._live.schedules.keys() if project in {None, key.partition(".")[0]})
        loaded = [await self._live.schedules.load(key) for key in keys]
        return [held.record for held in loaded if held]

    async def _load(self, project: str, name: str) -> StoredRecord[ScheduleRecord]:
        held = await self._live.schedules.load(f"{project}.{name}")
        if held is None:
            raise unknown("schedule", project, name)
        return held

    def _view(self, record: ScheduleRecord) -> ScheduleView:
        tasks = running_by_schedule(self._live)[record.key]
        view = schedule_view(record, tasks, next_times(record, self._live.now(), _NEXT_TIMES))
        return view.model_copy(update={"task": record.spec.task})


def _with_new_spec(old: ScheduleRecord, new: ScheduleRecord) -> ScheduleRecord:
    """The new record of an existing schedule, with its starts and runs, and paused if it was paused."""
    update = {"created_at": old.created_at, "starts": old.starts, "runs": old.runs, "paused": old.paused}
    return new.model_copy(update=update)


def _as_schedule_refusal(refusal: Refusal) -> Refusal:
    """The refusal of a task, with the schedule's field in place of the task's."""
    field = refusal.field.removeprefix("spec.")
    return Refusal(refusal.reason, "name" if field == "task" else f"schedule.task.{field}", refusal.code)


def _single_project(project: str) -> str:
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, "a schedule belongs to one project", field="project", remedy="name one with --project"
        )
    return project
