"""Handles the relay's requests about secrets of webhooks. They are returned encrypted for the relay, or erased."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import BaseModel

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import (
    DeleteWebhookSecrets,
    GetWebhookSecrets,
    Request,
    WebhookSecrets,
    WebhookSecretsDeleted,
)
from sandherd.sealed_secrets import seal
from sandherd.service.requests import Answerer, IncomingRequest
from sandherd.webhook_signatures import new_secret
from spawner.live_state import LiveState
from spawner.records.availability import available

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {GetWebhookSecrets: 1, DeleteWebhookSecrets: 1}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""
_RECORD_KIND: Final = "secrets of webhooks"


class StoredSecrets(BaseModel):
    """A webhook's secret and its previous secret, which are stored encrypted. `previous` is empty if there was none.

    `life` is the id that the webhook got when it was created, like a Kubernetes `uid`: it distinguishes webhooks of the
    same name. `number` counts the secrets of a webhook.
    """

    life: str
    number: int
    secret: str
    previous: str = ""


class WebhookSecretHandler:
    """The handlers of requests about secrets of webhooks. They raise `ContractError`."""

    def __init__(self, live: LiveState) -> None:
        self._secrets = live.webhook_secrets

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {GetWebhookSecrets: self.view, DeleteWebhookSecrets: self.delete}

    async def view(self, incoming: IncomingRequest[GetWebhookSecrets]) -> WebhookSecrets:
        """Return the secret with the requested number, and the previous one. Create it if `create` is set."""
        project, request = incoming.project, incoming.request
        with available(_RECORD_KIND):
            text = await self._secrets.value(project, request.name)
            stored = StoredSecrets.model_validate_json(text) if text else None
            secrets = secrets_of_number(stored, request.life, request.number)
            if secrets is None and request.create:
                secrets = next_secrets(stored, request.life, request.number)
                await self._secrets.put(project, request.name, secrets.model_dump_json(), None)
        if secrets is None:
            problem = f"secret {request.number} of webhook {request.name} in {project} is not stored, or can't be read"
            remedy = "rotate the secret of the webhook"
            raise ContractError(Code.NOT_FOUND, problem, field="name", remedy=remedy)
        return WebhookSecrets(sealed=_encrypted(secrets, request.public_key))

    async def delete(self, incoming: IncomingRequest[DeleteWebhookSecrets]) -> WebhookSecretsDeleted:
        """Delete the secrets of a webhook, and erase their key."""
        with available(_RECORD_KIND):
            await self._secrets.delete(incoming.project, incoming.request.name)
        return WebhookSecretsDeleted(name=incoming.request.name)


def secrets_of_number(stored: StoredSecrets | None, life: str, number: int) -> StoredSecrets | None:
    """The secrets with this number, or None.

    After a rotation that the relay has not recorded yet, the relay still requests the previous number.
    """
    if stored is None or stored.life != life:
        return None
    if stored.number == number + 1 and stored.previous:
        return StoredSecrets(life=life, number=number, secret=stored.previous)
    return stored if stored.number == number else None


def next_secrets(stored: StoredSecrets | None, life: str, number: int) -> StoredSecrets:
    """A new secret with this number, and the previous one. They are to be stored, so that a retry returns the same."""
    previous = stored.secret if stored and (stored.life, stored.number) == (life, number - 1) else ""
    return StoredSecrets(life=life, number=number, secret=new_secret(), previous=previous)


def _encrypted(secrets: StoredSecrets, public_key: str) -> str:
    try:
        return seal({"secret": secrets.secret, "previous": secrets.previous}, public_key)
    except ValueError as error:
        remedy = "send an X25519 public key in base64"
        raise ContractError(Code.INVALID_FIELD, str(error), field="public_key", remedy=remedy) from error
