"""Schedules of a project: create, list, show, pause, resume, trigger, delete."""

import re
from typing import TYPE_CHECKING, Any

from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, validated
from sandherd.contracts import requests
from sandherd.contracts.errors import Code

if TYPE_CHECKING:
    from sandherd.contracts.commands import TaskSpec
    from sandherd.contracts.schedules import Overlap


def checked_schedule_name(name: str) -> str:
    """The name, if it is valid for a schedule. Raises `HerdError` before anything is read or sent."""
    from sandherd.contracts.schedules import SCHEDULE_NAME_PATTERN

    if re.fullmatch(SCHEDULE_NAME_PATTERN, name) is None:
        raise HerdError.of(
            Code.UNSAFE_NAME,
            f"invalid schedule name {name[:80]!r}",
            field="name",
            remedy="use 1 to 40 lower-case letters, digits and dashes, beginning with a letter or digit",
        )
    return name


class ScheduleOperations:
    """The schedule methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection

    async def create_schedule(
        self,
        name: str,
        task: "TaskSpec",
        *,
        cron: str,
        time_zone: str = "UTC",
        overlap: "Overlap" = "skip",
        catch_up_seconds: int = 3600,
        replace: bool = False,
        by: str | None = None,
    ) -> "requests.ScheduleView":
        """Start a task at each due time of `cron` in a time zone. The task may only use named secrets (`secrets`).

        Raises `HerdError` (`conflict`) if there is a schedule of this name, unless `replace` is set.
        """
        if task.secret_env:
            raise HerdError.of(
                Code.INVALID_FIELD,
                "values of secrets would be stored with the schedule",
                field="schedule.task.secret_env",
                remedy="store them with `sandherd secrets set`, and name them with --secret VARIABLE=NAME",
            )
        schedule: dict[str, Any] = {
            "cron": " ".join(cron.split()),
            "time_zone": time_zone,
            "overlap": overlap,
            "catch_up_seconds": catch_up_seconds,
            "task": task,
        }
        request = validated(requests.SetSchedule, name=name, schedule=schedule, replace=replace, updated_by=by)
        return await self.connection.request(request)

    async def schedules(self) -> "requests.ScheduleList":
        """The project's schedules, each with its next time and last runs, without its task."""
        return await self.connection.request(requests.ListSchedules())

    async def schedule(self, name: str) -> "requests.ScheduleView":
        """A schedule with its task, its next times and last runs."""
        reply = await self.connection.request(validated(requests.ListSchedules, name=checked_schedule_name(name)))
        return reply.schedules[0]

    async def pause_schedule(self, name: str) -> "requests.ScheduleView":
        """Start no more tasks of a schedule until it is resumed. Tasks that run are not affected."""
        return await self.connection.request(validated(requests.PauseSchedule, name=name, paused=True))

    async def resume_schedule(self, name: str) -> "requests.ScheduleView":
        """Resume a schedule. Due times while it was paused are not caught up."""
        return await self.connection.request(validated(requests.PauseSchedule, name=name, paused=False))

    async def trigger_schedule(self, name: str) -> "requests.ScheduleTriggered":
        """Start a task of a schedule now, whatever its overlap policy. Returns the task's name."""
        return await self.connection.request(validated(requests.TriggerSchedule, name=name))

    async def delete_schedule(self, name: str) -> "requests.ScheduleDeleted":
        """Delete a schedule. Its tasks are not affected."""
        return await self.connection.request(validated(requests.DeleteSchedule, name=name))
