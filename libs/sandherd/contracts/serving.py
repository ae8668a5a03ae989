"""A server that runs beside a worker for as long as its sandbox lives."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from sandherd.contracts.model import Model

SERVER_MEMORY_MB: Final = 768
"""What a sandbox with an agent server needs at the least; the server alone takes about 350 MiB when it is idle."""

ServerState = Literal["starting", "ready", "failed", "stopped"]
"""`failed`: it is not started again by itself."""


class AgentServer(Model):
    """The OpenHands agent server, beside the worker: started with the sandbox, asked for its health, ended with it.

    Its key is the sandbox's own. It is in no event, log, argument or URL; `spawner.agent_server` gives it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["openhands"] = "openhands"
    restarts: Annotated[int, Field(ge=0, le=20)] = 3
    """How often it is started again after it was lost, in the whole life of the sandbox."""
    start_seconds: Annotated[int, Field(ge=5, le=600)] = 120
    """How long a start may take until it answers."""
