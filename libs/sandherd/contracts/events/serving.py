"""What becomes of the agent server in a sandbox. Its key is in none of these."""

from typing import ClassVar

from sandherd.contracts.events.agent import AgentEvent
from sandherd.contracts.quantities import Count, Milliseconds, Number, Whole


class AgentServerStarted(AgentEvent):
    """The agent server's program runs; it does not answer yet."""

    type: ClassVar[str] = "agent.server_started"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    """Which start it is, in this sandbox."""


class AgentServerReady(AgentEvent):
    """It answers."""

    type: ClassVar[str] = "agent.server_ready"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    port: Number
    """Where it listens in its sandbox."""
    started_ms: Milliseconds = 0


class AgentServerFailed(AgentEvent):
    """It did not start, has ended, or does not answer any more; whatever it had started was ended."""

    type: ClassVar[str] = "agent.server_failed"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    error: str
    exit_code: Whole | None = None
    signal: Whole | None = None
    restarts_left: Count = 0
    """None left: it stays as it is."""


class AgentServerStopped(AgentEvent):
    """It was ended with its sandbox, with all that it had started."""

    type: ClassVar[str] = "agent.server_stopped"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    forced: bool = False
    """Whether it had to be ended by force."""
