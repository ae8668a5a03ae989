"""Specs of sandboxes and tasks: what is to be done, what may be used, and how often it is attempted."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.continuous import Continuous
from sandherd.contracts.events.agent import TaskKind
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.harnesses import (
    MAX_ARGUMENT_BYTES,
    AnyHarness,
    Argument,
    CommandHarness,
    McpToolOptions,
    Text,
)
from sandherd.contracts.labels import Labels
from sandherd.contracts.model import Model, Moment
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.patterns import IMAGE_PATTERN, STORED_NAME_PATTERN, explained
from sandherd.contracts.redacted_values import MIN_SECRET_LENGTH
from sandherd.contracts.repositories import CoAuthor, Repository
from sandherd.contracts.resume import Resume
from sandherd.contracts.states import SteeringStep
from sandherd.contracts.task_inputs import TaskInput

MAX_FILES_BYTES: Final = 128 * 1024
"""Maximum total size in bytes of the files in a task's spec; larger files are uploaded."""
MAX_SEALED: Final = 512 * 1024
"""Maximum length of the sealed values of secrets, in characters."""
MAX_DEPENDENCIES: Final = 64
MAX_ATTEMPTS: Final = 20
MAX_SECRET_BYTES: Final = 16 * 1024
"""Maximum size of the value of a named secret, in bytes."""
SecretName = Annotated[str, StringConstraints(pattern=STORED_NAME_PATTERN)]
"""The name of a secret that is stored for a project: letters, digits, `_` and `-`, 1 to 64 characters."""
_DAY_SECONDS: Final = 86_400

RelativePath = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=512,
        pattern=explained(r"^[^/\x00][^\x00]*$", "a relative path: one that does not begin with /"),
    ),
]


Image = Annotated[str, StringConstraints(pattern=IMAGE_PATTERN)]
"""The name of an image or a snapshot, with a tag or a digest."""


Sealed = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]+=*$", max_length=MAX_SEALED)]
"""Values of secrets, encrypted for the spawner: a NaCl sealed box of a JSON object, in base64."""


class SandboxLimits(Model):
    """Limits of one sandbox."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: Annotated[int, Field(ge=64, le=65_536)] = 2048
    cpu_seconds: Annotated[int, Field(ge=1, le=7 * _DAY_SECONDS)] = 3600
    open_files: Annotated[int, Field(ge=64, le=65_536)] = 1024
    processes: Annotated[int, Field(ge=8, le=32_768)] = 512
    cores: Annotated[float, Field(ge=0.05, le=256)] | None = Field(default=None, exclude_if=lambda cores: cores is None)
    """How many cores the whole sandbox may use. None: the number in the herd's settings, or else the runtime's default.
    """

    def exceeded_limit(self, caps: "SandboxLimits") -> str | None:
        """The name of the first limit that exceeds its cap, or None. A limit without a value is unlimited."""
        requested = ((name, getattr(self, name), cap) for name, cap in caps.defined_limits())
        exceeded = (name for name, value, cap in requested if value is None or value > cap)
        return next(exceeded, None)

    def capped(self, caps: "SandboxLimits") -> "SandboxLimits":
        """These limits, with each limit that exceeds its cap reduced to the cap."""
        requested = {name: getattr(self, name) for name in SandboxLimits.model_fields}
        return SandboxLimits(
            **requested
            | {
                name: cap if requested[name] is None else min(requested[name], cap)
                for name, cap in caps.defined_limits()
            }
        )

    def defined_limits(self) -> list[tuple[str, float]]:
        """The limits that are set, by name."""
        values = ((name, getattr(self, name)) for name in SandboxLimits.model_fields)
        return [(name, value) for name, value in values if value is not None]


class RetryPolicy(Model):
    """How often a task is attempted, and the backoff between. `contracts.failures` defines which errors are retried."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_attempts: Annotated[int, Field(ge=1, le=MAX_ATTEMPTS)] | None = None
    """Maximum number of attempts; None: the number in the herd's settings."""
    first_delay_seconds: Annotated[float, Field(ge=0, le=_DAY_SECONDS)] = 1.0
    """The delay before the first retry; it doubles with every attempt, up to `longest_delay_seconds`."""
    longest_delay_seconds: Annotated[float, Field(ge=0, le=_DAY_SECONDS)] = 300.0
    also: frozenset[ErrorType] = frozenset()
    """Errors to retry although they are permanent by default, such as `exit_status`."""


class SandboxSpec(Model):
    """The configuration of a sandbox. Omitted fields are taken from the profile, or else from the herd's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: SafeName | None = None
    runtime: SafeName | None = None
    image: Image | None = None
    """The image or snapshot from which the sandbox is created, in runtimes that have them. None: the one in the
    runtime's settings."""
    limits: SandboxLimits | None = None
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    secret_env: frozenset[EnvName] = frozenset()
    """Names in `env` whose values are redacted from every event and output."""
    sealed: Sealed | None = Field(default=None, exclude_if=lambda sealed: sealed is None)
    """The values of all variables in `secret_env`, encrypted for the spawner (`secrets_key` of its catalogue); their
    values in `env` are then empty. None: the values are in `env`."""
    secrets: Annotated[dict[EnvName, SecretName], Field(max_length=64)] = Field(
        default_factory=dict, exclude_if=lambda named: not named
    )
    """Variables whose values are named secrets of the project: for each variable, the name of the secret. The values
    are read again for each attempt, and are redacted like those of `secret_env`."""
    files: dict[RelativePath, str] = Field(default_factory=dict)
    """Text files, by path, that are written to the work tree before anything is started."""
    ttl_seconds: Annotated[int, Field(ge=1, le=30 * _DAY_SECONDS)] | None = None
    """How long the sandbox may live before it is ended, whatever it does; it can be extended."""
    agent_server: AgentServer | None = Field(default=None, exclude_if=lambda value: value is None)
    """The agent server that runs beside the worker, if any."""

    def to_json(self) -> str:
        """The spec as JSON for a worker. An older worker refuses unknown fields, even with empty values.

        The labels, the budget and the fields that only the spawner uses are left out, because no worker needs them.
        """
        unneeded = {"budget", "constraints", "labels", "max_intervention", "no_repository"}
        return self.model_dump_json(exclude_none=True, exclude=unneeded)

    @model_validator(mode="after")
    def _files_fit(self) -> Self:
        total = sum(len(name) + len(text.encode()) for name, text in self.files.items())
        if total > MAX_FILES_BYTES:
            raise ValueError(f"files have {total} bytes in total; the limit is {MAX_FILES_BYTES}")
        for name in self.files:
            if not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise ValueError(f"files: {name[:80]!r} is not a plain path inside the work tree")
        return self

    @model_validator(mode="after")
    def _secrets_exist(self) -> Self:
        missing = sorted(self.secret_env - self.env.keys())
        if missing:
            raise ValueError(f"secret_env names variables that are not in env: {', '.join(missing)}")
        duplicated = sorted(self.secrets.keys() & self.env.keys())
        if duplicated:
            raise ValueError(f"variables are in both secrets and env: {', '.join(duplicated)}")
        return self


Priority = Literal["critical", "high", "normal", "low"]


class TaskSpec(SandboxSpec):
    """The configuration of a task: what is to be done, by which harness, and in which sandbox."""

    text: Text
    harness: AnyHarness
    continuous: Continuous | None = None
    """Sets that the agent works in iterations until the work is validated as done. None: the agent does its task once.
    """
    linger_seconds: Annotated[int, Field(ge=0, le=_DAY_SECONDS)] = 0
    """How long the sandbox stays after the agent is done, to receive follow-up messages."""
    priority: Priority = "normal"
    deadline: Moment | None = None
    """When the task should be done: the nearer the deadline, the earlier the task is scheduled. A task is not stopped
    at its deadline; `task_seconds` stops it."""
    depends_on: Annotated[tuple[SafeName, ...], Field(max_length=MAX_DEPENDENCIES)] = ()
    """Tasks of the same project that have to be completed before this task begins. If one of them fails, so does this
    task."""
    attempt_seconds: Annotated[int, Field(ge=1, le=7 * _DAY_SECONDS)] | None = None
    """How long one attempt may take, from its assignment; None: as long as in the herd's settings."""
    task_seconds: Annotated[int, Field(ge=1, le=30 * _DAY_SECONDS)] | None = None
    """How long the whole task may take from its submission, including waiting and all attempts."""
    retry: RetryPolicy = RetryPolicy()
    on_retry: Literal["offer", "restore"] = "offer"
    """How a new attempt gets the work tree of the previous one: in addition to its own empty work tree (`offer`), or as
    its own work tree (`restore`)."""
    keep_work: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the work tree is stored even when the task is completed, for a later task to resume."""
    work: ArtifactRef | None = Field(default=None, exclude_if=lambda value: value is None)
    """The files that the task begins with: a tar archive, uploaded under the task's name before the task is submitted
    (`upload_chunk` with the task as `sandbox`). It is unpacked into the work tree of each attempt; `files` overwrite
    its files."""
    inputs: Annotated[tuple[TaskInput, ...], Field(max_length=MAX_DEPENDENCIES)] = Field(
        default=(), exclude_if=lambda inputs: not inputs
    )
    """Files that the task begins with, from the results of tasks in `depends_on`. They overwrite the files of `work`,
    and `files` overwrite them."""
    repository: Repository | None = Field(default=None, exclude_if=lambda value: value is None)
    """The git repository that the task works on. Its branch is checked out as the work tree before `files` are written.
    None: the default repository of the project, unless the task begins with `work` or `resume`."""
    no_repository: bool = Field(default=False, exclude_if=lambda value: not value)
    """Whether the task works on no repository, even if its project has a default repository."""
    co_author: CoAuthor | None = Field(default=None, exclude_if=lambda value: value is None)
    """The user whom commits on the task's branch name as co-author. Clients set it only at the user's request."""
    resume: Resume | None = Field(default=None, exclude_if=lambda value: value is None)
    """The earlier task whose session and work tree this task resumes. None: the agent starts a new session."""
    kind: TaskKind | None = Field(default=None, exclude_if=lambda kind: kind is None)
    """The kind of work: `change` of code, `docs` only, or `research` and `review`, which need no change. Published in
    `agent.started`. None: the kind is not stated."""
    budget: BudgetLimits | None = Field(default=None, exclude_if=lambda budget: budget is None)
    """What all attempts of the task together may use. None: as in its profile, or else as in the herd's settings."""
    max_intervention: SteeringStep | None = Field(default=None, exclude_if=lambda value: value is None)
    """The strongest step of the monitor's guardian rules; None: as in the profile, else the project, else the herd."""
    constraints: Constraints | None = Field(default=None, exclude_if=lambda value: value is None)
    """What the agent must not do, in addition to the constraints of the project, the profile and the herd."""
    labels: Labels = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Keys and values to find the task by; the agent does not get them. Keys that begin with `sandherd/` are reserved
    for Sandherd."""

    @model_validator(mode="after")
    def _begins_with_one_tree(self) -> Self:
        if self.repository is not None and (self.work is not None or self.resume is not None):
            raise ValueError("repository: a task that begins with a repository can't also begin with work or resume")
        if self.repository is not None and self.no_repository:
            raise ValueError("no_repository: the task names a repository; omit one of the two")
        return self

    @model_validator(mode="after")
    def _inputs_are_of_dependencies(self) -> Self:
        for task_input in self.inputs:
            if task_input.task not in self.depends_on:
                raise ValueError(f"inputs: {task_input.task} is not in depends_on; add it there")
        return self

    @model_validator(mode="after")
    def _session_matches_harness(self) -> Self:
        if self.resume is not None and isinstance(self.harness, CommandHarness):
            raise ValueError("resume: a command has no session to resume; choose another harness, or omit resume")
        if self.resume is not None and self.resume.harness != self.harness.kind:
            problem = f"{self.harness.kind} can't resume a session of {self.resume.harness}"
            raise ValueError(f"resume: {problem}; use the harness of {self.resume.task}, or omit resume")
        return self

    @model_validator(mode="after")
    def _argument_fits(self) -> Self:
        size = len(self.text.encode())
        if (
            isinstance(self.harness, CommandHarness)
            and self.harness.task_as == "argument"
            and size > MAX_ARGUMENT_BYTES
        ):
            problem = f"text has {size} bytes; the limit of an argument is {MAX_ARGUMENT_BYTES}"
            raise ValueError(f"{problem}; give the task as file or stdin (task_as)")
        return self

    @model_validator(mode="after")
    def _mcp_variables_exist(self) -> Self:
        if isinstance(self.harness, McpToolOptions):
            check_mcp_servers(self.harness, self)
        return self


def check_mcp_servers(harness: McpToolOptions, spec: SandboxSpec) -> None:
    """Raise `ValueError` for a server that needs a variable which the spec lacks, or that contains a secret's value."""
    secrets = [spec.env[name] for name in spec.secret_env if len(spec.env[name]) >= MIN_SECRET_LENGTH]
    for name, server in harness.mcp_servers.items():
        missing = sorted(server.secret_env - spec.env.keys() - spec.secrets.keys())
        if missing:
            raise ValueError(f"mcp_servers: {name} needs variables that are not in env: {', '.join(missing)}")
        texts = [server.command, *server.args, *server.env.values()]
        if any(secret in text for secret in secrets for text in texts):
            raise ValueError(f"mcp_servers: {name} contains a secret; name its variable in secret_env there")
