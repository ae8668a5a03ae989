"""What may be asked for durably. A command is taken once, by one service, however often it is sent."""

from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.names import SafeName

COMMANDS: Final[dict[str, type["Command"]]] = {}
"""Every command, by name: `<service>.<verb>`."""

MAX_FILES_BYTES: Final = 128 * 1024
"""What the files given with a task may weigh together; larger ones are uploaded."""

RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^/\x00][^\x00]*$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=64 * 1024, pattern=r"^[^\x00]*$")]
Argument = Annotated[str, StringConstraints(max_length=32_000, pattern=r"^[^\x00]*$")]
"""What the kernel takes as one argument or variable: no NUL, and under 128 KiB in any script (execve(2))."""
Note = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
"""What services repeat in their events, where no NUL may stand."""
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Z_][A-Z0-9_]{0,127}$")]


class Command(BaseModel):
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


class Limits(BaseModel):
    """What one sandbox may use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: Annotated[int, Field(ge=64, le=65_536)] = 2048
    cpu_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 3600
    open_files: Annotated[int, Field(ge=64, le=65_536)] = 1024
    processes: Annotated[int, Field(ge=8, le=32_768)] = 512


class CommandHarness(BaseModel):
    """Any program: it runs in the work tree, hears messages on its standard input; its exit status is the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["command"] = "command"
    argv: Annotated[list[Argument], Field(min_length=1, max_length=256)]


class TaskSpec(BaseModel):
    """What is to be done, by what, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: Text
    harness: CommandHarness
    runtime: SafeName = "process"
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    secret_env: frozenset[EnvName] = frozenset()
    """Names in `env` whose values are kept out of every event and output."""
    files: dict[RelativePath, str] = Field(default_factory=dict)
    """Text files put into the work tree before the agent starts."""
    limits: Limits = Limits()
    linger_seconds: Annotated[int, Field(ge=0, le=86_400)] = 0
    """How long the sandbox stays for follow-up messages after the agent is done."""

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        total = sum(len(name) + len(text.encode()) for name, text in self.files.items())
        if total > MAX_FILES_BYTES:
            raise ValueError(f"files weigh {total} bytes together; the limit is {MAX_FILES_BYTES}")
        for name in self.files:
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise ValueError(f"files: {name[:80]!r} is not a plain path inside the work tree")
        return self

    @model_validator(mode="after")
    def _secrets_exist(self) -> Self:
        missing = sorted(self.secret_env - self.env.keys())
        if missing:
            raise ValueError(f"secret_env names variables that env lacks: {', '.join(missing)}")
        return self


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


class TerminateSandbox(Command):
    """End this sandbox and every process in it."""

    type: ClassVar[str] = "spawner.terminate_sandbox"
    sandbox: SafeName
    reason: Note


MessageType = Literal["user_message", "interrupt", "guardian_nudge", "system"]


class SendMessage(Command):
    """Say this to the agent in this sandbox."""

    type: ClassVar[str] = "message-relay.send_message"
    message: SafeName
    sandbox: SafeName
    content: Text
    message_type: MessageType = "user_message"
    sender_id: Note | None = None
    correlation_id: Note | None = None
    expires_seconds: Annotated[int, Field(ge=1, le=7 * 86_400)] = 3600
