"""Questions about the agent server of a sandbox."""

from typing import ClassVar

from pydantic import BaseModel, Field

from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Count
from sandherd.contracts.requests.base import Request
from sandherd.contracts.serving import ServerState


class AgentServerView(Model):
    """An agent server as it stands."""

    sandbox: SafeName
    kind: str
    state: ServerState
    starts: Count = 0
    url: str | None = None
    """Where it is, for whoever can reach the sandbox's runtime from where they are; None while it does not answer."""
    key: str | None = Field(default=None, repr=False)
    """A secret, given only if it was asked for: what stands in `X-Session-API-Key`."""
    headers: dict[str, str] | None = Field(default=None, repr=False)
    """What else every request has to carry on the way there, by its name; secret as the key is, and given as it is."""
    error: str | None = None


class AskAgentServer(Request[AgentServerView]):
    """Where is the agent server of this sandbox, and how does it stand?"""

    Answer: ClassVar[type[BaseModel]] = AgentServerView
    type: ClassVar[str] = "spawner.agent_server"
    sandbox: SafeName
    with_key: bool = False
    """Whether its key is wanted, too, and the headers that every request has to carry on the way there."""
