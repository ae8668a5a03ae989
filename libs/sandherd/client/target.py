"""What is followed: on which subjects it is heard of, what ends it, and what must have been heard before that."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from sandherd.contracts.commands import CreateSandbox, SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import EVENTS
from sandherd.contracts.reading import AGENT_SOURCE
from sandherd.contracts.subjects import BY_NAME, PREFIX

Event = Envelope[Any]

TASK_BEGINS: Final = "task.submitted"
TASK_GOES_ON: Final = frozenset({TASK_BEGINS, "task.retry_scheduled"})
"""What is said of a task that has an end before it: another one under its name, or one more attempt, asked for."""
TASK_REFUSED: Final = "task.rejected"
SANDBOX_BEGINS: Final = "sandbox.requested"
SANDBOX_REFUSED: Final = "sandbox.refused"
REFUSALS: Final = frozenset({TASK_REFUSED, SANDBOX_REFUSED})
TASK_ENDS: Final = frozenset({"task.completed", "task.failed", "task.cancelled", "task.rejected"})
SANDBOX_ENDS: Final = frozenset({"sandbox.terminated", "sandbox.failed"})
AGENT_ENDS: Final = frozenset(name for name, model in EVENTS.items() if model.terminal)
SPAWNER_SOURCE: Final = "/sandherd/spawner/"
LAST_WORD: Final = "agent.shutdown"
TASK_TYPES: Final = tuple(sorted(name for name in EVENTS if name.startswith("task.")))
SERVICE_TYPES: Final = tuple(
    sorted(name for name in EVENTS if name.split(".")[0] in {"message", "approval", "monitor"})
)
"""What services say of a sandbox from sources of their own."""


def entity_subjects(project: str, entity: str) -> str:
    """Where everything about one entity is said."""
    return f"{PREFIX}.event.{project}.{entity}.>"


@dataclass(frozen=True)
class Target:
    """A task, with every sandbox it gets, or one sandbox."""

    project: str
    entity: str
    kind: Literal["task", "sandbox"]

    @property
    def source(self) -> str:
        """How the source begins that says what becomes of it: the spawner's record. A task's has more behind it."""
        return SPAWNER_SOURCE + self.entity

    def sources(self, sandboxes: set[str]) -> list[str]:
        """The sources that are known without having been heard."""
        return [start + name for name in sorted(sandboxes) for start in (SPAWNER_SOURCE, AGENT_SOURCE)]

    def subjects(self) -> list[str]:
        """Where it is heard of from the beginning. A task's sandbox is known as soon as it is asked for."""
        own = [entity_subjects(self.project, self.entity)]
        if self.kind == "task":
            own.append(BY_NAME["event.sandbox"].pattern({"project": self.project, "action": "requested"}))
        return own

    def concerns(self, event: Event, sandboxes: set[str]) -> bool:
        """Whether an event is about this, or about one of its sandboxes."""
        if event.subject == self.entity or event.subject in sandboxes:
            return True
        return self.kind == "task" and event.taskid == self.entity

    def sandbox_in(self, event: Event) -> str | None:
        """The sandbox that an event shows to be this task's."""
        if self.kind == "sandbox":
            return None
        if event.subject == self.entity:
            return getattr(event.data, "sandbox", None)
        return event.subject if event.type.startswith("sandbox.") and event.taskid == self.entity else None

    def ends(self, event: Event) -> bool:
        """Whether this is the last there is to hear."""
        if event.subject != self.entity:
            return False
        if event.type == SANDBOX_REFUSED:
            return self.kind == "sandbox" and event.data.command == CreateSandbox.type
        return event.type in (TASK_ENDS if self.kind == "task" else SANDBOX_ENDS)

    def begins(self, event: Event) -> bool:
        """Whether what ended before goes on here: a name comes again for another task, or a task is tried once more."""
        return event.subject == self.entity and event.type in TASK_GOES_ON

    def refusal_of(self, command: Envelope[Any]) -> str | None:
        """The source that says so if this command, which makes the target, is refused. None if it does not make it."""
        makes = SubmitTask.type if self.kind == "task" else CreateSandbox.type
        return f"{self.source}/{command.id.hex}" if (command.type, command.subject) == (makes, self.entity) else None

    def before_end(self, final: Event) -> tuple[str, frozenset[str]] | None:
        """The source, and the types one of which it must have said, that make what came before `final` whole.

        None if nothing has to come: a task that was called off or never got a sandbox ends where it stands.
        """
        if final.type in REFUSALS:
            return None
        if self.kind == "sandbox":
            return AGENT_SOURCE + self.entity, frozenset({LAST_WORD})
        sandbox = getattr(final.data, "sandbox", None)
        if final.type not in {"task.completed", "task.failed"} or sandbox is None:
            return None
        return AGENT_SOURCE + sandbox, AGENT_ENDS
