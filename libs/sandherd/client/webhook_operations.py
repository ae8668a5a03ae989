"""Operations on webhooks: create, list, rotate, replay, test and delete them."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sandherd.client.connection import Connection
from sandherd.client.errors import checked_name, validated
from sandherd.contracts import requests

if TYPE_CHECKING:
    from sandherd.contracts.requests import Webhook

_RELAY_TIMEOUT_SECONDS = 20.0
"""The timeout of requests for which the relay waits for the response of a receiver or of the spawner."""


class WebhookOperations:
    """The webhook methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection

    async def create_webhook(
        self,
        name: str,
        url: str,
        *,
        types: Sequence[str] = (),
        start: "Literal['new', 'all'] | int | datetime" = "new",
        entities: Sequence[str] = (),
        by: str | None = None,
    ) -> "requests.WebhookWithSecret":
        """Create a webhook, which sends events of the project to a URL: all, or those of these types and entities.

        Only this reply, and that of `rotate_webhook_secret`, has a secret of the signatures. If it is lost, rotate it.
        `types`, `entities` and `start` are as for `subscribe`.
        """
        request = validated(
            requests.CreateWebhook,
            name=checked_name(name, "name"),
            url=url,
            types=list(types),
            entities=list(entities),
            start=start,
            created_by=by,
        )
        return await self.connection.request(request, timeout=_RELAY_TIMEOUT_SECONDS)

    async def webhooks(self) -> "requests.WebhookList":
        """The project's webhooks; with a connection for all projects, those of all projects."""
        return await self.connection.request(requests.ListWebhooks())

    async def webhook(self, name: str) -> "Webhook":
        """One webhook, with its dead letters."""
        reply = await self.connection.request(validated(requests.ListWebhooks, name=checked_name(name, "name")))
        return reply.webhooks[0]

    async def rotate_webhook_secret(self, name: str) -> "requests.WebhookWithSecret":
        """Replace the secret. The reply has the new one. For a day, webhooks are also signed with the previous one."""
        request = validated(requests.RotateWebhookSecret, name=checked_name(name, "name"))
        return await self.connection.request(request, timeout=_RELAY_TIMEOUT_SECONDS)

    async def replay_webhook(
        self,
        name: str,
        *,
        start: "Literal['new', 'all'] | int | datetime | None" = None,
        dead_letters: bool = False,
    ) -> "Webhook":
        """Send events again, from a sequence or a time on, or the dead letters. Enables a disabled webhook."""
        request = validated(
            requests.ReplayWebhook, name=checked_name(name, "name"), start=start, dead_letters=dead_letters
        )
        return (await self.connection.request(request)).webhooks[0]

    async def test_webhook(self, name: str) -> "requests.WebhookTested":
        """Send a signed document of the type `webhook.test` once, and return the response."""
        request = validated(requests.SendWebhookTest, name=checked_name(name, "name"))
        return await self.connection.request(request, timeout=_RELAY_TIMEOUT_SECONDS)

    async def delete_webhook(self, name: str) -> "requests.WebhookDeleted":
        """Delete a webhook, its position and its secret."""
        request = validated(requests.DeleteWebhook, name=checked_name(name, "name"))
        return await self.connection.request(request, timeout=_RELAY_TIMEOUT_SECONDS)
