"""The base of all events: the type's name, and the facts that consumers decide by, so that none lists types itself."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from sandherd.contracts.events.summaries import plain_fields
from sandherd.contracts.model import Count, Model, Number
from sandherd.contracts.states import State

Emitter = Literal["agent", "driver", "worker", "spawner", "monitor", "message-relay", "event-ingest"]
"""Who creates an event. A worker publishes what `agent` and `driver` create in its sandbox: `agent` is any agent's
program, `driver` the process that runs an agent's SDK."""

Tone = Literal["success", "failure", "attention", "action", "output", "input", "start", "background", "routine"]
"""How an event is highlighted where events are shown; each program maps it to colours of its own."""

EVENTS: Final[dict[str, type["EventData"]]] = {}
"""The event types of the modules that are loaded, by name; `contracts.events.EVENTS` has all. Filled as the subclasses
of `EventData` are defined."""


class EventData(Model):
    """The `data` of an event. Unknown fields are ignored, so that events of newer versions can be read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: ClassVar[str]
    emitted_by: ClassVar[Emitter]
    """Who creates it. A worker accepts an event from a program in its sandbox only if the class itself allows that."""
    counts_as_work: ClassVar[bool] = True
    """Whether it shows that the agent makes progress; the idle rule has no list of its own."""
    terminal: ClassVar[bool] = False
    """Whether it ends the attempt."""
    opens: ClassVar[str | None] = None
    """The field with the key of a call that is in flight from this event on."""
    closes: ClassVar[str | None] = None
    """The field with the key of a call that is no longer in flight after this event."""
    closes_source: ClassVar[bool] = False
    """Whether its source publishes nothing after it, unless with a higher sequence."""
    closes_source_alone: ClassVar[bool] = False
    """Whether it does so only as the first event of its source; in another source it is one of many."""
    sets_state: ClassVar[State | None] = None
    """The state that its task, sandbox, message or approval has from this event on."""
    milestone: ClassVar[bool] = False
    """Whether a span is exported when it is stored; that costs more than storing it."""
    measured: ClassVar[bool] = False
    """Whether event-ingest derives metrics and spans from it."""
    tone: ClassVar[Tone | None] = None
    symbol: ClassVar[str | None] = None
    """Its symbol in a timeline, in place of the type."""
    reserved: ClassVar[bool] = False
    """Whether no program publishes it yet: its documents state that."""
    schema_version: ClassVar[int] = 1

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("type")
        if name is None:
            return
        if name in EVENTS:
            raise TypeError(f"two events have the type {name}")
        if "emitted_by" not in cls.__dict__ and getattr(cls, "emitted_by", "agent") in {"agent", "driver"}:
            raise TypeError(f"{name}: emitted_by is not set; agent and driver are not inherited")
        if cls.reserved:
            cls.__doc__ = f"Reserved: not published yet. {cls.__doc__}"
        EVENTS[name] = cls

    def summarize(self) -> str:
        """The event in one line, without its type; the default is its fields. Control characters are not removed."""
        data = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        data.pop("turn", None)
        return plain_fields(data)


class SpawnerEvent(EventData):
    """Published by the spawner; it is not work of an agent."""

    emitted_by: ClassVar[Emitter] = "spawner"
    counts_as_work: ClassVar[bool] = False


class CommandRefusal(EventData):
    """A command that was not carried out: what it is about is as it was before.

    One with the code `internal` may have taken effect, and one that is requeued from the dead letters is carried out.
    """

    counts_as_work: ClassVar[bool] = False
    tone: ClassVar[Tone | None] = "failure"
    command: str
    """The command's type."""
    reason: str
    field: str | None = None
    code: str | None = None
    """Why, machine-readable: a code of `contracts.errors`, such as `invalid_field`, `not_found` or `conflict`."""
    command_id: str | None = None
    """The command's `id`; None if it had none that could be read."""
    command_sequence: Number | None = None
    """The command's sequence number in the stream COMMANDS, which the broker's acknowledgement returned."""

    def summarize(self) -> str:
        return f"{self.command.partition('.')[2].replace('_', ' ')}: {self.reason}"


Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hexadecimal."""


class ArtifactRef(Model):
    """A reference to a payload that is too large for an event: its stream subject, size in bytes and SHA-256."""

    model_config = ConfigDict(frozen=True)

    artifact: str
    subject: str
    size: Count
    sha256: Digest
    chunks: Number
    media_type: str = "text/plain; charset=utf-8"


def types_with_state(states: Iterable[State], events: Mapping[str, type[EventData]]) -> frozenset[str]:
    """The types of these events that set one of the states. States of two kinds with the same value are different."""
    wanted = {(type(state), state) for state in states}
    return frozenset(name for name, model in events.items() if (type(model.sets_state), model.sets_state) in wanted)
