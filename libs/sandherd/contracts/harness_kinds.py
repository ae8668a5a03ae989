"""Declarations of the kinds of agent: options, capabilities and driver. Plugins declare further kinds.

Every kind is registered as an entry point of the group `sandherd.harnesses`; docs/plugins.md describes the interface.
"""

from dataclasses import dataclass
from typing import Final, get_args

from pydantic import BaseModel

from sandherd.contracts.harnesses import HARNESSES, Approvals


@dataclass(frozen=True, kw_only=True)
class HarnessCapabilities:
    """The capabilities of all agents of a kind."""

    accepts_messages_mid_turn: bool
    """The agent receives messages during a turn; otherwise a message waits for the end of the turn."""
    interruptible: bool
    """An interrupt stops the agent's turn, and the agent continues to run; otherwise the agent has only one turn."""
    accepts_follow_ups: bool
    """After the task is done, a message begins another turn; otherwise the message is rejected."""
    stores_session: bool
    """The agent's session is stored as a transcript, and another attempt can resume it."""
    requests_approvals: bool
    """`approvals` defines which of the agent's tools need an approval."""
    accepts_tools: bool
    """The agent can use the tools of the herd, and those of `mcp_servers`."""


CAPABILITIES: Final = {
    "command": HarnessCapabilities(
        accepts_messages_mid_turn=True,
        interruptible=False,
        accepts_follow_ups=False,
        stores_session=False,
        requests_approvals=False,
        accepts_tools=False,
    ),
    "claude": HarnessCapabilities(
        accepts_messages_mid_turn=True,
        interruptible=True,
        accepts_follow_ups=True,
        stores_session=True,
        requests_approvals=True,
        accepts_tools=True,
    ),
    "openhands": HarnessCapabilities(
        accepts_messages_mid_turn=True,
        interruptible=True,
        accepts_follow_ups=True,
        stores_session=True,
        requests_approvals=True,
        accepts_tools=True,
    ),
    "acp": HarnessCapabilities(
        accepts_messages_mid_turn=False,
        interruptible=True,
        accepts_follow_ups=True,
        stores_session=False,
        requests_approvals=True,
        accepts_tools=True,
    ),
}
"""The capabilities of Sandherd's own kinds, by name."""


@dataclass(frozen=True, kw_only=True)
class HarnessKind:
    """A kind of agent."""

    options: type[BaseModel]
    """The fields of `harness` in a task. The field `kind` is a `Literal` of one name; forbid unknown fields.

    Options that inherit from `McpToolOptions` let the agent use the herd's tools; a field `approvals` of type
    `Approvals` sets which of its tools need an approval."""
    capabilities: HarnessCapabilities
    driver: str | None = None
    """The module that runs the agent, started as `python -m MODULE`; None only for programs without a driver."""
    toolchain: bool = False
    """Whether the driver needs its own interpreter, in the folder of toolchains. Otherwise it uses the worker's
    interpreter."""

    def __post_init__(self) -> None:
        if not (isinstance(self.options, type) and issubclass(self.options, BaseModel)):
            raise TypeError("options: not a pydantic model")
        field = self.options.model_fields.get("kind")
        names = get_args(field.annotation) if field else ()
        if len(names) != 1 or not isinstance(names[0], str):
            raise TypeError(f"options: {self.options.__name__} needs a field `kind`, a Literal of one name")

    @property
    def name(self) -> str:
        """The name of the kind: the value of `kind`."""
        return str(get_args(self.options.model_fields["kind"].annotation)[0])

    def approvals(self, options: BaseModel) -> Approvals:
        """The approvals in these options. If the kind has no approvals, every tool is allowed."""
        found = getattr(options, "approvals", None)
        return found if isinstance(found, Approvals) else Approvals()


def _harness_with_driver(kind: str) -> HarnessKind:
    return HarnessKind(
        options=HARNESSES[kind], capabilities=CAPABILITIES[kind], driver=f"sandherd_drivers.{kind}", toolchain=True
    )


COMMAND: Final = HarnessKind(options=HARNESSES["command"], capabilities=CAPABILITIES["command"])
CLAUDE: Final = _harness_with_driver("claude")
OPENHANDS: Final = _harness_with_driver("openhands")
ACP: Final = _harness_with_driver("acp")
OWN_KINDS: Final = {kind.name: kind for kind in (COMMAND, CLAUDE, OPENHANDS, ACP)}
"""Sandherd's own kinds, by name. The worker finds them here without a search for entry points, which would slow its
start."""
