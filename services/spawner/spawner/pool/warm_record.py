"""A warm sandbox's record in the bucket `pool`. It is removed once the record of the sandbox that claimed it exists."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from sandherd.contracts.names import FLEET, SafeName
from sandherd.contracts.specs import SandboxLimits
from spawner.records.base_record import Record


class WarmState(StrEnum):
    """The state of a warm sandbox."""

    REQUESTED = "requested"
    READY = "ready"
    CLAIMED = "claimed"


class WarmRecord(Record):
    """A warm sandbox requested from a runtime. It has no events until a sandbox claims it, which has its own record."""

    project: SafeName = FLEET
    """A placeholder: a warm sandbox belongs to no project yet."""
    unit: SafeName
    """The warm sandbox's name in its runtime: `wrm-…`."""
    profile: SafeName
    runtime: SafeName
    limits: SandboxLimits
    user_namespaces: bool = Field(default=False, exclude_if=lambda allowed: not allowed)
    """Whether its programs may create user namespaces."""
    state: WarmState = WarmState.REQUESTED
    requested_at: AwareDatetime
    claimed_at: AwareDatetime | None = None
    public_key: str | None = None
    """The public key of the waiting worker; None: the worker does not wait yet, or creates its key later."""
    worker: str = Field(default="", exclude_if=lambda code: not code)
    """The digest of the code that its worker runs (`worker_code`)."""
    claimed_by: str | None = None
    """`<project>.<sandbox>` of the sandbox that claimed it."""

    @property
    def name(self) -> str:
        """The unit."""
        return self.unit

    @property
    def key(self) -> str:
        """The record's key in the bucket."""
        return self.unit

    @property
    def source(self) -> str:
        """Unused: a warm sandbox publishes no events."""
        return f"/sandherd/spawner/{self.unit}"

    def event_ids(self) -> dict[str, str | None]:
        """Empty: a warm sandbox publishes no events."""
        return {}
