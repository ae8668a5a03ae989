"""Commands: durable instructions. A command is handled once, by one service, no matter how often it is sent."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from sandherd.contracts.harnesses import Argument, CommandHarness, Text
from sandherd.contracts.model import Model
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.patterns import NO_NUL, explained
from sandherd.contracts.specs import (
    MAX_FILES_BYTES,
    RelativePath,
    RetryPolicy,
    SandboxLimits,
    SandboxSpec,
    Sealed,
    TaskSpec,
)

__all__ = [
    "COMMANDS",
    "MAX_FILES_BYTES",
    "AnswerApproval",
    "ApprovalId",
    "Argument",
    "CancelTask",
    "Command",
    "CommandHarness",
    "CreateSandbox",
    "EnvName",
    "ExtendSandbox",
    "MessageType",
    "MuteRule",
    "Note",
    "PauseSandbox",
    "RelativePath",
    "RequestApproval",
    "ResumeSandbox",
    "RetryPolicy",
    "RetryTask",
    "SandboxLimits",
    "SandboxSpec",
    "SendMessage",
    "SendableMessageType",
    "SubmitTask",
    "TaskSpec",
    "TerminateSandbox",
    "Text",
    "UnmuteRule",
    "WithdrawApproval",
]

COMMANDS: Final[dict[str, type["Command"]]] = {}
"""All commands, by name: `<service>.<verb>`."""

Note = Annotated[str, StringConstraints(pattern=NO_NUL)]
"""Text that services repeat in their events, which may not contain NUL."""


class Command(Model):
    """The `data` of a command. Unknown fields are refused: an instruction that is ignored must not appear accepted."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: ClassVar[str]
    service: ClassVar[str]
    verb: ClassVar[str]
    about: ClassVar[Literal["task", "sandbox"]] = "sandbox"
    """The field with the name of the task or sandbox that the command is about. `subject` of the envelope is the same.
    """

    @property
    def entity(self) -> str:
        """The name of the task or sandbox that the command is about."""
        return str(getattr(self, self.about))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type" in cls.__dict__:
            cls.service, _, cls.verb = cls.type.partition(".")
            COMMANDS[cls.type] = cls


class SubmitTask(Command):
    """Submit a task."""

    type: ClassVar[str] = "spawner.submit_task"
    about: ClassVar[Literal["task", "sandbox"]] = "task"
    task: SafeName
    spec: TaskSpec
    submitted_by: Note | None = None


class CancelTask(Command):
    """Cancel a task, whether it waits or runs."""

    type: ClassVar[str] = "spawner.cancel_task"
    about: ClassVar[Literal["task", "sandbox"]] = "task"
    task: SafeName
    reason: Note = ""
    cancelled_by: Note | None = None


class RetryTask(Command):
    """Retry a task that has failed or was cancelled, whatever its error was."""

    type: ClassVar[str] = "spawner.retry_task"
    about: ClassVar[Literal["task", "sandbox"]] = "task"
    task: SafeName
    requested_by: Note | None = None
    sealed: Sealed | None = Field(default=None, exclude_if=lambda sealed: sealed is None)
    """New values of variables in the task's `secret_env`, encrypted for the spawner as in a spec. After
    `secrets_until`, when no values are stored any more, all of these variables need a new value. None: the stored
    values are used."""


class SandboxCommand(Command):
    """A command about one sandbox."""

    sandbox: SafeName


class CreateSandbox(SandboxCommand):
    """Create a sandbox without a task, immediately. A repeated command does not create another sandbox."""

    type: ClassVar[str] = "spawner.create_sandbox"
    spec: SandboxSpec = SandboxSpec()
    requested_by: Note | None = None


class TerminateSandbox(SandboxCommand):
    """End a sandbox and every process in it."""

    type: ClassVar[str] = "spawner.terminate_sandbox"
    reason: Note


class PauseSandbox(SandboxCommand):
    """Pause a sandbox: freeze its processes."""

    type: ClassVar[str] = "spawner.pause_sandbox"
    reason: Note = ""


class ResumeSandbox(SandboxCommand):
    """Resume a paused sandbox."""

    type: ClassVar[str] = "spawner.resume_sandbox"


class ExtendSandbox(SandboxCommand):
    """Extend a sandbox's time to live to at least `seconds` from now."""

    type: ClassVar[str] = "spawner.extend_sandbox"
    seconds: Annotated[int, Field(ge=1, le=30 * 86_400)]


SendableMessageType = Literal["user_message", "interrupt", "guardian_nudge", "system"]
"""Message types that `send_message` may send."""
MessageType = Literal["user_message", "interrupt", "guardian_nudge", "system", "approval"]
"""Message types that an agent may receive. `approval` is the answer to an approval; only `answer_approval` sends it."""

ApprovalId = Annotated[
    str,
    StringConstraints(
        pattern=explained(r"^[^\x00-\x1f\x7f]{1,128}$", "1 to 128 characters without control characters")
    ),
]
"""The id of an approval, unique in its sandbox. The worker or the service that requests the approval chooses it."""


class SendMessage(Command):
    """Send a message to the agent in a sandbox."""

    type: ClassVar[str] = "message-relay.send_message"
    message: SafeName
    """The name of the message, unique in the project. If another command has the same name, it is ignored if its
    content is the same, and refused otherwise."""
    sandbox: SafeName
    content: Text
    message_type: SendableMessageType = "user_message"
    sender_id: Note | None = None
    correlation_id: Note | None = None
    expires_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 3600


class AnswerApproval(Command):
    """Grant or deny an approval that the agent in a sandbox requested. The first answer counts."""

    type: ClassVar[str] = "message-relay.answer_approval"
    message: SafeName
    """The name of the message that delivers the answer to the agent, unique in the project. An answer that is repeated
    with the same name counts once."""
    sandbox: SafeName
    approval_id: ApprovalId
    granted: bool
    reason: Annotated[Note, Field(max_length=4000)] | None = None
    """An explanation, which the agent receives."""
    answered_by: Note | None = None


class RequestApproval(SandboxCommand):
    """Request an approval about a sandbox from a user, for a service. Agents request approvals by an event."""

    type: ClassVar[str] = "message-relay.request_approval"
    approval_id: ApprovalId
    """The id of the approval, chosen by the service and unique in the sandbox. A request that is repeated with the same
    id is the same approval."""
    tool: Annotated[Note, Field(min_length=1, max_length=200)]
    """A short name of what is to be approved."""
    reason: Annotated[Note, Field(max_length=4000)]
    """Why the approval is requested, and what follows from each answer."""
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    """How long the approval may stay unanswered; None: as long as its sandbox exists."""


class WithdrawApproval(SandboxCommand):
    """Withdraw an approval that the service has requested. An approval that is already decided does not change."""

    type: ClassVar[str] = "message-relay.withdraw_approval"
    approval_id: ApprovalId
    reason: Annotated[Note, Field(max_length=4000)]


RuleName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{1,39}$")]
"""The name of a rule of the monitor."""


class MuteRule(SandboxCommand):
    """Mute a guardian rule for one sandbox: it is not evaluated there."""

    type: ClassVar[str] = "monitor.mute_rule"
    rule: RuleName
    seconds: Annotated[int, Field(ge=1, le=30 * 86_400)] | None = None
    """How long the rule is muted; None: until it is unmuted, or the sandbox ends."""
    muted_by: Note | None = None


class UnmuteRule(SandboxCommand):
    """Evaluate a muted rule again."""

    type: ClassVar[str] = "monitor.unmute_rule"
    rule: RuleName
    unmuted_by: Note | None = None
