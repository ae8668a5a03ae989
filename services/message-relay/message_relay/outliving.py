"""Whether an approval outlives its sandbox: what a lost worker's agent has asked, the next attempt's may ask again."""

from message_relay.approvals import Approvals
from message_relay.asked import Asked, Asker, Whose
from message_relay.deciding import Ended, ended
from message_relay.recorded import Recorded, RecordedTask
from message_relay.records import recorded_of, task_of
from sandherd.bus.connection import Bus


class Outliving:
    """Reads how an approval's sandbox stands, and its task."""

    def __init__(self, bus: Bus, approvals: Approvals) -> None:
        self._bus = bus
        self._approvals = approvals

    async def whose(self, project: str, sandbox: str) -> Whose | None:
        """Which attempt is made in a sandbox; None if that is not certain."""
        known = await recorded_of(self._bus, project, sandbox)
        if known is None or known.task is None:
            return None
        return whose(sandbox, known, await task_of(self._bus, project, known.task))

    async def ended(self, asked: Asked | None, project: str, sandbox: str) -> Ended | None:
        """Why nobody waits for an answer, now or ever; None if an agent does, or the next attempt's may."""
        gone = ended(sandbox, await recorded_of(self._bus, project, sandbox))
        return None if gone is None or (asked is not None and await self.waits(asked)) else gone

    async def waits(self, asked: Asked) -> bool:
        """Whether the next attempt may ask the same: its task goes on, and it was asked by no other since."""
        if asked.question is None or asked.task is None:
            return False
        task = await task_of(self._bus, asked.project, asked.task)
        if task is None or task.life != asked.life or not task.goes_on:
            return False
        return not outdated(asked, (await self._approvals.asker(asked)).asker)


def whose(sandbox: str, known: Recorded, task: RecordedTask | None) -> Whose | None:
    """The attempt, by both records. One that the task knows no more may be of an earlier one of its name. Pure."""
    if known.task is None or task is None or sandbox not in task.sandboxes:
        return None
    names = (sandbox,) if known.unit is None else (sandbox, known.unit)
    return Whose(task=known.task, life=task.life, attempt=known.attempt, names=names)


def outdated(asked: Asked, last: Asker | None) -> bool:
    """Whether its question was asked once more in its own attempt, or in a later one. Pure."""
    return last is not None and last.ref != asked.ref and last.attempt >= asked.attempt
