"""What may be asked for durably. A command is taken once, by one service, however often it is sent."""

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field, StringConstraints

from sandherd.contracts.harnesses import Argument, CommandHarness, EnvName, Text
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.specs import (
    MAX_FILES_BYTES,
    Limits,
    RelativePath,
    Retry,
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
    "Limits",
    "MessageType",
    "Note",
    "PauseSandbox",
    "RelativePath",
    "ResumeSandbox",
    "Retry",
    "RetryTask",
    "SandboxSpec",
    "Sayable",
    "SendMessage",
    "SubmitTask",
    "TaskSpec",
    "TerminateSandbox",
    "Text",
]

COMMANDS: Final[dict[str, type["Command"]]] = {}
"""Every command, by name: `<service>.<verb>`."""

Note = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""What services repeat in their events, where no NUL may stand."""


class Command(Model):
    """The `data` of a command. A field it doesn't know is refused: what can't be done must not look as if it were."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: ClassVar[str]
    service: ClassVar[str]
    verb: ClassVar[str]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type" in cls.__dict__:
            cls.service, _, cls.verb = cls.type.partition(".")
            COMMANDS[cls.type] = cls


class SubmitTask(Command):
    """Do this task."""

    type: ClassVar[str] = "spawner.submit_task"
    task: SafeName
    spec: TaskSpec
    submitted_by: Note | None = None


class CancelTask(Command):
    """Stop this task, wherever it is."""

    type: ClassVar[str] = "spawner.cancel_task"
    task: SafeName
    reason: Note = ""
    cancelled_by: Note | None = None


class RetryTask(Command):
    """Try a task that has failed or was cancelled once more, whatever its error was."""

    type: ClassVar[str] = "spawner.retry_task"
    task: SafeName
    requested_by: Note | None = None
    sealed: Sealed | None = Field(default=None, exclude_if=lambda sealed: sealed is None)
    """New values of variables of its `secret_env`, encrypted for the spawner as in a spec; of all of them once they
    are not stored any more (`secrets_until`). None: those that are stored."""


class SandboxCommand(Command):
    """About one sandbox."""

    sandbox: SafeName


class CreateSandbox(SandboxCommand):
    """Make a sandbox without a task, now. The same command twice makes one."""

    type: ClassVar[str] = "spawner.create_sandbox"
    spec: SandboxSpec = SandboxSpec()
    requested_by: Note | None = None


class TerminateSandbox(SandboxCommand):
    """End this sandbox and every process in it."""

    type: ClassVar[str] = "spawner.terminate_sandbox"
    reason: Note


class PauseSandbox(SandboxCommand):
    """Freeze this sandbox as it is."""

    type: ClassVar[str] = "spawner.pause_sandbox"
    reason: Note = ""


class ResumeSandbox(SandboxCommand):
    """Let this sandbox go on."""

    type: ClassVar[str] = "spawner.resume_sandbox"


class ExtendSandbox(SandboxCommand):
    """Let this sandbox live so much longer, from now."""

    type: ClassVar[str] = "spawner.extend_sandbox"
    seconds: Annotated[int, Field(ge=1, le=30 * 86_400)]


Sayable = Literal["user_message", "interrupt", "guardian_nudge", "system"]
"""What `send_message` may say."""
MessageType = Literal["user_message", "interrupt", "guardian_nudge", "system", "approval"]
"""What an agent may be handed: also the answer to an approval, which comes of `answer_approval` alone."""

ApprovalId = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]{1,128}$")]
"""How an agent's worker calls an approval; it is the only one of its sandbox."""


class SendMessage(Command):
    """Say this to the agent in this sandbox."""

    type: ClassVar[str] = "message-relay.send_message"
    message: SafeName
    sandbox: SafeName
    content: Text
    message_type: Sayable = "user_message"
    sender_id: Note | None = None
    correlation_id: Note | None = None
    expires_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 3600


class AnswerApproval(Command):
    """Grant or deny what the agent in this sandbox asks leave for. The first answer counts."""

    type: ClassVar[str] = "message-relay.answer_approval"
    message: SafeName
    """The message as which the answer goes to the agent. Under the same name it may be given again, and is one."""
    sandbox: SafeName
    approval_id: ApprovalId
    granted: bool
    reason: Annotated[Note, Field(max_length=4000)] | None = None
    """For the agent to read."""
    answered_by: Note | None = None
