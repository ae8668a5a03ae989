"""What is wanted: a sandbox, a task in one, what it may use, and how often it is tried."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.continuous import Continuous
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.harnesses import LONGEST_WORD, AnyHarness, Argument, CommandHarness, EnvName, Offering, Text
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Moment
from sandherd.contracts.resume import Resume
from sandherd.contracts.serving import AgentServer

MAX_FILES_BYTES: Final = 128 * 1024
"""What the files given with a task may weigh together; larger ones are uploaded."""
MAX_SEALED: Final = 512 * 1024
"""How many characters sealed values of secrets may have."""
MAX_DEPENDENCIES: Final = 64
MOST_ATTEMPTS: Final = 20
SHORTEST_SECRET: Final = 4
"""What is shorter can't be told from ordinary text."""
MAX_SECRET_BYTES: Final = 16 * 1024
"""What the value of a named secret may weigh."""
STORED_NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"
SecretName = Annotated[str, StringConstraints(pattern=STORED_NAME_PATTERN)]
"""The name of a secret that is stored for a project: letters, digits, `_` and `-`, 1 to 64 characters."""
_DAY: Final = 86_400

RelativePath = Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^[^/\x00][^\x00]*$")]


IMAGE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$"
Image = Annotated[str, StringConstraints(pattern=IMAGE_PATTERN)]
"""The name of an image or a snapshot, with a tag or a digest."""


Sealed = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]+=*$", max_length=MAX_SEALED)]
"""Values of secrets, encrypted for the spawner: a NaCl sealed box of a JSON object, in base64."""


class Limits(Model):
    """What one sandbox may use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: Annotated[int, Field(ge=64, le=65_536)] = 2048
    cpu_seconds: Annotated[int, Field(ge=1, le=7 * _DAY)] = 3600
    open_files: Annotated[int, Field(ge=64, le=65_536)] = 1024
    processes: Annotated[int, Field(ge=8, le=32_768)] = 512
    cores: Annotated[float, Field(ge=0.05, le=256)] | None = Field(default=None, exclude_if=lambda cores: cores is None)
    """How many cores all of it may keep busy; None: as many as the herd, or else its runtime, gives a sandbox."""

    def beyond(self, caps: "Limits") -> str | None:
        """The name of the first limit that is above its cap; None if all are within. What is None is unlimited."""
        return next((name for name, cap in caps.held() if (asked := getattr(self, name)) is None or asked > cap), None)

    def at_most(self, caps: "Limits") -> "Limits":
        """These, each no greater than its cap."""
        asked = {name: getattr(self, name) for name in Limits.model_fields}
        return Limits(
            **asked | {name: cap if asked[name] is None else min(asked[name], cap) for name, cap in caps.held()}
        )

    def held(self) -> list[tuple[str, float]]:
        """The limits that there are, by name."""
        return [(name, held) for name in Limits.model_fields if (held := getattr(self, name)) is not None]


class Retry(Model):
    """How often a task is tried, and how long it rests between. Which errors are tried again: `contracts.failures`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)] | None = None
    """None: as many as the herd is set to."""
    first_delay_seconds: Annotated[float, Field(ge=0, le=_DAY)] = 1.0
    """The delay doubles with every attempt, up to the longest."""
    longest_delay_seconds: Annotated[float, Field(ge=0, le=_DAY)] = 300.0
    also: frozenset[ErrorType] = frozenset()
    """Errors that are permanent by themselves and are to be tried again all the same, as `exit_status`."""


class SandboxSpec(Model):
    """What a sandbox is to be like. What is left out comes from the profile, else from the herd's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: SafeName | None = None
    runtime: SafeName | None = None
    image: Image | None = None
    """The image or snapshot that it is made of, where a runtime has such; else the one that the runtime is set to."""
    limits: Limits | None = None
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    secret_env: frozenset[EnvName] = frozenset()
    """Names in `env` whose values are kept out of every event and output."""
    sealed: Sealed | None = Field(default=None, exclude_if=lambda sealed: sealed is None)
    """The values of all of `secret_env`, encrypted for the spawner (`secrets_key` of its catalogue); in `env` they are
    empty then. None: they are in `env`."""
    secrets: Annotated[dict[EnvName, SecretName], Field(max_length=64)] = Field(
        default_factory=dict, exclude_if=lambda named: not named
    )
    """Variables whose values are named secrets of the project: the secret's name by the variable's. They are read anew
    for each attempt, and treated like those of `secret_env`."""
    files: dict[RelativePath, str] = Field(default_factory=dict)
    """Text files put into the work tree before anything is started."""
    ttl_seconds: Annotated[int, Field(ge=1, le=30 * _DAY)] | None = None
    """How long it may live before it is ended, whatever it does; it can be extended."""
    agent_server: AgentServer | None = Field(default=None, exclude_if=lambda said: said is None)
    """The agent server that runs beside the worker. None: there is none."""

    def to_json(self) -> str:
        """As a worker is given it, which may be one version older: it refuses a field it has not, also an empty one."""
        return self.model_dump_json(exclude_none=True)

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
        twice = sorted(self.secrets.keys() & self.env.keys())
        if twice:
            raise ValueError(f"secrets gives variables a value that env gives, too: {', '.join(twice)}")
        return self


Priority = Literal["critical", "high", "normal", "low"]


class TaskSpec(SandboxSpec):
    """What is to be done, by what, and where."""

    text: Text
    harness: AnyHarness
    continuous: Continuous | None = None
    """Going round until the work is judged to be done. None: the agent does its task once."""
    linger_seconds: Annotated[int, Field(ge=0, le=_DAY)] = 0
    """How long the sandbox stays for follow-up messages after the agent is done."""
    priority: Priority = "normal"
    deadline: Moment | None = None
    """When it should be done: the nearer, the earlier its turn. Nothing is stopped by it; `task_seconds` does that."""
    depends_on: Annotated[tuple[SafeName, ...], Field(max_length=MAX_DEPENDENCIES)] = ()
    """Tasks of the same project that have to be completed before this one begins. If one fails, so does this."""
    attempt_seconds: Annotated[int, Field(ge=1, le=7 * _DAY)] | None = None
    """How long one attempt may take, from its assignment; None: as the herd is set."""
    task_seconds: Annotated[int, Field(ge=1, le=30 * _DAY)] | None = None
    """How long the whole task may take from its submission, with its waits and all its attempts."""
    retry: Retry = Retry()
    on_retry: Literal["offer", "restore"] = "offer"
    """What a new attempt gets of the last one's work tree: beside its own empty one, or as its own."""
    keep_work: bool = Field(default=False, exclude_if=lambda said: not said)
    """Whether the work tree is put by also when the task is done, for a later task to go on with."""
    resume: Resume | None = Field(default=None, exclude_if=lambda said: said is None)
    """The earlier task whose session, and work tree, this one goes on from. None: the agent begins anew."""

    @model_validator(mode="after")
    def _session_is_its_agents(self) -> Self:
        if self.resume is not None and isinstance(self.harness, CommandHarness):
            raise ValueError("resume: a command has no session to go on with; name another harness, or leave it out")
        if self.resume is not None and self.resume.harness != self.harness.kind:
            told = f"{self.harness.kind} can't go on with a session of {self.resume.harness}"
            raise ValueError(f"resume: {told}; use the harness of {self.resume.task}, or leave it out")
        return self

    @model_validator(mode="after")
    def _argument_fits(self) -> Self:
        weight = len(self.text.encode())
        if isinstance(self.harness, CommandHarness) and self.harness.task_as == "argument" and weight > LONGEST_WORD:
            told = f"text weighs {weight} bytes, and an argument may weigh {LONGEST_WORD}"
            raise ValueError(f"{told}; give the task as file or stdin (task_as)")
        return self

    @model_validator(mode="after")
    def _servers_have_what_they_name(self) -> Self:
        if isinstance(self.harness, Offering):
            secrets = [self.env[name] for name in self.secret_env if len(self.env[name]) >= SHORTEST_SECRET]
            for name, server in self.harness.mcp_servers.items():
                missing = sorted(server.secret_env - self.env.keys() - self.secrets.keys())
                if missing:
                    raise ValueError(f"mcp_servers: {name} wants variables that env lacks: {', '.join(missing)}")
                said = [server.command, *server.args, *server.env.values()]
                if any(secret in text for secret in secrets for text in said):
                    raise ValueError(f"mcp_servers: a secret stands in {name}; name its variable in secret_env there")
        return self
