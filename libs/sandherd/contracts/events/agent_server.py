"""Events about the agent server in a sandbox. None of them contains its key."""

from typing import ClassVar

from sandherd.contracts.events.agent import AgentEvent
from sandherd.contracts.model import Count, Milliseconds, Number, Whole


class AgentServerStarted(AgentEvent):
    """The agent server's program runs; it does not respond yet."""

    type: ClassVar[str] = "agent.server_started"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    """The number of this start in the sandbox, from 1."""

    def summarize(self) -> str:
        return f"{self.kind}, start {self.start}"


class AgentServerReady(AgentEvent):
    """The agent server responds."""

    type: ClassVar[str] = "agent.server_ready"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    port: Number
    """The port that it listens on, in its sandbox."""
    started_ms: Milliseconds = 0

    def summarize(self) -> str:
        return f"{self.kind} responds on port {self.port}, after {self.started_ms:.0f} ms"


class AgentServerFailed(AgentEvent):
    """The agent server did not start, has ended, or no longer responds; every process that it had started was ended."""

    type: ClassVar[str] = "agent.server_failed"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    error: str
    exit_code: Whole | None = None
    signal: Whole | None = None
    restarts_left: Count = 0
    """Number of restarts that are left; if it is 0, the server is not started again."""

    def summarize(self) -> str:
        return f"{self.kind}: {self.error}; {self.restarts_left} restarts left"


class AgentServerStopped(AgentEvent):
    """The agent server was ended with its sandbox, with every process that it had started."""

    type: ClassVar[str] = "agent.server_stopped"
    counts_as_work: ClassVar[bool] = False
    kind: str
    start: Number = 1
    forced: bool = False
    """Whether it had to be killed."""

    def summarize(self) -> str:
        return self.kind + (", by force" if self.forced else "")
