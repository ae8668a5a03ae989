"""Requests about webhooks: URLs to which the message-relay delivers a project's events, signed."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.commands import Note
from sandherd.contracts.model import Count, Model, Moment, Number
from sandherd.contracts.names import SafeName
from sandherd.contracts.patterns import explained
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.subscriptions import Entities, Start

MAX_WEBHOOKS: Final = 16
"""Maximum of webhooks of a project."""
MAX_DEAD: Final = 100
"""Maximum of dead letters that a webhook keeps: the newest."""
WebhookUrl = Annotated[
    str,
    StringConstraints(
        max_length=2000,
        pattern=explained(r"^https?://[\x21\x23-\x7e]+$", "an address such as https://example.com/events"),
    ),
]
"""Where events are sent: by https; by http only to hosts that the setting `webhook_hosts` names."""
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
    """Only events of these types; all if the list is empty."""
    entities: list[str] = Field(default_factory=list)
    """Only events about these tasks and sandboxes; about all if the list is empty."""
    state: WebhookState
    created_at: Moment
    created_by: _Issuer | None = None
    secret_at: Moment
    """When its present secret was created. The one before it signs, too, until `previous_secret_until`."""
    previous_secret_until: Moment | None = None
    position: Count
    """Every event of the stream EVENTS up to this sequence is accepted, a dead letter, not wanted, or `waiting`."""
    waiting: Count = 0
    """Events that were read and are not accepted yet."""
    retrying: Count = 0
    """How many of the `waiting` events were sent at least once, and will be sent again."""
    accepted_at: Moment | None = None
    """When the receiver last accepted an event."""
    failing_since: Moment | None = None
    """Since when it has accepted none of those that were sent."""
    problem: str | None = None
    """The reason of the last failure, while the receiver accepts nothing, or why it is disabled."""
    disabled_at: Moment | None = None
    dropped: Count = 0
    """How many messages the stream EVENTS no longer had when they were to be sent. At most that many events are
    missing: of those that were not read, some may have been of other types or projects than the webhook's."""
    dropped_at: Moment | None = None
    """When that was last noticed."""
    dead: Count = 0
    """How many dead letters are kept; they can be sent again."""
    dead_letters: list[WebhookDeadLetter] = Field(default_factory=list)
    """The dead letters, oldest first; only in the reply about one webhook."""


class WebhookList(Model):
    """A project's webhooks, by name."""

    webhooks: list[Webhook]
    limit: int = MAX_WEBHOOKS
    """Maximum of webhooks of a project."""


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
    types: list[str] = Field(default_factory=list, max_length=64)
    """Only these types, such as `task.failed`, or all of a domain, `task` or `task.*`; all if the list is empty."""
    entities: Entities = Field(default_factory=list)
    """Only events about these tasks and sandboxes, by their `subject`; about all if the list is empty."""
    start: Start = "new"
    """Events from now on, all that the stream still has, or all from this stream sequence, or from this time on."""
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
    """Deliver again from this stream sequence or this time on, `all` that the stream has, or only `new` events; None:
    from its position on."""
    dead_letters: bool = False
    """Send its dead letters again, before other events. Those that the stream no longer has are dropped."""


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
    """The status of the response; None if there was none."""
    reason: str


class SendWebhookTest(Request[WebhookTested]):
    """Send a signed document of the type `webhook.test` once, and return the response."""

    Answer: ClassVar[type[BaseModel]] = WebhookTested
    type: ClassVar[str] = "message-relay.test_webhook"
    name: SafeName


class WebhookSecrets(Model):
    """The secrets of a webhook, encrypted for the relay: a sealed box of a JSON object with `secret` and `previous`.

    `previous` is empty if there was none.
    """

    sealed: str


class GetWebhookSecrets(Request[WebhookSecrets]):
    """Return a webhook's secrets to the relay, which signs with them."""

    Answer: ClassVar[type[BaseModel]] = WebhookSecrets
    type: ClassVar[str] = "spawner.webhook_secrets"
    name: SafeName
    public_key: Annotated[str, Field(max_length=100)]
    """The key that the reply is encrypted for; that of one replica, which has it in memory only."""
    life: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
    """Which webhook of this name it is: another one has other secrets."""
    number: Number
    """The number of the secret: each has the next one."""
    create: bool = False
    """Whether to create it if it does not exist; the one before it is then the `previous` one."""


class WebhookSecretsDeleted(Model):
    """A webhook's secrets were erased."""

    name: SafeName


class DeleteWebhookSecrets(Request[WebhookSecretsDeleted]):
    """Erase the secrets of a deleted webhook."""

    Answer: ClassVar[type[BaseModel]] = WebhookSecretsDeleted
    type: ClassVar[str] = "spawner.delete_webhook_secrets"
    name: SafeName
