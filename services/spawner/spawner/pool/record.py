"""A sandbox of the pool as it is kept in the bucket `pool`: only until it is somebody's."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from sandherd.contracts.names import FLEET, SafeName
from sandherd.contracts.specs import Limits
from spawner.records.record import Record


class WarmState(StrEnum):
    """How far it has come."""

    REQUESTED = "requested"
    READY = "ready"
    CLAIMED = "claimed"


class WarmRecord(Record):
    """What was asked of a runtime before anybody needed it. It says nothing: its sandbox's own record will."""

    project: SafeName = FLEET
    """None's yet."""
    unit: SafeName
    """What its runtime knows it by: `wrm-…`."""
    profile: SafeName
    runtime: SafeName
    limits: Limits
    user_namespaces: bool = Field(default=False, exclude_if=lambda allowed: not allowed)
    """Whether its programs may make user namespaces."""
    state: WarmState = WarmState.REQUESTED
    requested_at: AwareDatetime
    claimed_at: AwareDatetime | None = None
    claimed_by: str | None = None
    """`<project>.<sandbox>`: whose it is to be."""

    @property
    def name(self) -> str:
        """The unit."""
        return self.unit

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return self.unit

    @property
    def source(self) -> str:
        """It is the source of no event."""
        return f"/sandherd/spawner/{self.unit}"

    def about(self) -> dict[str, str | None]:
        """It is about nothing yet."""
        return {}
