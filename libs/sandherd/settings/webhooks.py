"""Settings of webhooks, which the message-relay delivers."""

from typing import Annotated

from pydantic import BaseModel

from sandherd.settings.fields import Env, Names, Positive
from sandherd.settings.gateway import HostName


class WebhookSettings(BaseModel):
    """The settings of webhooks. Times are in seconds."""

    webhook_hosts: Annotated[frozenset[HostName], Names, Env("SANDHERD_WEBHOOK_HOSTS")] = frozenset()
    """Hosts that the message-relay may send webhooks to though their addresses are not public, also by http. Webhooks
    to any other host need https, and are not sent to the loopback, private networks or cloud metadata."""
    webhook_disable_after: Annotated[Positive, Env("SANDHERD_WEBHOOK_DISABLE_AFTER")] = 432_000
    """After this time without any accepted event, a webhook whose receiver fails is disabled."""
