"""Webhooks of a project: URLs that its events are sent to.

Changes need the role `operate`: a webhook receives events even after the token that created it has expired.
"""

from typing import Any, Final

from fastapi import APIRouter

from gateway.request_models import part_of
from gateway.routes.route_replies import Name
from gateway.sessions import OperateSession, WorkSession
from sandherd.client.errors import validated
from sandherd.contracts.requests import (
    CreateWebhook,
    ReplayWebhook,
    Webhook,
    WebhookDeleted,
    WebhookList,
    WebhookTested,
    WebhookWithSecret,
)

router: Final = APIRouter(tags=["webhooks"])
WebhookBody: Any = part_of(CreateWebhook, "WebhookBody", without=frozenset({"name", "created_by"}))
ReplayBody: Any = part_of(ReplayWebhook, "ReplayBody", without=frozenset({"name"}))


@router.get("/webhooks")
async def webhooks(session: WorkSession) -> WebhookList:
    """The project's webhooks, with the progress of each, without secrets."""
    return await session.herd.webhooks()


@router.get("/webhooks/{webhook}")
async def webhook(session: WorkSession, webhook: Name) -> Webhook:
    """A webhook, with its dead letters."""
    return await session.herd.webhook(webhook)


@router.put("/webhooks/{webhook}")
async def create_webhook(session: OperateSession, webhook: Name, body: WebhookBody) -> WebhookWithSecret:
    """Create a webhook. The response has the secret for its signatures, which no other response contains."""
    fields = {"types": body.types, "entities": body.entities, "start": body.start}
    return await session.herd.create_webhook(webhook, body.url, by=session.caller.name, **fields)


@router.post("/webhooks/{webhook}/secret")
async def rotate_webhook_secret(session: OperateSession, webhook: Name) -> WebhookWithSecret:
    """Create another secret. For a day, requests are also signed with the previous one."""
    return await session.herd.rotate_webhook_secret(webhook)


@router.post("/webhooks/{webhook}/replay")
async def replay_webhook(session: OperateSession, webhook: Name, body: ReplayBody) -> Webhook:
    """Send events again from a sequence or a time on, or send the dead letters again; a disabled webhook is resumed."""
    fields = body.model_dump(exclude_unset=True)
    webhook_list = await session.herd.connection.request(validated(ReplayWebhook, name=webhook, **fields))
    return webhook_list.webhooks[0]


@router.post("/webhooks/{webhook}/test")
async def test_webhook(session: OperateSession, webhook: Name) -> WebhookTested:
    """Send a signed document of the type `webhook.test` once."""
    return await session.herd.test_webhook(webhook)


@router.delete("/webhooks/{webhook}")
async def delete_webhook(session: OperateSession, webhook: Name) -> WebhookDeleted:
    """Delete a webhook, its position and its secret."""
    return await session.herd.delete_webhook(webhook)
