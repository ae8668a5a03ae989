"""Handles the relay's requests about secrets of webhooks: to return them, encrypted for the relay, or erase them."""

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
_RECORDS: Final = "secrets of webhooks"


class StoredSecrets(BaseModel):
    """A webhook's secret and the one before it, which are stored encrypted. `previous` is empty if there was none.

    `life` distinguishes webhooks of the same name. `number` counts the secrets of a webhook.
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
        """The secret of this number and the one before it; created if that is requested and it does not exist."""
        project, request = incoming.project, incoming.request
        with available(_RECORDS):
            text = await self._secrets.value(project, request.name)
            stored = StoredSecrets.model_validate_json(text) if text else None
            found = readable(stored, request.life, request.number)
            if found is None and request.create:
                found = following(stored, request.life, request.number)
                await self._secrets.put(project, request.name, found.model_dump_json(), None)
        if found is None:
            problem = f"the secret of the webhook {request.name} in {project} can't be read"
            remedy = "rotate the secret of the webhook"
            raise ContractError(Code.NOT_FOUND, problem, field="name", remedy=remedy)
        return WebhookSecrets(sealed=_sealed(found, request.public_key))

    async def delete(self, incoming: IncomingRequest[DeleteWebhookSecrets]) -> WebhookSecretsDeleted:
        """Delete the secrets of a webhook, and erase their key."""
        with available(_RECORDS):
            await self._secrets.delete(incoming.project, incoming.request.name)
        return WebhookSecretsDeleted(name=incoming.request.name)


def readable(stored: StoredSecrets | None, life: str, number: int) -> StoredSecrets | None:
    """The secrets with this number, or None. Includes those before a rotation that the relay has not recorded yet."""
    if stored is None or stored.life != life:
        return None
    if stored.number == number + 1 and stored.previous:
        return StoredSecrets(life=life, number=number, secret=stored.previous)
    return stored if stored.number == number else None


def following(stored: StoredSecrets | None, life: str, number: int) -> StoredSecrets:
    """New secrets with this number. They are stored: a repeated request returns them and creates no others."""
    before = stored.secret if stored and (stored.life, stored.number) == (life, number - 1) else ""
    return StoredSecrets(life=life, number=number, secret=new_secret(), previous=before)


def _sealed(found: StoredSecrets, public_key: str) -> str:
    try:
        return seal({"secret": found.secret, "previous": found.previous}, public_key)
    except ValueError as error:
        remedy = "send a public key of X25519 in base64"
        raise ContractError(Code.INVALID_FIELD, str(error), field="public_key", remedy=remedy) from error
