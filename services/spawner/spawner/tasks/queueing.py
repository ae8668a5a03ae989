"""The queue of a running spawner: told of every change that the live state hears of."""

from datetime import datetime

from sandherd.settings import Settings
from spawner.live import Live
from spawner.resolving import Menu, expiry
from spawner.sandboxes import decisions as of_sandbox
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks.queue import Queue
from spawner.tasks.record import TaskRecord
from spawner.tasks.room import Allowed
from spawner.tasks.scheduler import Intend


def follow(live: Live, settings: Settings) -> Queue:
    """A queue that is kept up to date from now on. To be made before the live state is read."""
    queue = Queue(Allowed.of(settings), settings.priority_age)
    live.task_index.on_change(queue.change_task)
    live.task_index.on_removal(queue.remove_task)
    live.sandbox_index.on_change(queue.change_sandbox)
    live.sandbox_index.on_removal(queue.remove_sandbox)
    return queue


def started_cold(menu: Menu) -> Intend:
    """Sandboxes that are made when they are needed."""

    async def intend(task: TaskRecord, sandbox: str, now: datetime) -> SandboxRecord:
        return of_sandbox.requested(task, sandbox, now, expires_at=expiry(task.spec, menu, now))

    return intend
