"""The kinds of agent: which program or SDK does the task, and what it may do."""

from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from sandherd.contracts.model import Model
from sandherd.contracts.quantities import MicroDollars

_DAY: Final = 86_400

Argument = Annotated[str, StringConstraints(max_length=32_000, pattern=r"^[^\x00]*$")]
"""What the kernel takes as one argument or variable: no NUL, and under 128 KiB in any script (execve(2))."""
LONGEST_WORD: Final = 128_000
"""What one argument or variable may weigh, in bytes of UTF-8: the kernel takes 128 KiB with its name (execve(2))."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=64 * 1024, pattern=r"^[^\x00]*$")]
ToolName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A tool as its agent calls it, or several: `*` stands for any characters, `?` for one."""
ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x20\x7f]*$")]
Url = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x20\x7f]*$")]
Argv = Annotated[list[Argument], Field(max_length=256)]
ENV_NAME_PATTERN: Final = r"^[A-Z_][A-Z0-9_]{0,127}$"
EnvName = Annotated[str, StringConstraints(pattern=ENV_NAME_PATTERN)]
ServerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")]

Verdict = Literal["allow", "ask", "deny"]


class Approvals(Model):
    """Which tools the agent may use without asking, which it has to ask for, and which it may not use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tools: Annotated[dict[ToolName, Verdict], Field(max_length=256)] = Field(default_factory=dict)
    """By name. A name counts before a pattern, a long pattern before a short one, the stricter of two alike."""
    otherwise: Verdict = "allow"
    """What holds for a tool that is not among them."""
    timeout_seconds: Annotated[int, Field(ge=1, le=7 * _DAY)] | None = 3600
    """How long it waits for an answer; None: as long as its sandbox lives."""
    on_timeout: Literal["allow", "deny"] = "deny"
    """What holds when nobody has answered by then."""

    @property
    def allows_all(self) -> bool:
        """Whether nothing is ever asked or denied."""
        return {self.otherwise, *self.tools.values()} == {"allow"}


class McpServer(Model):
    """A program that offers an agent further tools: the Model Context Protocol on standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: Annotated[Argument, Field(min_length=1)]
    args: Argv = Field(default_factory=list)
    env: dict[EnvName, Argument] = Field(default_factory=dict)
    """Variables for it alone. A secret has no place here."""
    secret_env: frozenset[EnvName] = frozenset()
    """Names of variables of the task that it is given, with their values."""


McpServers = Annotated[dict[ServerName, McpServer], Field(max_length=32)]
HERD_SERVER: Final = "sandherd"
"""The server of the herd's own tools: `send_message`, `list_peers` and `ask_human`."""


def _not_ours(servers: McpServers) -> McpServers:
    if HERD_SERVER in servers:
        raise ValueError(f"{HERD_SERVER} is the name of the herd's own tools; call this server otherwise")
    return servers


class Offering(Model):
    """What agents have in common that take tools by the Model Context Protocol."""

    mcp_servers: Annotated[McpServers, AfterValidator(_not_ours)] = Field(default_factory=dict)
    """Further tools for the agent, by the name of their server."""
    herd_tools: bool = True
    """Whether it may send messages to the other agents of its project, list them, and ask a person."""


class CommandHarness(Model):
    """Any program: it runs in the work tree, hears messages on its standard input; its exit status is the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["command"] = "command"
    argv: Argv = Field(default_factory=list)
    """The program and its arguments; with a script, the script's arguments."""
    script: Text | None = None
    """A program as text: run by what its first line names (`#!`), else by /bin/sh."""
    task_as: Literal["env", "argument", "stdin", "file"] = Field(default="env", exclude_if=lambda said: said == "env")
    """How it is given the task: in SANDHERD_TASK, where it always is; as its last argument as well; as the whole of
    its standard input, so that it hears no messages; or in a file whose path is in SANDHERD_TASK_PATH. A task of more
    than 128,000 bytes is no variable and no argument: SANDHERD_TASK is not set then, and SANDHERD_TASK_PATH is."""

    @model_validator(mode="after")
    def _runs_something(self) -> Self:
        if not self.argv and self.script is None:
            raise ValueError("argv: no program is named, and there is no script")
        return self


class ClaudeHarness(Offering):
    """Claude, by its Agent SDK. Keys and addresses come as variables: ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["claude"]
    model: ModelName | None = None
    permission_mode: Literal["default", "acceptEdits", "bypassPermissions", "plan"] = "default"
    """What the SDK asks leave for by itself; the answer is always that of `approvals`."""
    max_turns: Annotated[int, Field(ge=1, le=100_000)] | None = None
    max_budget_micro_usd: Annotated[MicroDollars, Field(ge=1)] | None = None
    system_prompt: Text | None = None
    """In place of the SDK's own."""
    append_system_prompt: Text | None = None
    """Behind the SDK's own."""
    allowed_tools: Annotated[list[ToolName], Field(max_length=256)] = Field(default_factory=list)
    """None named: those that its program has by default, which looks for files by its shell if not told otherwise."""
    disallowed_tools: Annotated[list[ToolName], Field(max_length=256)] = Field(default_factory=list)
    skills: bool = True
    subagents: bool = True
    approvals: Approvals = Approvals()


class OpenHandsHarness(Offering):
    """OpenHands, by its SDK. What is not said here comes as variables: LLM_API_KEY, LLM_MODEL, LLM_BASE_URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["openhands"]
    model: ModelName | None = None
    base_url: Url | None = None
    max_iterations: Annotated[int, Field(ge=1, le=100_000)] = 500
    approvals: Approvals = Approvals()


class AcpHarness(Offering):
    """Any agent that speaks the Agent Client Protocol on its standard input and output."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["acp"]
    argv: Annotated[Argv, Field(min_length=1)]
    """The agent's program."""
    approvals: Approvals = Approvals()


DrivenHarness = ClaudeHarness | OpenHandsHarness | AcpHarness
"""What runs in a driver."""


def _of_old(said: Any) -> Any:
    """A document that says no kind is a command: there was no other."""
    return {"kind": "command", **said} if isinstance(said, dict) else said


AnyHarness = Annotated[Annotated[CommandHarness | DrivenHarness, Field(discriminator="kind")], BeforeValidator(_of_old)]

HARNESSES: Final[dict[str, type[BaseModel]]] = {
    get_args(model.model_fields["kind"].annotation)[0]: model for model in (CommandHarness, *get_args(DrivenHarness))
}
"""Every kind of agent, by name."""


def words(harness: BaseModel) -> dict[str, Any]:
    """Those of a harness's fields that hold free text, in which a secret may stand."""
    closed = {"kind", "task_as", "permission_mode", "approvals"}
    found = {name: getattr(harness, name) for name in type(harness).model_fields if name not in closed}
    return {name: value for name, value in found.items() if isinstance(value, str | list)}
