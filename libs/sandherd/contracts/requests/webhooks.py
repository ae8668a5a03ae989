"""Requests about webhooks: URLs to which the message-relay delivers signed events of a project."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.commands import Note
from sandherd.contracts.model import MAX_TYPES, Count, Model, Moment, Number
from sandherd.contracts.names import SafeName
from sandherd.contracts.patterns import explained
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.subscriptions import Entities, Start

MAX_WEBHOOKS: Final = 16
"""Maximum number of webhooks of a project."""
MAX_DEAD: Final = 100
"""Maximum number of dead letters that a webhook keeps; the newest are kept."""
WebhookUrl = Annotated[
    str,
    StringConstraints(
        max_length=2000,
        pattern=explained(r"^https?://[\x21\x23-\x7e]+$", "an address such as https://example.com/events"),
    ),
]
"""The URL to which events are sent. Http instead of https is permitted only for hosts in the setting `webhook_hosts`.
"""
WebhookState = Literal["active", "disabled"]
"""A `disabled` webhook delivers nothing until it is resumed."""
_Issuer = Annotated[Note, Field(max_length=200)]


class WebhookDeadLetter(Model):
    """An event that was not accepted at the last attempt."""

    sequence: Number
    """Its sequence in the stream EVENTS."""
    type: str
    subject: str
    """The task or sandbox that it is about."""
    reason: str
    at: Moment
    """When it was given up."""


class Webhook(Model):
    """A webhook and the progress of its delivery. Only the reply to its creation contains its secret."""

    name: SafeName
    url: str
    types: list[str]
    """Only events of these types; if the list is empty, events of all types."""
    entities: list[str] = Field(default_factory=list)
    """Only events about these tasks and sandboxes; if the list is empty, about all."""
    state: WebhookState
    created_at: Moment
    created_by: _Issuer | None = None
    secret_at: Moment
    """When its present secret was created. Until `previous_secret_until`, the previous secret signs, too."""
    previous_secret_until: Moment | None = None
    position: Count
    """Every event of the stream EVENTS up to this sequence is accepted, a dead letter, not selected, or `waiting`."""
    waiting: Count = 0
    """Number of events that were read and are not accepted yet."""
    retrying: Count = 0
    """How many of the `waiting` events were sent at least once, and will be sent again."""
    accepted_at: Moment | None = None
    """When the receiver last accepted an event."""
    failing_since: Moment | None = None
    """The time since which the receiver has accepted none of the sent events."""
    problem: str | None = None
    """The last failure, while the receiver accepts nothing, or why the webhook is disabled."""
    disabled_at: Moment | None = None
    dropped: Count = 0
    """Number of messages that the stream EVENTS no longer had when they were to be sent. At most that many events are
    missing: messages that were not read may have been of types or projects that the webhook does not select."""
    dropped_at: Moment | None = None
    """When messages were last found missing in the stream."""
    dead: Count = 0
    """Number of dead letters that are kept; they can be sent again."""
    dead_letters: list[WebhookDeadLetter] = Field(default_factory=list)
    """The dead letters, oldest first; only in the reply about one webhook."""


class WebhookList(Model):
    """A project's webhooks, by name."""

    webhooks: list[Webhook]
    limit: int = MAX_WEBHOOKS
    """Maximum number of webhooks of a project."""


class ListWebhooks(Request[WebhookList]):
    """List a project's webhooks, or return one, with its dead letters."""

    Answer: ClassVar[type[BaseModel]] = WebhookList
    type: ClassVar[str] = "message-relay.webhooks"
    name: SafeName | None = None


class WebhookWithSecret(Model):
    """A webhook with its new secret, which no other reply contains."""

    webhook: Webhook
    secret: str = Field(repr=False)
    """`whsec_` and 256 bits in base64, as Standard Webhooks defines it. The receiver needs it."""


class CreateWebhook(Request[WebhookWithSecret]):
    """Create a webhook, and its secret. One of the same name is a `conflict`."""

    Answer: ClassVar[type[BaseModel]] = WebhookWithSecret
    type: ClassVar[str] = "message-relay.create_webhook"
    name: SafeName
    url: WebhookUrl
    types: list[str] = Field(default_factory=list, max_length=MAX_TYPES)
    """Only events of these types, such as `task.failed`, or of a whole domain, `task` or `task.*`; if the list is
    empty, events of all types."""
    entities: Entities = Field(default_factory=list)
    """Only events with one of these tasks and sandboxes as their `subject`; if the list is empty, events about all."""
    start: Start = "new"
    """Where the delivery begins: `new`, at new events; `all`, at all events in the stream; or at this stream sequence
    or this time."""
    created_by: _Issuer | None = None


class RotateWebhookSecret(Request[WebhookWithSecret]):
    """Create another secret for a webhook. For 24 hours, requests are also signed with the previous one."""

    Answer: ClassVar[type[BaseModel]] = WebhookWithSecret
    type: ClassVar[str] = "message-relay.rotate_webhook_secret"
    name: SafeName


class ReplayWebhook(Request[WebhookList]):
    """Deliver events again, or continue a disabled webhook where it stopped."""

    Answer: ClassVar[type[BaseModel]] = WebhookList
    type: ClassVar[str] = "message-relay.replay_webhook"
    name: SafeName
    start: Start | None = None
    """The stream sequence or the time from which events are delivered again; `all`: all events in the stream; `new`:
    only new events; None: events after the webhook's position."""
    dead_letters: bool = False
    """Whether to send its dead letters again, before other events. Dead letters that the stream no longer has are
    dropped."""


class WebhookDeleted(Model):
    """A webhook was deleted, and its secret erased."""

    name: SafeName


class DeleteWebhook(Request[WebhookDeleted]):
    """Delete a webhook, its position and its secret."""

    Answer: ClassVar[type[BaseModel]] = WebhookDeleted
    type: ClassVar[str] = "message-relay.delete_webhook"
    name: SafeName


class WebhookTested(Model):
    """The result of a test."""

    accepted: bool
    status: int | None = None
    """The HTTP status of the response; None if there was no response."""
    reason: str


class SendWebhookTest(Request[WebhookTested]):
    """Send a signed document of the type `webhook.test` once, and return the response."""

    Answer: ClassVar[type[BaseModel]] = WebhookTested
    type: ClassVar[str] = "message-relay.test_webhook"
    name: SafeName


class WebhookSecrets(Model):
    """The secrets of a webhook, encrypted for the relay: a sealed box of a JSON object with `secret` and `previous`.

    `previous` is empty if there was no previous secret.
    """

    sealed: str


class GetWebhookSecrets(Request[WebhookSecrets]):
    """Return a webhook's secrets to the relay, which signs with them."""

    Answer: ClassVar[type[BaseModel]] = WebhookSecrets
    type: ClassVar[str] = "spawner.webhook_secrets"
    name: SafeName
    public_key: Annotated[str, Field(max_length=100)]
    """The public key for which the reply is encrypted. It belongs to one replica, which has the private key in memory
    only."""
    life: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    """The id that the webhook got when it was created, like a Kubernetes `uid`. It distinguishes webhooks of the same
    name, which have different secrets."""
    number: Number
    """The number of the secret. Each new secret has the next number."""
    create: bool = False
    """Whether to create the secret if it does not exist; the secret before it becomes `previous`."""


class WebhookSecretsDeleted(Model):
    """A webhook's secrets were erased."""

    name: SafeName


class DeleteWebhookSecrets(Request[WebhookSecretsDeleted]):
    """Erase the secrets of a deleted webhook."""

    Answer: ClassVar[type[BaseModel]] = WebhookSecretsDeleted
    type: ClassVar[str] = "spawner.delete_webhook_secrets"
    name: SafeName
