"""Connects the queue of pending tasks to the changes of the live state."""

from sandherd.settings import Settings
from spawner.live_state import LiveState
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.task_queue import TaskQueue


def follow(live: LiveState, settings: Settings) -> TaskQueue:
    """Create a queue that receives all changes of the live state. Call this before the live state is read."""
    queue = TaskQueue(SandboxLimits.of(settings), settings.priority_age)
    live.task_index.on_change(queue.change_task)
    live.task_index.on_removal(queue.remove_task)
    live.sandbox_index.on_change(queue.change_sandbox)
    live.sandbox_index.on_removal(queue.remove_sandbox)
    live.project_index.on_change(lambda project, record: queue.change_project(project, record.limits))
    live.project_index.on_removal(lambda project: queue.change_project(project, None))
    return queue
