"""An access token as it is stored in the bucket `tokens`."""

from datetime import timedelta

from pydantic import AwareDatetime

from sandherd.contracts.events.base import Digest
from sandherd.contracts.names import SafeName
from sandherd.contracts.records import AccessRole
from sandherd.contracts.requests import CreateToken, TokenView
from spawner.records.record import Record


class TokenRecord(Record):
    """An access token: the hash of its text, and what it permits. The gateway reads it as `SharedAccessToken`."""

    token: SafeName
    """Its name."""
    sha256: Digest
    role: AccessRole
    created_at: AwareDatetime
    expires_at: AwareDatetime
    created_by: str | None = None

    @property
    def name(self) -> str:
        """The second part of its key: the gateway knows its text, and no name."""
        return self.sha256

    @property
    def source(self) -> str:
        """Unused: it publishes no events."""
        return f"/sandherd/spawner/{self.token}"

    def event_ids(self) -> dict[str, str | None]:
        """Nothing: it publishes no events."""
        return {}

    def view(self) -> TokenView:
        """The token as requests show it: without its hash."""
        return TokenView(
            project=self.project,
            name=self.token,
            role=self.role,
            created_at=self.created_at,
            expires_at=self.expires_at,
            created_by=self.created_by,
        )


def created(project: str, request: CreateToken, now: AwareDatetime) -> TokenRecord:
    """The record of a new token."""
    return TokenRecord(
        project=project,
        token=request.name,
        sha256=request.sha256,
        role=request.role,
        created_at=now,
        expires_at=now + timedelta(seconds=request.lifetime_seconds),
        created_by=request.created_by,
    )
