"""Views of schedules: their next times, and their tasks that have not ended."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice

from sandherd.contracts.labels import BATCH_LABEL
from sandherd.contracts.requests import ScheduleView
from sandherd.contracts.schedules import SCHEDULE_BATCH_PREFIX
from sandherd.contracts.states import TASK_ENDED
from spawner.live_state import LiveState
from spawner.schedules.due_times import due_times
from spawner.schedules.schedule_record import ScheduleRecord


def schedule_view(record: ScheduleRecord, tasks: Sequence[str], times: Sequence[datetime]) -> ScheduleView:
    """The view of a schedule, without the spec of its task. `tasks`: those that have not ended."""
    spec = record.spec
    return ScheduleView(
        project=record.project,
        name=record.schedule,
        cron=spec.cron,
        time_zone=spec.time_zone,
        overlap=spec.overlap,
        catch_up_seconds=spec.catch_up_seconds,
        text=spec.task.text,
        paused=record.paused,
        created_at=record.created_at,
        updated_at=record.updated_at,
        updated_by=record.updated_by,
        next_times=list(times),
        waiting=record.waiting,
        running=list(tasks),
        runs=list(record.runs),
    )


def next_times(record: ScheduleRecord, now: datetime, count: int) -> list[datetime]:
    """The next `count` due times; none while the schedule is paused."""
    after = max(now, record.decided)
    return [] if record.paused else list(islice(due_times(record.spec.cron, record.spec.time_zone, after), count))


def running_by_schedule(live: LiveState) -> Mapping[str, list[str]]:
    """The names of the tasks of schedules that have not ended, by the schedule's key."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for view in live.task_index.views():
        batch = view.labels.get(BATCH_LABEL, "")
        if batch.startswith(SCHEDULE_BATCH_PREFIX) and view.state not in TASK_ENDED:
            names[f"{view.project}.{batch.removeprefix(SCHEDULE_BATCH_PREFIX)}"].append(view.task)
    return names
