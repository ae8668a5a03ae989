"""Schedules: when a task is started, and what happens if the previous one still runs or the due time was missed."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from sandherd.contracts.model import Model
from sandherd.contracts.patterns import explained
from sandherd.contracts.specs import TaskSpec

SCHEDULE_NAME_PATTERN: Final = explained(
    r"^[a-z0-9][a-z0-9-]{0,39}$",
    "1 to 40 lower-case letters, digits or dashes, starting with a letter or digit",
)
ScheduleName = Annotated[str, StringConstraints(pattern=SCHEDULE_NAME_PATTERN)]
"""The name of a schedule: a safe name of at most 40 characters, because the names of its tasks begin with it."""
SCHEDULE_BATCH_PREFIX: Final = "schedule-"
"""The prefix of the batch of all tasks of a schedule: their label `sandherd/batch` is `schedule-NAME`."""
MAX_CATCH_UP: Final = 7 * 86_400
_CRON: Final = explained(
    r"^\S+( \S+){4}$",
    "five fields separated by single spaces (minute, hour, day of the month, month, day of the week), "
    "such as '0 7 * * 1-5'",
)
_TIME_ZONE: Final = explained(r"^[A-Za-z0-9_+/-]{1,64}$", "the name of a time zone, such as Europe/Berlin")

Overlap = Literal["skip", "allow", "cancel_other", "buffer_one"]
"""What happens when a task is due while an earlier task of the schedule has not ended. `skip`: nothing is started.
`allow`: the task is started. `cancel_other`: the earlier task is cancelled. `buffer_one`: the task is started when the
earlier one has ended; at most one task waits."""
RunOutcome = Literal["started", "skipped", "missed", "refused"]
"""The outcome of a due time. `skipped`: by the overlap policy; `missed`: no spawner ran within the catch-up window;
`refused`: the spawner did not accept the task."""


class ScheduleSpec(Model):
    """The times at which a task is started, and the task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cron: Annotated[str, StringConstraints(pattern=_CRON, max_length=200)]
    """Minute, hour, day of the month, month and day of the week, as in cron."""
    time_zone: Annotated[str, StringConstraints(pattern=_TIME_ZONE)] = "UTC"
    """A time zone of the IANA database, such as `Europe/Berlin`."""
    overlap: Overlap = "skip"
    catch_up_seconds: Annotated[int, Field(ge=60, le=MAX_CATCH_UP)] = 3600
    """How long after its due time a task may still be started, if no spawner ran at that time."""
    task: TaskSpec
    """The task. It may use named secrets only, and may have no dependencies, deadline, uploaded files or session of
    another task."""
