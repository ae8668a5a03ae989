"""The target of a follower: its subjects, its final events, and the events that must precede them."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from sandherd.contracts.decoder import AGENT_SOURCE
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import events_of
from sandherd.contracts.events.agent import AgentShutdown
from sandherd.contracts.events.base import types_with_state
from sandherd.contracts.events.sandbox import SandboxRefused, SandboxRequested
from sandherd.contracts.events.task import (
    TaskCompleted,
    TaskFailed,
    TaskRefused,
    TaskRejected,
    TaskSubmitted,
)
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED, TaskState
from sandherd.contracts.subjects import BY_NAME, PREFIX

Event = Envelope[Any]

_TASK_EVENTS: Final = events_of("task")
TASK_START: Final = TaskSubmitted.type
TASK_RESTARTS: Final = types_with_state([TaskState.PENDING], _TASK_EVENTS)
"""Events of a task that may follow its end: a new task with the same name, or a retry."""
TASK_REFUSED: Final = frozenset({TaskRejected.type, TaskRefused.type})
"""Events that refuse the submission of a task. Then there is no task of this name, or a different one."""
SANDBOX_START: Final = SandboxRequested.type
SANDBOX_REFUSED: Final = SandboxRefused.type
REFUSALS: Final = TASK_REFUSED | {SANDBOX_REFUSED}
"""Events that refuse a command about a task or a sandbox."""
TASK_ENDS: Final = types_with_state(TASK_ENDED, _TASK_EVENTS) | {TaskRejected.type}
SANDBOX_ENDS: Final = types_with_state(SANDBOX_ENDED, events_of("sandbox"))
AGENT_ENDS: Final = frozenset(name for name, model in events_of("agent").items() if model.terminal)
SPAWNER_SOURCE: Final = "/sandherd/spawner/"
TASK_TYPES: Final = tuple(sorted(_TASK_EVENTS))
SERVICE_TYPES: Final = ("approval.*", "message.*", "monitor.*")
"""Filters of the events that services publish about a sandbox from their own sources."""


def entity_subjects(project: str, entity: str) -> str:
    """The subject pattern of all events about one entity."""
    return f"{PREFIX}.event.{project}.{entity}.>"


@dataclass(frozen=True)
class Target:
    """A task with all its sandboxes, or one sandbox."""

    project: str
    entity: str
    kind: Literal["task", "sandbox"]

    @property
    def source(self) -> str:
        """The prefix of the source of the target's state events. The source of a task has a suffix."""
        return SPAWNER_SOURCE + self.entity

    def sources(self, sandboxes: set[str]) -> list[str]:
        """The sources of these sandboxes, which are known before any event was received."""
        return [start + name for name in sorted(sandboxes) for start in (SPAWNER_SOURCE, AGENT_SOURCE)]

    def subjects(self) -> list[str]:
        """The initial subjects. A task's sandbox is known as soon as it is requested."""
        subjects = [entity_subjects(self.project, self.entity)]
        if self.kind == "task":
            subjects.append(BY_NAME["event.sandbox"].pattern({"project": self.project, "action": "requested"}))
        return subjects

    def concerns(self, event: Event, sandboxes: set[str]) -> bool:
        """Whether an event is about this target, or about one of its sandboxes."""
        if event.subject == self.entity or event.subject in sandboxes:
            return True
        return self.kind == "task" and event.taskid == self.entity

    def sandbox_in(self, event: Event) -> str | None:
        """The sandbox that belongs to this task according to an event; None if the event names none."""
        if self.kind == "sandbox":
            return None
        if event.subject == self.entity:
            return getattr(event.data, "sandbox", None)
        return event.subject if event.type.startswith("sandbox.") and event.taskid == self.entity else None

    def is_shown_by(self, event: Event) -> bool:
        """Whether an event about the target shows that it exists.

        A refusal does not show this, because it may only mean that another task or sandbox has the name.
        """
        return event.source.startswith((SPAWNER_SOURCE, AGENT_SOURCE)) and event.type not in REFUSALS

    def ends(self, event: Event) -> bool:
        """Whether this is a final event of the target."""
        if event.subject != self.entity:
            return False
        if event.type in {SANDBOX_REFUSED, TaskRefused.type}:
            return bool(event.data.command == self._creation)
        return event.type in (TASK_ENDS if self.kind == "task" else SANDBOX_ENDS)

    @property
    def _creation(self) -> str:
        """The type of the command that creates the target."""
        from sandherd.contracts.commands import CreateSandbox, SubmitTask  # only needed after a refusal

        return SubmitTask.type if self.kind == "task" else CreateSandbox.type

    def restarts(self, event: Event) -> bool:
        """Whether the event shows that an ended target continues: a new task has its name, or the task is retried."""
        return event.subject == self.entity and event.type in TASK_RESTARTS

    def refusal_of(self, command: Envelope[Any]) -> str | None:
        """The source of a refusal of this command, if it creates the target; else None."""
        created = (command.type, command.subject) == (self._creation, self.entity)
        return f"{self.source}/{command.id.hex}" if created else None

    def before_end(self, final: Event) -> tuple[str, frozenset[str]] | None:
        """A source, and types of its events, of which one has to be received before `final` is returned.

        None if no other event is required, as for a task that was cancelled or never had a sandbox.
        """
        if final.type in REFUSALS:
            return None
        if self.kind == "sandbox":
            return AGENT_SOURCE + self.entity, frozenset({AgentShutdown.type})
        sandbox = getattr(final.data, "sandbox", None)
        if final.type not in {TaskCompleted.type, TaskFailed.type} or sandbox is None:
            return None
        return AGENT_SOURCE + sandbox, AGENT_ENDS
