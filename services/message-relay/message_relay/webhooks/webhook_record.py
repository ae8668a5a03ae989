"""A webhook as it is stored in the bucket `webhooks`: a user's settings, and the progress of its delivery. Pure."""

from collections.abc import Sequence
from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict

from sandherd.contracts.requests import Webhook, WebhookDeadLetter


class WebhookRetry(BaseModel):
    """A retry of an event that was not accepted: how often it has failed, and when it is sent again."""

    model_config = ConfigDict(frozen=True)

    sequence: int
    failures: int
    due: AwareDatetime


class WebhookRecord(BaseModel):
    """A webhook. Its secrets are not here: the spawner stores them, encrypted."""

    model_config = ConfigDict(frozen=True)

    project: str
    name: str
    life: str
    """32 hexadecimal digits that distinguish the webhook from earlier ones of its name."""
    edit: int = 1
    """Incremented by each request that changes the webhook. The delivery is restarted when this number changes."""
    url: str
    types: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    created_at: AwareDatetime
    created_by: str | None = None
    secret: int = 1
    """The number of the present secret."""
    secret_at: AwareDatetime
    previous_until: AwareDatetime | None = None
    """The time until which the previous secret also signs."""
    position: int = 0
    """Every event up to this stream sequence is handled, except those in `waiting`."""
    waiting: tuple[int, ...] = ()
    """Sequences of events that are read but not handled, and of dead letters that have to be sent again."""
    retries: tuple[WebhookRetry, ...] = ()
    dead: tuple[WebhookDeadLetter, ...] = ()
    dropped: int = 0
    """The maximum number of messages that the stream may have dropped before they were sent."""
    dropped_at: AwareDatetime | None = None
    accepted_at: AwareDatetime | None = None
    failing_since: AwareDatetime | None = None
    problem: str | None = None
    disabled_at: AwareDatetime | None = None
    published: bool = True
    """Whether the event that the webhook was disabled is published; also True while it is not disabled."""

    @property
    def key(self) -> str:
        """The key of its entry in the bucket."""
        return f"{self.project}.{self.name}"

    def matches(self, entity: str, event_type: str) -> bool:
        """Whether the webhook selects events of this type about this task or sandbox."""
        by_type = not self.types or event_type in self.types or event_type.partition(".")[0] in self.types
        return by_type and (not self.entities or entity in self.entities)

    def view(self, *, with_dead: bool = False) -> Webhook:
        """The webhook as users see it."""
        return Webhook(
            name=self.name,
            url=self.url,
            types=list(self.types),
            entities=list(self.entities),
            state="active" if self.disabled_at is None else "disabled",
            created_at=self.created_at,
            created_by=self.created_by,
            secret_at=self.secret_at,
            previous_secret_until=self.previous_until,
            position=self.position,
            waiting=len(self.waiting),
            retrying=len(self.retries),
            accepted_at=self.accepted_at,
            failing_since=self.failing_since,
            problem=self.problem,
            disabled_at=self.disabled_at,
            dropped=self.dropped,
            dropped_at=self.dropped_at,
            dead=len(self.dead),
            dead_letters=list(self.dead) if with_dead else [],
        )


def resumed(record: WebhookRecord, *, position: int | None, dead_letters: bool) -> WebhookRecord:
    """The webhook, active again: from `position` if it is not None, and with `dead_letters` to be sent again."""
    changes: dict[str, object] = {
        "edit": record.edit + 1,
        "disabled_at": None,
        "failing_since": None,
        "problem": None,
        "published": True,
        "retries": (),  # they are sent at once
    }
    if position is not None:
        changes |= {"position": position, "waiting": ()}
    if dead_letters:
        left = record.waiting if position is None else ()
        read = record.position if position is None else position  # events after it are read from the stream
        again = {*left, *(one.sequence for one in record.dead if one.sequence <= read)}
        changes |= {"waiting": tuple(sorted(again)), "dead": ()}
    return record.model_copy(update=changes)


def rotated(record: WebhookRecord, number: int, now: datetime, until: datetime) -> WebhookRecord:
    """The webhook with the secret of this number. The previous secret also signs until `until`."""
    return record.model_copy(
        update={"edit": record.edit + 1, "secret": number, "secret_at": now, "previous_until": until}
    )


def signing(record: WebhookRecord, secrets: Sequence[str], now: datetime) -> tuple[str, ...]:
    """The secrets that sign now: the present one, then the previous one while it is valid."""
    until = record.previous_until
    valid = secrets if until is not None and now < until else secrets[:1]
    return tuple(one for one in valid if one)
