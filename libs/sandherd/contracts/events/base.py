"""The base class of events. Its attributes describe an event type, so that consumers need no lists of types."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import ConfigDict, Field

from sandherd.contracts.events.summaries import plain_fields
from sandherd.contracts.model import Count, Model, Number
from sandherd.contracts.states import State

Emitter = Literal["agent", "driver", "worker", "spawner", "monitor", "message-relay", "event-ingest"]
"""Who creates an event. A worker publishes the events that `agent` and `driver` create in its sandbox: `agent` is any
agent's program, `driver` is the process that runs an agent's SDK."""

Tone = Literal["success", "failure", "attention", "action", "output", "input", "start", "background", "routine"]
"""How an event is highlighted where events are shown. Each program maps it to its own colours."""

EVENTS: Final[dict[str, type["EventData"]]] = {}
"""The event types of the modules that are loaded, by name; `contracts.events.EVENTS` has all. Filled as the subclasses
of `EventData` are defined."""


class EventData(Model):
    """The `data` of an event. Unknown fields are ignored, so that events of newer versions can be read."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    type: ClassVar[str]
    emitted_by: ClassVar[Emitter]
    """Who creates the event. A worker accepts an event from a program in its sandbox only if the class itself allows
    that."""
    counts_as_work: ClassVar[bool] = True
    """Whether the event shows that the agent makes progress. The idle rule depends on it."""
    counts_as_error: ClassVar[bool] = False
    """Whether it counts as an error of the agent: in statistics, summaries, transcripts and replays. A failed tool call
    counts as an error there by its own rule, `CallEnd.has_failed`."""
    terminal: ClassVar[bool] = False
    """Whether it ends the attempt."""
    opens: ClassVar[str | None] = None
    """The field with the key of a call that is in flight from this event on."""
    closes: ClassVar[str | None] = None
    """The field with the key of a call that is no longer in flight after this event."""
    closes_source: ClassVar[bool] = False
    """Whether it is the last event of its source, unless the source has an event with a higher sequence."""
    closes_source_alone: ClassVar[bool] = False
    """Whether it is the last event of its source only if it is also the first. In other sources it is one of many
    events."""
    sets_state: ClassVar[State | None] = None
    """The state of its task, sandbox, message or approval from this event on."""
    milestone: ClassVar[bool] = False
    """Whether a span is exported when the event is stored. The export costs more than storing the event."""
    measured: ClassVar[bool] = False
    """Whether event-ingest derives metrics and spans from it."""
    tone: ClassVar[Tone | None] = None
    symbol: ClassVar[str | None] = None
    """Its symbol in a timeline, in place of the type."""
    reserved: ClassVar[bool] = False
    """Whether no program publishes the event yet. Its documentation states that."""
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
        """The event in one line, without its type. The default shows its fields. Control characters are not removed."""
        data = self.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
        data.pop("turn", None)
        return plain_fields(data)


class SpawnerEvent(EventData):
    """An event of the spawner. It is not work of an agent."""

    emitted_by: ClassVar[Emitter] = "spawner"
    counts_as_work: ClassVar[bool] = False


class CommandRefusal(EventData):
    """A command was not carried out, and has changed nothing.

    A command whose refusal has the code `internal` may nevertheless have taken effect. A command that is requeued from
    the dead letters is carried out.
    """

    counts_as_work: ClassVar[bool] = False
    tone: ClassVar[Tone | None] = "failure"
    command: str
    """The command's type."""
    reason: str
    field: str | None = None
    code: str | None = None
    """The reason as a code of `contracts.errors`, such as `invalid_field`, `not_found` or `conflict`."""
    command_id: str | None = None
    """The command's `id`; None if the command had no readable `id`."""
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
    """The types of these events that set one of the states. Equal values of different classes are different states."""
    wanted = {(type(state), state) for state in states}
    return frozenset(name for name, model in events.items() if (type(model.sets_state), model.sets_state) in wanted)
