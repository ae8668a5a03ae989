"""What every event has in common: its name, and the facts that consumers decide by."""

from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field

from sandherd.contracts.model import Model
from sandherd.contracts.quantities import Count, Number

EVENTS: Final[dict[str, type["EventData"]]] = {}
"""Every event type, by name. Filled as the classes below `EventData` are defined."""


class EventData(Model):
    """The `data` of an event. Fields this version doesn't know are passed over, so that newer writers are read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: ClassVar[str]
    counts_as_work: ClassVar[bool] = True
    """Whether it shows that the agent is getting on; the idle rule has no list of its own."""
    terminal: ClassVar[bool] = False
    """Whether it ends the attempt."""
    opens: ClassVar[str | None] = None
    """The field with the key of a call that is in flight from here on."""
    closes: ClassVar[str | None] = None
    """The field with the key of a call that is no longer in flight."""
    schema_version: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("type")
        if name is None:
            return
        if name in EVENTS:
            raise TypeError(f"two events are called {name}")
        EVENTS[name] = cls


class ArtifactRef(Model):
    """Where a payload too large for an event is: a stream subject, its size in bytes and its SHA-256."""

    model_config = ConfigDict(frozen=True)

    artifact: str
    subject: str
    size: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    chunks: Number
    media_type: str = "text/plain; charset=utf-8"
