"""The herd, for programs: give it tasks, ask what is and what was, follow what happens."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, Final, Literal

from sandherd.client import obeying, questions, resuming, sending
from sandherd.client.access import Access, new_sandbox
from sandherd.client.approving import Approving
from sandherd.client.connection import Connection
from sandherd.client.context import Context
from sandherd.client.errors import HerdError, checked_name, made, refused
from sandherd.client.following import Following
from sandherd.client.mending import Patience
from sandherd.client.questions import Listing
from sandherd.client.sending import Delivery
from sandherd.client.subscribing import Subscribing
from sandherd.client.target import TASK_REFUSED, Event, Target
from sandherd.client.terminal import OutputFollowing, OutputReader
from sandherd.contracts.commands import CancelTask, RetryTask, Sayable, SubmitTask, TaskSpec
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    AskAudit,
    AskDead,
    AskEvents,
    AskTrajectory,
    Audit,
    DeadLetter,
    DeadLetters,
    OutputChunk,
    Requeued,
    SandboxView,
    StoredEvent,
    TaskView,
    Trajectory,
)
from sandherd.contracts.resume import Resume
from sandherd.contracts.states import SandboxState, TaskState

__all__ = ["Herd", "new_sandbox", "new_task", "task_spec"]

PAGE: Final = 500


class Herd(Access, Approving, Subscribing):
    """A connection to a herd, as one person in one project.

    Every method raises `HerdError`: with the service's own refusal, as `ServiceAwayError` if the service that knows
    is not there, as `NotReachedError` if the broker is not.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    @asynccontextmanager
    async def connect(cls, context: Context | None = None, *, patience: float = 5.0) -> AsyncIterator["Herd"]:
        """Connect, trying for `patience` seconds. Without a context, as `Context.resolve` finds it."""
        async with Connection.open(context or Context.resolve(), patience=patience) as connection:
            yield cls(connection)

    @property
    def project(self) -> str:
        """The project that everything here is about."""
        return self.connection.project

    # --- commands: kept by the broker when they return ---------------------------------------------------------

    async def submit(
        self, what: TaskSpec | str, argv: Sequence[str] = (), *, task: str | None = None, by: str | None = None
    ) -> str:
        """Give a task: a whole `TaskSpec`, or its text and the program that does it. Returns the task's name.

        The same `task` submitted twice is one task; another one under its name is not taken. What is not taken is said
        by `task.rejected`, with the reason; what the spawner is known to refuse is refused here, and not sent.
        """
        spec = what if isinstance(what, TaskSpec) else task_spec(what, argv)
        name = checked_name(task or new_task(), "task")
        await self.check(spec)
        await self.connection.command(made(SubmitTask, task=name, spec=self.sealed(spec), submitted_by=by), name)
        return name

    async def cancel(self, task: str, *, reason: str = "", by: str | None = None) -> None:
        """Stop a task, wherever it is."""
        name = checked_name(task, "task")
        await self.connection.command(made(CancelTask, task=name, reason=reason, cancelled_by=by), name)

    async def retry(
        self, task: str, *, secrets: Mapping[str, str] | None = None, by: str | None = None, timeout: float = 30.0
    ) -> TaskView:
        """Try a task that has failed or was cancelled once more. Returns it as it stands when that is settled.

        `secrets` are new values of variables of its `secret_env`: all of them, once they are not stored any more.
        """
        before = await self.task(task)
        sealed = await self.sealed_values(secrets) if secrets else None
        command = made(RetryTask, task=task, requested_by=by, sealed=sealed)
        return await obeying.retried(self.connection, command, before, timeout)

    async def send(
        self, sandbox: str, text: str, *, message_type: Sayable = "user_message", expires_seconds: int = 3600
    ) -> str:
        """Say something to the agent in a sandbox. Returns the message's name; what becomes of it are events."""
        said = sending.message(checked_name(sandbox, "sandbox"), text, message_type, expires_seconds)
        await self.connection.command(said, sandbox)
        return said.message

    async def deliver(
        self, sandbox: str, text: str, *, message_type: Sayable = "user_message", timeout: float = 30.0
    ) -> Delivery:
        """Say something, and wait until the agent has it, or can't have it."""
        said = sending.message(checked_name(sandbox, "sandbox"), text, message_type, 3600)
        return await sending.deliver(self.connection, said, timeout)

    async def session_of(
        self, task: str, *, attempt: int | None = None, fork: bool = False, work: bool = True
    ) -> Resume:
        """What an earlier task has left, as the `resume` of a new one; of its last attempt with a session, or of this.

        With `fork` the new task gets a session of its own; without `work` it begins with an empty work tree.
        """
        name = checked_name(task, "task")
        return await resuming.session_of(self.connection.ask, name, attempt=attempt, fork=fork, work=work)

    # --- what is, or else what was -------------------------------------------------------------------------------

    async def task(self, task: str) -> TaskView:
        """A task as it stands, or as it stood last."""
        return await questions.task(self.connection.ask, checked_name(task, "task"))

    async def tasks(
        self, *, state: TaskState | None = None, limit: int = 100, cursor: str | None = None, past: bool = False
    ) -> Listing[TaskView]:
        """Tasks, newest first: those that live or ended lately; with `past`, or if the spawner is away, the history."""
        return await questions.tasks(self.connection.ask, past=past, state=state, limit=limit, cursor=cursor)

    async def sandboxes(
        self, *, state: SandboxState | None = None, limit: int = 100, cursor: str | None = None, past: bool = False
    ) -> Listing[SandboxView]:
        """Sandboxes, like `tasks`."""
        return await questions.sandboxes(self.connection.ask, past=past, state=state, limit=limit, cursor=cursor)

    # --- what happened ---------------------------------------------------------------------------------------------

    async def events(
        self,
        *,
        task: str | None = None,
        sandbox: str | None = None,
        types: Sequence[str] = (),
        since: datetime | None = None,
        **more: Any,
    ) -> AsyncIterator[StoredEvent]:
        """Stored events over all pages, oldest first. `more` is any other field of `AskEvents`."""
        wanted = {"task": task, "entity": sandbox, "types": list(types), "since": since, "limit": PAGE, **more}
        question = made(AskEvents, **{name: value for name, value in wanted.items() if value is not None})
        async for page in questions.pages(self.connection.ask, question):
            for event in page.events:
                yield event

    def trajectory(self, sandbox: str, *, limit: int = PAGE) -> AsyncIterator[Trajectory]:
        """What the agent in a sandbox did, page after page, heartbeats folded."""
        question = made(AskTrajectory, sandbox=checked_name(sandbox, "sandbox"), limit=limit)
        return questions.pages(self.connection.ask, question)

    async def audit(self, sandbox: str | None = None) -> Audit:
        """Whether all that was said is kept."""
        name = None if sandbox is None else checked_name(sandbox, "sandbox")
        return await self.connection.ask(AskAudit(sandbox=name))

    def output(self, sandbox: str, *, follow: bool = False) -> AsyncIterator[OutputChunk]:
        """What a sandbox's terminal showed; with `follow`, until it has ended."""
        target = self._target(sandbox, "sandbox")
        return (
            OutputFollowing(self.connection, target).chunks()
            if follow
            else OutputReader(self.connection, target.entity).more()
        )

    # --- dead letters, for operators ---------------------------------------------------------------------------------

    async def dead_letters(
        self, *, service: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> DeadLetters:
        """What could not be handled, newest first."""
        return await self.connection.ask(made(AskDead, service=service, limit=limit, cursor=cursor))

    async def dead_letter(self, number: int) -> DeadLetter:
        """One dead letter, with its payload."""
        return await questions.dead_letter(self.connection.ask, number)

    async def requeue(self, number: int) -> Requeued:
        """Have the service that gave a dead letter up try it again."""
        return await questions.requeue(self.connection.ask, number)

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(
        self,
        *,
        task: str | None = None,
        sandbox: str | None = None,
        fresh: bool = False,
        patience: Patience | None = None,
    ) -> Following:
        """The events of a task and its sandboxes, or of one sandbox, to the end.

        `fresh` is for a task that is submitted only when this listens: nothing of it can have been said before.
        """
        if (task is None) == (sandbox is None):
            raise HerdError.of(Code.INVALID_FIELD, "follow a task or a sandbox", remedy="name one of the two")
        target = self._target(task, "task") if task is not None else self._target(sandbox or "", "sandbox")
        return Following(self.connection, target, fresh=fresh, patience=patience)

    async def wait(self, task: str) -> TaskView:
        """Wait until a task has ended. One that was not taken is an error that names the reason."""
        last: Event | None = None
        async with self.follow(task=task) as events:
            async for event in events:
                last = event
        if last is not None and last.type == TASK_REFUSED:
            raise refused(last)
        return await self.task(task)

    def _target(self, name: str, kind: Literal["task", "sandbox"]) -> Target:
        return Target(self.project, checked_name(name, kind), kind)


def new_task() -> str:
    """A name for a task, to listen for it before it is submitted."""
    return new_name("task")


def task_spec(text: str, argv: Sequence[str], **more: Any) -> TaskSpec:
    """A task for the `command` harness. `more` is any other field of `TaskSpec`. Raises `HerdError`."""
    return made(TaskSpec, text=text, harness={"kind": "command", "argv": list(argv)}, **more)
