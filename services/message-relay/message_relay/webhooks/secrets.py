"""Requests the secrets of webhooks from the spawner, which encrypts them for a key of this process."""

from typing import Final

from nacl.public import PrivateKey

from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError, RefusedError
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import DeleteWebhookSecrets, GetWebhookSecrets
from sandherd.sealed_secrets import open_sealed, public_text

_RETRY_REMEDY: Final = "try again in a moment"


class WebhookSecretClient:
    """Requests secrets from the spawner. Every method raises `ContractError`."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._key = PrivateKey.generate()

    async def fetch(self, record: WebhookRecord, *, number: int | None = None, create: bool = False) -> tuple[str, str]:
        """The secret with this number, by default the present one, and the previous one or an empty text.

        With `create`, the spawner creates the secret if it does not exist.
        """
        request = GetWebhookSecrets(
            name=record.name,
            public_key=public_text(self._key),
            life=record.life,
            number=number or record.secret,
            create=create,
        )
        try:
            reply = await self._bus.ask(request, record.project)
        except RefusedError as error:
            problem = error.problem
            raise ContractError(problem.code, problem.message, field=problem.field, remedy=problem.remedy) from error
        except BusError as error:
            raise _unavailable() from error
        values = open_sealed(reply.sealed, self._key)
        if not values or not values.get("secret"):
            raise _unavailable()
        return values["secret"], values.get("previous", "")

    async def delete(self, record: WebhookRecord) -> None:
        """Send a request to the spawner to erase the secrets of a deleted webhook."""
        try:
            await self._bus.ask(DeleteWebhookSecrets(name=record.name), record.project)
        except BusError as error:
            raise _unavailable() from error


def _unavailable() -> ContractError:
    return ContractError(Code.UNAVAILABLE, "the spawner does not return secrets of webhooks now", remedy=_RETRY_REMEDY)
