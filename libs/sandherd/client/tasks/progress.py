"""The states of several tasks, computed from their views and events. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import BaseModel

from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.task import TaskRefused, TaskRejected, TaskRetryScheduled, TaskSubmitted
from sandherd.contracts.labels import NAME_LABEL
from sandherd.contracts.requests import TaskView
from sandherd.contracts.states import TASK_ENDED, TaskState

REJECTED: Final = "rejected"
"""The state of a task that was rejected. It is not one of `TaskState`."""
SUBMITTED: Final = "submitted"
"""The state of a submitted task until the spawner has accepted it."""
_FINAL_STATES: Final = frozenset({*(state.value for state in TASK_ENDED), REJECTED})
_STATE_ORDER: Final = (*(state.value for state in TaskState), REJECTED, SUBMITTED)


class TaskOutcome(BaseModel):
    """A task, and its current or final state."""

    task: str
    name: str | None = None
    """The name of the task in the file that it was submitted from."""
    state: str = SUBMITTED
    """A state of a task, or `rejected`, or `submitted` if it is not accepted yet."""
    attempt: int = 1
    sandbox: str | None = None
    error: str | None = None
    error_type: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self.state in _FINAL_STATES


class TaskProgress:
    """The states of the tasks that are waited for."""

    def __init__(self, submitted: Mapping[str, str | None] | None = None) -> None:
        """`submitted` maps the names of the tasks that will be submitted to their names in the file."""
        self._submitted = set(submitted or ())
        self._outcomes = {task: TaskOutcome(task=task, name=name) for task, name in (submitted or {}).items()}

    @property
    def outcomes(self) -> list[TaskOutcome]:
        """The outcomes of all tasks, in the order in which the tasks became known."""
        return list(self._outcomes.values())

    @property
    def accepted(self) -> int:
        """The number of tasks that are accepted or rejected."""
        return sum(outcome.state != SUBMITTED for outcome in self._outcomes.values())

    @property
    def ended(self) -> int:
        """The number of tasks that have ended."""
        return sum(outcome.ended for outcome in self._outcomes.values())

    @property
    def is_over(self) -> bool:
        """Whether all tasks have ended."""
        return self.ended == len(self._outcomes)

    @property
    def is_accepted(self) -> bool:
        """Whether each task is accepted or rejected."""
        return self.accepted == len(self._outcomes)

    def update(self, views: Iterable[TaskView]) -> None:
        """Set the states from current views, also of tasks that are not known yet."""
        for view in views:
            self._outcomes[view.task] = _outcome_of(view)

    def expect(self, tasks: Iterable[str]) -> None:
        """Add tasks that were submitted and are not known yet."""
        for task in tasks:
            if task not in self._outcomes:
                self._submitted.add(task)
                self._outcomes[task] = TaskOutcome(task=task)

    def apply(self, event: Envelope[Any]) -> None:
        """Update the state of a task from an event. Events of other tasks are ignored."""
        outcome = self._outcomes.get(event.subject)
        if outcome is not None:
            self._outcomes[event.subject] = outcome.model_copy(update=self._changes(event))

    def _changes(self, event: Envelope[Any]) -> dict[str, Any]:
        data = event.data
        if isinstance(data, TaskRejected) or (event.subject in self._submitted and refuses_submission(data)):
            return {"state": REJECTED, "error": data.reason, "error_type": data.code}
        if not isinstance(data.sets_state, TaskState):
            return {}
        if isinstance(data, TaskRetryScheduled):
            return {"state": "pending", "attempt": data.attempt + 1, "error": data.error, "error_type": data.error_type}
        if isinstance(data, TaskSubmitted):
            return {"state": "pending", "attempt": data.attempt, "name": data.labels.get(NAME_LABEL)}
        error = getattr(data, "error", None) or getattr(data, "reason", None) or None
        changes = {"sandbox": getattr(data, "sandbox", None), "error": error}
        changes |= {"error_type": getattr(data, "error_type", None)}
        return {"state": data.sets_state.value, "attempt": data.attempt, **changes}

    def summarize(self) -> str:
        """A text with the number of ended tasks, of all tasks, and of the tasks in each state."""
        counts = Counter(outcome.state for outcome in self._outcomes.values())
        states = ", ".join(f"{counts[state]} {state}" for state in _STATE_ORDER if counts[state])
        return f"{self.ended} of {len(self._outcomes)} ended: {states}"


def all_completed(outcomes: Iterable[TaskOutcome]) -> bool:
    """Whether every task is completed."""
    return all(outcome.state == TaskState.COMPLETED for outcome in outcomes)


def _outcome_of(view: TaskView) -> TaskOutcome:
    return TaskOutcome(
        task=view.task,
        name=view.labels.get(NAME_LABEL),
        state=view.state.value,
        attempt=view.attempt,
        sandbox=view.sandbox,
        error=view.error,
        error_type=view.error_type,
    )


def refuses_submission(data: Any) -> bool:
    """Whether the data of an event is a refusal of a task's submission, and not of another command about the task."""
    return isinstance(data, TaskRejected) or (isinstance(data, TaskRefused) and data.command == SubmitTask.type)
