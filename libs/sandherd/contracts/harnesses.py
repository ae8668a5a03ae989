"""Harnesses, the kinds of agent: which program or SDK does the task, and what it may do."""

from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetPydanticSchema,
    SerializerFunctionWrapHandler,
    StringConstraints,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
    model_serializer,
    model_validator,
)

from sandherd.contracts.model import MicroDollars, Model
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.patterns import NO_NUL, NO_SPACE, PRINTABLE, explained

_DAY_SECONDS: Final = 86_400
_SERVER_NAME: Final = explained(
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
    "1 to 64 letters, digits, underscores or dashes, starting with a letter or digit",
)

Argument = Annotated[str, StringConstraints(max_length=32_000, pattern=NO_NUL)]
"""An argument or a variable that the kernel accepts: without NUL, and less than 128 KiB in any script (execve(2))."""
MAX_ARGUMENT_BYTES: Final = 128_000
"""Maximum size of an argument or a variable in bytes of UTF-8. The kernel accepts 128 KiB, including the name
(execve(2))."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=64 * 1024, pattern=NO_NUL)]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=PRINTABLE)]
"""The name of a tool, as the agent uses it, or a pattern: `*` stands for any characters, `?` for one character."""
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=NO_SPACE)]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=NO_SPACE)]
Argv = Annotated[list[Argument], Field(max_length=256)]
ServerName = Annotated[str, StringConstraints(pattern=_SERVER_NAME)]

Verdict = Literal["allow", "ask", "deny"]


class Approvals(Model):
    """Which tools the agent may use without approval, which need one, and which it may not use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: Annotated[dict[ToolName, Verdict], Field(max_length=256)] = Field(default_factory=dict)
    """The verdict for each tool, by its name or a pattern. A name takes precedence over a pattern, and a longer pattern
    over a shorter one. Between patterns of the same length, the stricter verdict applies."""
    otherwise: Verdict = "allow"
    """The verdict for all other tools."""
    timeout_seconds: Annotated[int, Field(ge=1, le=7 * _DAY_SECONDS)] | None = 3600
    """How long the agent waits for an answer; None: as long as its sandbox lives."""
    on_timeout: Literal["allow", "deny"] = "deny"
    """The decision if no user has answered within `timeout_seconds`."""

    @model_serializer(mode="wrap")
    def _write(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep `timeout_seconds: null`.

        Documents are written without nulls, and a missing field means the default of an hour.
        """
        fields: dict[str, Any] = write(self)
        return {**fields, "timeout_seconds": None} if self.timeout_seconds is None else fields


class McpServer(Model):
    """A program with further tools for an agent, by the Model Context Protocol on standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[Argument, Field(min_length=1)]
    args: Argv = Field(default_factory=list)
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    """Variables for this program alone; not for secrets."""
    secret_env: frozenset[EnvName] = frozenset()
    """Names of the task's variables that the program gets with their values."""


McpServers = Annotated[dict[ServerName, McpServer], Field(max_length=32)]
HERD_SERVER: Final = "sandherd"
"""The name of the MCP server with the herd's own tools: `send_message`, `list_peers` and `ask_human`."""


def _reject_reserved_name(servers: McpServers) -> McpServers:
    if HERD_SERVER in servers:
        raise ValueError(f"{HERD_SERVER} is the name of the herd's own tools; rename this server")
    return servers


class McpToolOptions(Model):
    """The options of all agents that accept tools by the Model Context Protocol."""

    mcp_servers: Annotated[McpServers, AfterValidator(_reject_reserved_name)] = Field(default_factory=dict)
    """Servers of further tools for the agent, by name."""
    herd_tools: bool = True
    """Whether the agent may list the other agents of its project, send messages to them, and ask a user."""


class CommandHarness(Model):
    """Any program: it runs in the work tree and reads messages from standard input; its exit status is the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["command"] = "command"
    argv: Argv = Field(default_factory=list)
    """The program and its arguments; with a script, the script's arguments."""
    script: Text | None = None
    """The program as text. It is run by the interpreter in its first line (`#!`), otherwise by /bin/sh."""
    task_as: Literal["env", "argument", "stdin", "file"] = Field(default="env", exclude_if=lambda value: value == "env")
    """How the program gets the text of the task. `env`: in the variable SANDHERD_TASK, which is also set with every
    other value. `argument`: as its last argument. `stdin`: as its whole standard input, so that it can't receive
    messages. `file`: in a file whose path is in SANDHERD_TASK_PATH. A text of more than 128,000 bytes fits into no
    variable or argument: SANDHERD_TASK_PATH is then set with every value, and SANDHERD_TASK is not."""

    @model_validator(mode="after")
    def _runs_something(self) -> Self:
        if not self.argv and self.script is None:
            raise ValueError("argv: give a program, or a script")
        return self


class ClaudeHarness(McpToolOptions):
    """Claude, run by its Agent SDK. Set keys and addresses as variables: ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["claude"]
    model: ModelName | None = None
    permission_mode: Literal["default", "acceptEdits", "bypassPermissions", "plan"] = "default"
    """The SDK's permission mode: for which tools the SDK requests permission. `approvals` applies in every mode."""
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_budget_micro_usd: Annotated[MicroDollars, Field(ge=1)] | None = None
    system_prompt: Text | None = None
    """Replaces the SDK's own system prompt."""
    append_system_prompt: Text | None = None
    """Is appended to the SDK's own system prompt."""
    allowed_tools: Annotated[list[ToolName], Field(max_length=256)] = Field(default_factory=list)
    """Only these tools are available. Empty: the program's default tools; it then searches files by shell commands."""
    disallowed_tools: Annotated[list[ToolName], Field(max_length=256)] = Field(default_factory=list)
    skills: bool = True
    subagents: bool = True
    approvals: Approvals = Approvals()


class OpenHandsHarness(McpToolOptions):
    """OpenHands, run by its SDK. It reads the variables LLM_API_KEY, LLM_MODEL, LLM_BASE_URL; fields override them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["openhands"]
    model: ModelName | None = None
    base_url: Url | None = None
    max_iterations: Annotated[int, Field(ge=1, le=100_000)] = 500
    approvals: Approvals = Approvals()


class AcpHarness(McpToolOptions):
    """Any agent that implements the Agent Client Protocol on its standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["acp"]
    argv: Annotated[Argv, Field(min_length=1)]
    """The agent's program."""
    approvals: Approvals = Approvals()


DrivenHarness = ClaudeHarness | OpenHandsHarness | AcpHarness
"""Harnesses that run in a driver."""


PROJECT_DEFAULT: Final = "default"
"""The value of `kind` that stands for the project's default kind. The other fields are those of the default kind."""


class PluginHarness(Model):
    """A harness of a kind that a plugin defines. Its fields are stored unchanged, for the plugin's own model.

    Contracts load no plugins. The spawner validates the fields when a task is submitted, and the worker again.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    kind: SafeName

    @property
    def fields(self) -> dict[str, Any]:
        """All fields except `kind`."""
        return dict(self.model_extra or {})

    @model_serializer
    def document(self) -> dict[str, Any]:
        """The document unchanged, including fields that are null."""
        return {"kind": self.kind, **self.fields}


def _default_kind(value: Any) -> Any:
    """Add the kind `command` to a document without a kind: earlier versions had no other kind."""
    return {"kind": "command", **value} if isinstance(value, dict) else value


def _validate_harness(value: Any, read_own: ValidatorFunctionWrapHandler) -> Any:
    """Validate a harness: one of Sandherd's own kinds by its model, any other as a `PluginHarness`."""
    value = _default_kind(value)
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(value, PluginHarness) or (isinstance(kind, str) and kind not in HARNESSES):
        return PluginHarness.model_validate(value)
    return read_own(value)


def _write(harness: Any, write_own: SerializerFunctionWrapHandler) -> Any:
    return harness.document() if isinstance(harness, PluginHarness) else write_own(harness)


_OwnHarness = Annotated[
    Annotated[CommandHarness | DrivenHarness, Field(discriminator="kind")],
    WrapValidator(_validate_harness),
    WrapSerializer(_write),
]

AnyHarness = Annotated[
    CommandHarness | DrivenHarness | PluginHarness, GetPydanticSchema(lambda _source, make: make(_OwnHarness))
]
"""A harness of any kind. The published JSON Schema has Sandherd's own kinds only: a plugin defines the schema of its
kind."""

HARNESSES: Final[dict[str, type[BaseModel]]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in (CommandHarness, *get_args(DrivenHarness))
}
"""The models of Sandherd's own kinds of agent, by name."""


def free_text_fields(harness: BaseModel) -> dict[str, Any]:
    """The fields of a harness with free text, which may contain a secret; for a plugin's harness, all fields."""
    if isinstance(harness, PluginHarness):
        return harness.fields
    without_text = {"kind", "task_as", "permission_mode", "approvals"}
    fields = {name: getattr(harness, name) for name in type(harness).model_fields if name not in without_text}
    return {name: value for name, value in fields.items() if isinstance(value, str | list)}
