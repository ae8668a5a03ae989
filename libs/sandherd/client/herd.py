"""The herd's client for programs: submit tasks, query live state and history, follow events."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sandherd.client import queries
from sandherd.client.access_tokens import TokenOperations
from sandherd.client.approvals import ApprovalOperations
from sandherd.client.argument_lists import argument_list
from sandherd.client.branches import BranchOperations
from sandherd.client.connection import Connection
from sandherd.client.context import Context
from sandherd.client.errors import HerdError, checked_name, refused_task_error, validated
from sandherd.client.history import HistoryOperations
from sandherd.client.monitor import MonitorOperations
from sandherd.client.project_operations import ProjectOperations
from sandherd.client.queries import ListPage
from sandherd.client.sandboxes.operations import new_sandbox
from sandherd.client.schedules import ScheduleOperations
from sandherd.client.subscription_operations import SubscriptionOperations
from sandherd.client.task_groups import TaskGroups
from sandherd.client.tasks.wait_reasons import with_approvals
from sandherd.client.webhook_operations import WebhookOperations
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.lazy_imports import LazyModule

if TYPE_CHECKING:
    from sandherd.client import commands, messages
    from sandherd.client.events.follower import EventFollower
    from sandherd.client.events.gap_filler import FollowLimits
    from sandherd.client.events.target import Event, Target
    from sandherd.client.messages import MessageOutcome
    from sandherd.client.repositories.local import LocalRepository
    from sandherd.client.repositories.source import RepositorySource
    from sandherd.client.sandboxes import port_forward
    from sandherd.client.sandboxes.port_forward import PortForward
    from sandherd.client.tasks import resume
    from sandherd.contracts import commands as wire
    from sandherd.contracts.commands import SendableMessageType, TaskSpec
    from sandherd.contracts.resume import Resume
else:  # on first use: a program that only lists tasks needs none of the models of events and commands
    commands = LazyModule("sandherd.client.commands")
    messages = LazyModule("sandherd.client.messages")
    port_forward = LazyModule("sandherd.client.sandboxes.port_forward")
    resume = LazyModule("sandherd.client.tasks.resume")
    wire = LazyModule("sandherd.contracts.commands")

__all__ = ["Herd", "new_sandbox", "new_task", "task_spec"]

_PAGE_SIZE: Final = 500


class Herd(
    TaskGroups,
    BranchOperations,
    ApprovalOperations,
    MonitorOperations,
    HistoryOperations,
    SubscriptionOperations,
    ProjectOperations,
    ScheduleOperations,
    TokenOperations,
    WebhookOperations,
):
    """A connection to a herd, as one user in one project.

    Every method raises `HerdError`, for example with the refusal of a service. The error is a `ServiceUnavailableError`
    if the service is unavailable, and a `NotReachedError` if the broker is.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    @classmethod
    @asynccontextmanager
    async def connect(cls, context: Context | None = None, *, patience: float = 5.0) -> AsyncIterator["Herd"]:
        """Connect within `patience` seconds. The default context is that of `Context.resolve`."""
        async with Connection.open(context or Context.resolve(), patience=patience) as connection:
            yield cls(connection)

    @property
    def project(self) -> str:
        """The project of all operations."""
        return self.connection.project

    # --- commands: the broker has stored them when the method returns ------------------------------------------

    async def submit(
        self,
        what: "TaskSpec | str",
        argv: Sequence[str] = (),
        *,
        task: str | None = None,
        by: str | None = None,
        repository: "RepositorySource | LocalRepository | str | Path | None" = None,
    ) -> str:
        """Submit a task: either a `TaskSpec`, or a text and the program that does the task. Returns the task's name.

        `task` is the task's name. If the same task is submitted again, nothing changes. A different task under a name
        in use is refused by the event `task.refused`; the event `task.rejected` has the reason of any other rejection.
        If the task would certainly be rejected, it is not sent, and `HerdError` is raised. `repository` is the git
        repository that the task works on: a URL, or a path on this machine, whose base branch is uploaded first. A
        `RepositorySource` without URL and path is the default repository of the project, with another base, branch or
        ticket.
        """
        spec = what if isinstance(what, wire.TaskSpec) else task_spec(what, argv)
        name = checked_name(task or new_task(), "task")
        await self.check(spec)
        if repository is not None:
            spec = await self._with_repository(name, spec, repository)
        await self.connection.command(
            validated(wire.SubmitTask, task=name, spec=self._seal_secrets(spec), submitted_by=by), name
        )
        return name

    async def cancel(self, task: str, *, reason: str = "", by: str | None = None) -> None:
        """Cancel a task. Raises `HerdError` (`conflict`) if it has ended."""
        name = checked_name(task, "task")
        await commands.refuse_ended(queries.task(self.connection.request, name), "cancelled")
        await self.connection.command(validated(wire.CancelTask, task=name, reason=reason, cancelled_by=by), name)

    async def retry(
        self, task: str, *, secrets: Mapping[str, str] | None = None, by: str | None = None, timeout: float = 30.0
    ) -> "requests.TaskView":
        """Retry a failed or cancelled task. Returns the task once the spawner has accepted the retry.

        `secrets` are new values of variables of its `secret_env`; all of them, if the old ones are no longer stored.
        """
        view = await self.task(task)
        sealed = await self._sealed_values(secrets) if secrets else None
        command = validated(wire.RetryTask, task=task, requested_by=by, sealed=sealed)
        return await commands.retry_and_wait(self.connection, command, view, timeout)

    async def send(
        self,
        sandbox: str,
        text: str,
        *,
        message_type: "SendableMessageType" = "user_message",
        expires_seconds: int = 3600,
    ) -> str:
        """Send a message to the agent in a sandbox. Returns the message's name; its delivery is reported by events."""
        command = messages.message(checked_name(sandbox, "sandbox"), text, message_type, expires_seconds)
        await self.connection.command(command, sandbox)
        return command.message

    async def deliver(
        self, sandbox: str, text: str, *, message_type: "SendableMessageType" = "user_message", timeout: float = 30.0
    ) -> "MessageOutcome":
        """Send a message, and wait until the agent has it, or it is rejected or expires."""
        command = messages.message(checked_name(sandbox, "sandbox"), text, message_type, 3600)
        return await messages.deliver(self.connection, command, timeout)

    async def session_of(
        self, task: str, *, attempt: int | None = None, fork: bool = False, work: bool = True
    ) -> "Resume":
        """The session of an earlier task, for `resume` of a new task: that of `attempt`, or else the last session.

        With `fork` the new task continues in a copy of the session; without `work` it starts with an empty work tree.
        """
        name = checked_name(task, "task")
        return await resume.session_of(self.connection.request, name, attempt=attempt, fork=fork, work=work)

    # --- live state, or else history -----------------------------------------------------------------------------

    async def task(self, task: str) -> "requests.TaskView":
        """A task in its current or final state."""
        send = self.connection.request
        return (await with_approvals(send, [await queries.task(send, checked_name(task, "task"))]))[0]

    async def tasks(
        self, *, limit: int = 100, cursor: str | None = None, past: bool = False, **filters: Any
    ) -> "ListPage[requests.TaskView]":
        """A page of live and recently ended tasks. With `past`, or without a spawner, a page of the history.

        `filters` are conditions, as fields of `TaskFilter`: `state`, `states`, `labels`, `since`; and `sort`.
        """
        page = await queries.tasks(self.connection.request, past=past, limit=limit, cursor=cursor, **filters)
        return replace(page, items=await with_approvals(self.connection.request, page.items))

    async def sandboxes(
        self, *, limit: int = 100, cursor: str | None = None, past: bool = False, **filters: Any
    ) -> "ListPage[requests.SandboxView]":
        """A page of sandboxes, like `tasks`; `labels` are those of their tasks."""
        return await queries.sandboxes(self.connection.request, past=past, limit=limit, cursor=cursor, **filters)

    # --- events and output -----------------------------------------------------------------------------------------

    async def events(
        self,
        *,
        task: str | None = None,
        sandbox: str | None = None,
        types: Sequence[str] = (),
        since: datetime | None = None,
        **more: Any,
    ) -> "AsyncIterator[requests.StoredEvent]":
        """Stored events over all pages, oldest first. `more` is any other field of `ListEvents`.

        If there are no events, raises `HerdError` (`not_found`) for an unknown task or sandbox.
        """
        filters = {"task": task, "entity": sandbox, "types": list(types), "since": since, "limit": _PAGE_SIZE, **more}
        request = validated(requests.ListEvents, **{key: value for key, value in filters.items() if value is not None})
        has_events = False
        async for page in queries.pages(self.connection.request, request):
            for event in page.events:
                has_events = True
                yield event
        if not has_events:
            await self._check_known(task, sandbox)

    def trajectory(self, sandbox: str, *, limit: int = _PAGE_SIZE) -> "AsyncIterator[requests.Trajectory]":
        """What the agent in a sandbox did, page by page; heartbeats are summarised."""
        request = validated(requests.GetTrajectory, sandbox=checked_name(sandbox, "sandbox"), limit=limit)
        return queries.pages(self.connection.request, request)

    async def audit(self, sandbox: str | None = None) -> "requests.Audit":
        """Whether all events of a sandbox, of a task's sandboxes, or of the project are stored."""
        name = None if sandbox is None else checked_name(sandbox, "sandbox")
        return await self.connection.request(requests.GetAudit(sandbox=name))

    def forward_port(
        self, sandbox: str, port: int, *, local: int = 0, report: "Callable[[HerdError], None]" = lambda _error: None
    ) -> "AbstractAsyncContextManager[PortForward]":
        """Forward connections from the port `local` of this machine's loopback address to `port` in the sandbox.

        It ends with the context. If `local` is 0, a free port is used: `PortForward.local`. `report` is called with
        the error that has ended a connection.
        """
        return port_forward.PortForward.open(self.connection, sandbox, port, local=local, report=report)

    def output(self, sandbox: str, *, follow: bool = False) -> "AsyncIterator[requests.OutputChunk]":
        """The output of a sandbox's terminal; with `follow`, until the sandbox has ended."""
        from sandherd.client.events.terminal_output import OutputFollower, OutputReader

        target = self._target(sandbox, "sandbox")
        return (
            OutputFollower(self.connection, target).chunks()
            if follow
            else OutputReader(self.connection, target.entity).new_chunks()
        )

    # --- dead letters ----------------------------------------------------------------------------------------------

    async def dead_letters(
        self, *, service: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> "requests.DeadLetters":
        """Dead letters, newest first."""
        return await self.connection.request(
            validated(requests.ListDeadLetters, service=service, limit=limit, cursor=cursor)
        )

    async def dead_letter(self, number: int) -> "requests.DeadLetter":
        """One dead letter, with its payload."""
        return await queries.dead_letter(self.connection.request, number)

    async def requeue(self, number: int) -> "requests.RequeueResult":
        """Request that the service of a dead letter handles it again."""
        return await queries.requeue(self.connection.request, number)

    # --- following ---------------------------------------------------------------------------------------------------

    def follow(
        self,
        *,
        task: str | None = None,
        sandbox: str | None = None,
        fresh: bool = False,
        limits: "FollowLimits | None" = None,
    ) -> "EventFollower":
        """The events of a task and its sandboxes, or of one sandbox, until its end.

        `fresh` is for a task that is submitted after the follower has subscribed: earlier events are not requested.
        """
        from sandherd.client.events.follower import EventFollower

        if (task is None) == (sandbox is None):
            raise HerdError.of(Code.INVALID_FIELD, "follow a task or a sandbox", remedy="name one of the two")
        target = self._target(task, "task") if task is not None else self._target(sandbox or "", "sandbox")
        return EventFollower(self.connection, target, fresh=fresh, limits=limits)

    async def wait(self, task: str) -> "requests.TaskView":
        """Wait until a task has ended. Raises `HerdError`: the reason if it was rejected, `not_found` if it is unknown.

        A task that this client has submitted is never unknown: the client waits until the spawner has read the command.
        """
        from sandherd.client.events.target import TASK_REFUSED

        last: Event | None = None
        async with self.follow(task=task) as events:
            async for event in events:
                last = event
        if last is not None and last.type in TASK_REFUSED:
            raise refused_task_error(last)
        return await self.task(task)

    async def _check_known(self, task: str | None, sandbox: str | None) -> None:
        """Raise `HerdError` (`not_found`) for an unknown name, unless this client has submitted it."""
        names: dict[Literal["task", "sandbox"], str | None] = {"task": task, "sandbox": sandbox}
        for kind, name in names.items():
            if name is not None and not self.connection.creations.of(kind, name):
                await self.connection.entity_status(self._target(name, kind))

    def _target(self, name: str, kind: Literal["task", "sandbox"]) -> "Target":
        from sandherd.client.events.target import Target

        return Target(self.project, checked_name(name, kind), kind)


def new_task() -> str:
    """A new task name, with which a client can subscribe before it submits the task."""
    return new_name("task")


def task_spec(text: str, argv: Sequence[str], **more: Any) -> "TaskSpec":
    """A task for the `command` harness. `more` is any other field of `TaskSpec`. Raises `HerdError`."""
    return validated(wire.TaskSpec, text=text, harness={"kind": "command", "argv": argument_list(argv)}, **more)
