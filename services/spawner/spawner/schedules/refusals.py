"""The reasons to refuse a schedule: its task can't be started repeatedly, or it has no due times."""

from datetime import datetime
from typing import Final

from pydantic import ValidationError

from sandherd.contracts.errors import Code
from sandherd.contracts.labels import RESERVED_PREFIX
from sandherd.contracts.specs import TaskSpec
from spawner.schedules.due_times import cron_refusal
from spawner.schedules.schedule_record import ScheduleRecord
from spawner.spec_resolution import Refusal

MAX_SPEC_BYTES: Final = 256 * 1024
"""Maximum bytes of a schedule's task as JSON, so that the schedules of many projects fit into the bucket."""
_SINGLE_TASK_FIELDS: Final = {
    "secret_env": "values of secrets would be stored with the schedule: use `secrets`, and `sandherd secrets set`",
    "sealed": "values of secrets would be stored with the schedule: use `secrets`",
    "work": "uploaded files belong to one task: use `files`, or let the program fetch them",
    "resume": "a session belongs to one task",
    "depends_on": "each task of the schedule would depend on the same task",
    "inputs": "each task of the schedule would begin with the same files: use `files`",
    "deadline": "it is one moment: use `task_seconds`",
}
"""Fields that a schedule's task may not have, because each belongs to a single task, with the reason and the remedy."""


def schedule_refusal(record: ScheduleRecord, now: datetime) -> Refusal | None:
    """Why the schedule is refused regardless of the herd's settings, or None."""
    task = record.spec.task
    for field, reason in _SINGLE_TASK_FIELDS.items():
        if getattr(task, field):
            return Refusal(f"a schedule's task may not have {field}: {reason}", f"schedule.task.{field}")
    for key in task.labels:
        if key.startswith(RESERVED_PREFIX):
            return Refusal(f"{key} is set by the schedule", "schedule.task.labels")
    if len(task.model_dump_json(exclude_defaults=True).encode()) > MAX_SPEC_BYTES:
        reason = f"the task has more than {MAX_SPEC_BYTES} bytes: let its program fetch its files"
        return Refusal(reason, "schedule.task", Code.TOO_LARGE)
    if task.repository is not None and task.repository.bundle is not None:
        reason = "a schedule's task may not have an uploaded repository: name its URL"
        return Refusal(reason, "schedule.task.repository.bundle")
    return _label_refusal(record) or cron_refusal(record.spec.cron, record.spec.time_zone, now)


def _label_refusal(record: ScheduleRecord) -> Refusal | None:
    """The refusal if the task has too many labels, including those that the schedule adds; else None."""
    try:
        TaskSpec.model_validate(record.task_spec().model_dump(exclude_defaults=True))
    except ValidationError:
        return Refusal("a schedule's task may have at most 30 labels of its own", "schedule.task.labels")
    return None
