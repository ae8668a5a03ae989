"""The agent server: a server that runs beside a worker for the lifetime of its sandbox."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from sandherd.contracts.model import Model

SERVER_MEMORY_MB: Final = 768
"""Minimum memory of a sandbox with an agent server; the server alone takes about 350 MiB when idle."""

ServerState = Literal["starting", "ready", "failed", "stopped"]
"""The state of an agent server. A server that has `failed` is not restarted automatically."""


class AgentServer(Model):
    """The OpenHands agent server beside the worker. It starts and ends with the sandbox, and is health-checked.

    Each sandbox has its own key. The key is in no event, log, argument or URL; the request `spawner.agent_server`
    returns it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["openhands"] = "openhands"
    restarts: Annotated[int, Field(ge=0, le=20)] = 3
    """Maximum number of restarts after failures, over the lifetime of the sandbox."""
    start_seconds: Annotated[int, Field(ge=5, le=600)] = 120
    """How long a start may take until the server responds."""
