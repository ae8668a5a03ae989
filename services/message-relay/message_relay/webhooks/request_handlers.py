"""Handles requests about webhooks: create, list, rotate the secret, replay, test, delete."""

import json
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from message_relay.webhooks.event_reader import EventReader
from message_relay.webhooks.receiver import Receiver, check_new_url
from message_relay.webhooks.retry_rules import shown
from message_relay.webhooks.secrets import WebhookSecretClient
from message_relay.webhooks.store import StoredWebhook, WebhookStore
from message_relay.webhooks.webhook_record import WebhookRecord, resumed, rotated, signing
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.client.webhooks.sender import WebhookMessage
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.event_types import chosen_types
from sandherd.contracts.names import FLEET, new_uuid
from sandherd.contracts.requests import (
    MAX_WEBHOOKS,
    CreateWebhook,
    DeleteWebhook,
    ListWebhooks,
    ReplayWebhook,
    Request,
    RotateWebhookSecret,
    SendWebhookTest,
    WebhookDeleted,
    WebhookList,
    WebhookTested,
    WebhookWithSecret,
)
from sandherd.service.requests import Answerer, IncomingRequest

OVERLAP: Final = timedelta(hours=24)
"""How long the previous secret also signs after a rotation."""
TEST_SECONDS: Final = 10.0
"""Maximum time of a test in seconds. It is less than requesters wait."""
AT_ONCE: Final = 8
"""Maximum tests that a replica sends at the same time, at most one for each project."""
ANSWERED: Final[Mapping[type[Request[Any]], int]] = {
    **dict.fromkeys((CreateWebhook, ListWebhooks, RotateWebhookSecret, ReplayWebhook, DeleteWebhook), 1),
    SendWebhookTest: AT_ONCE,
}
"""The requests that are handled here, and how many of each a replica handles concurrently."""


class WebhookRequestHandler:
    """The handlers of requests about webhooks. They raise `ContractError`.

    `wake` is called with the key of a changed webhook.
    """

    def __init__(
        self,
        store: WebhookStore,
        secrets: WebhookSecretClient,
        events: EventReader,
        *,
        hosts: Collection[str],
        wake: Callable[[str], None],
    ) -> None:
        self._store = store
        self._secrets = secrets
        self._events = events
        self._hosts = hosts
        self._wake = wake
        self._tested: set[str] = set()

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {
            CreateWebhook: self.create,
            ListWebhooks: self.list,
            RotateWebhookSecret: self.rotate,
            ReplayWebhook: self.replay,
            SendWebhookTest: self.test,
            DeleteWebhook: self.delete,
        }

    async def create(self, incoming: IncomingRequest[CreateWebhook]) -> WebhookWithSecret:
        """Create a webhook. Its record is stored first, so only one of two requests for a name creates a secret."""
        project, request, now = _checked_project(incoming.project), incoming.request, datetime.now(UTC)
        check_new_url(request.url, self._hosts)
        types = tuple(chosen_types(request.types))
        await self._check_limit(project)
        record = WebhookRecord(
            project=project,
            name=request.name,
            life=new_uuid().hex,
            url=request.url,
            types=types,
            entities=tuple(sorted(set(request.entities))),
            created_at=now,
            created_by=request.created_by,
            secret_at=now,
            position=await self._position(project, request.start, now),
        )
        if await self._store.create(record) is None:
            raise _exists(record)
        try:
            secret, _ = await self._secrets.fetch(record, create=True)
        except ContractError:
            await self._store.delete(record.key)
            raise
        self._wake(record.key)
        return WebhookWithSecret(webhook=record.view(), secret=secret)

    async def list(self, incoming: IncomingRequest[ListWebhooks]) -> WebhookList:
        """The webhooks of a project, or of all projects for an operator; or one webhook with its dead letters."""
        project, name = incoming.project, incoming.request.name
        if name is not None:
            record = (await self._load(project, name)).record
            return WebhookList(webhooks=[record.view(with_dead=True)])
        found = await self._store.all("*" if project == FLEET else project)
        return WebhookList(webhooks=[one.record.view() for one in found])

    async def rotate(self, incoming: IncomingRequest[RotateWebhookSecret]) -> WebhookWithSecret:
        """Create the next secret. A request that is repeated before its number is recorded returns the same secret."""
        stored = await self._load(incoming.project, incoming.request.name)
        record, now = stored.record, datetime.now(UTC)
        secret, _ = await self._secrets.fetch(record, number=record.secret + 1, create=True)
        changed = await self._change(record.key, lambda one: rotated(one, record.secret + 1, now, now + OVERLAP))
        return WebhookWithSecret(webhook=changed.view(), secret=secret)

    async def replay(self, incoming: IncomingRequest[ReplayWebhook]) -> WebhookList:
        """Resume a webhook, from another position if the request names one."""
        request = incoming.request
        record = (await self._load(incoming.project, request.name)).record
        Receiver(record.url, self._hosts)
        position = None
        if request.start is not None:
            position = await self._position(record.project, request.start, datetime.now(UTC))
        changed = await self._change(
            record.key, lambda one: resumed(one, position=position, dead_letters=request.dead_letters)
        )
        return WebhookList(webhooks=[changed.view(with_dead=True)])

    async def test(self, incoming: IncomingRequest[SendWebhookTest]) -> WebhookTested:
        """Send a test once. It is not an event, and is not stored."""
        record = (await self._load(incoming.project, incoming.request.name)).record
        if record.project in self._tested:
            raise ContractError(Code.BUSY, "another test of this project is running", remedy="retry in a moment")
        self._tested.add(record.project)
        try:
            return await self._test(record, datetime.now(UTC))
        finally:
            self._tested.discard(record.project)

    async def delete(self, incoming: IncomingRequest[DeleteWebhook]) -> WebhookDeleted:
        """Delete a webhook, and then its secrets, because a webhook needs them until it is deleted."""
        project, name = _checked_project(incoming.project), incoming.request.name
        record = await self._store.delete(f"{project}.{name}")
        if record is None:
            raise _unknown(project, name)
        self._wake(record.key)
        await self._secrets.delete(record)
        return WebhookDeleted(name=name)

    async def _test(self, record: WebhookRecord, now: datetime) -> WebhookTested:
        receiver = Receiver(record.url, self._hosts, total_seconds=TEST_SECONDS)
        pair = await self._secrets.fetch(record)
        webhook = WebhookMessage(str(new_uuid()), b"")
        document = {
            "specversion": "1.0",
            "id": webhook.id,
            "type": "webhook.test",
            "source": f"/sandherd/message-relay/{record.name}",
            "subject": record.name,
            "project": record.project,
            "time": now.isoformat(),
            "data": {},
        }
        webhook = WebhookMessage(webhook.id, json.dumps(document).encode())
        result = await receiver.send(webhook.body, webhook.headers(signing(record, pair, now), now))
        return WebhookTested(accepted=result.is_accepted, status=result.status, reason=shown(result.reason))

    async def _load(self, project: str, name: str) -> StoredWebhook:
        stored = await self._store.load(f"{_checked_project(project)}.{name}")
        if stored is None:
            raise _unknown(project, name)
        return stored

    async def _change(self, key: str, change: Callable[[WebhookRecord], WebhookRecord]) -> WebhookRecord:
        changed = await self._store.change(key, change)
        if changed is None:
            raise _unknown(*key.split("."))
        self._wake(key)
        return changed.record

    async def _position(self, project: str, start: str | int | datetime, now: datetime) -> int:
        try:
            return await self._events.position(project, start, now)
        except ContractError:
            raise
        except READ_ERRORS as error:
            raise ContractError(
                Code.UNAVAILABLE, "the stream of events can't be read now", remedy="try again in a moment"
            ) from error

    async def _check_limit(self, project: str) -> None:
        found = len(await self._store.all(project))
        if found >= MAX_WEBHOOKS:
            raise ContractError(
                Code.REFUSED,
                f"project {project} has {found} webhooks, and may have at most {MAX_WEBHOOKS}",
                field="name",
                remedy="delete one that is not needed",
            )


def _checked_project(project: str) -> str:
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, "a webhook belongs to one project", field="project", remedy="name one project"
        )
    return project


def _exists(record: WebhookRecord) -> ContractError:
    return ContractError(
        Code.CONFLICT,
        f"there is a webhook {record.name} in {record.project}",
        field="name",
        remedy="delete it first, choose another name, or rotate its secret if that is not known",
    )


def _unknown(project: str, name: str) -> ContractError:
    return ContractError(
        Code.NOT_FOUND, f"there is no webhook {name} in {project}", field="name", remedy="list the webhooks"
    )
