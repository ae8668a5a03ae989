"""The event of a webhook that was disabled. It is published once."""

from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.bus.connection import Bus
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.webhook import WebhookDisabled
from sandherd.contracts.names import DerivedIds


def disabled_event(ids: DerivedIds, record: WebhookRecord) -> Envelope[WebhookDisabled]:
    """The event of a disabled webhook. Its id is the same whenever the event is created."""
    at = record.disabled_at or record.created_at
    data = WebhookDisabled(
        reason=record.problem or "unknown", failing_since=record.failing_since or at, position=record.position
    )
    id = ids.derive(at, record.project, record.name, record.life, data.type)
    return wrap(
        data,
        data.type,
        id=id,
        source=f"/sandherd/message-relay/{record.name}/{id.hex}",
        sequence=1,
        project=record.project,
        subject=record.name,
        time=at,
    )


async def publish_disabled(bus: Bus, record: WebhookRecord) -> None:
    """Publish the event until the broker has stored it."""
    await bus.publish_event(disabled_event(bus.ids, record))
