"""Events of the spawner about users' credentials."""

from typing import ClassVar, Literal

from sandherd.contracts.events.base import SpawnerEvent, Tone
from sandherd.contracts.model import Count
from sandherd.contracts.principals import Principal

RevocationReason = Literal["connections"]


class CredentialRevoked(SpawnerEvent):
    """A user's credential was revoked: the broker refuses it, and has closed its connections."""

    type: ClassVar[str] = "credential.revoked"
    closes_source: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "attention"
    public_key: str
    """The public key in the credential, which identifies it: another credential has another key."""
    role: Principal
    """`client`, `subscriber` or `operator`."""
    reason: RevocationReason
    """Why it was revoked: `connections`, because it repeatedly had more connections than the limit."""
    connections: Count
    """Maximum number of connections that it had at one time."""
    limit: Count
    """Maximum number of connections that it may have."""

    def summarize(self) -> str:
        return f"{self.connections} connections at a time, {self.limit} are permitted: create another credential"
