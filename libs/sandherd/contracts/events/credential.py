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
    """The public key in the credential, by which it is refused; another credential has another one."""
    role: Principal
    """`client`, `subscriber` or `operator`."""
    reason: RevocationReason
    """What it was used for: `connections`, more connections than the limit, repeatedly."""
    connections: Count
    """The most that it had at one time."""
    limit: Count
    """The most that it may have."""

    def summarize(self) -> str:
        return f"{self.connections} connections at a time, {self.limit} are permitted: create another credential"
