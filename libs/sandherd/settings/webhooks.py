"""Settings of webhooks, which the message-relay delivers."""

from typing import Annotated

from pydantic import BaseModel

from sandherd.settings.fields import Env, Names, Positive
from sandherd.settings.gateway import HostName


class WebhookSettings(BaseModel, defer_build=True):
    """The settings of webhooks. Times are in seconds."""

    webhook_hosts: Annotated[frozenset[HostName], Names, Env("SANDHERD_WEBHOOK_HOSTS")] = frozenset()
    """Hosts to which the message-relay may send webhooks even by plain http, and even if their addresses are not
    public. Webhooks to all other hosts need https, and are not sent to the loopback, private networks or cloud
    metadata."""
    webhook_disable_after: Annotated[Positive, Env("SANDHERD_WEBHOOK_DISABLE_AFTER")] = 432_000
    """A webhook is disabled if its receiver fails and has accepted no event for this time."""
