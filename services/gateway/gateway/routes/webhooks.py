"""Receives the webhooks of forges. They are authenticated by their own secrets, and have no access to anything else."""

from datetime import UTC, datetime
from typing import Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gateway.access_tokens import unauthorized_error
from gateway.routes.route_replies import Name
from gateway.sessions import Backend
from gateway.webhooks import ForgeName, change_in, is_authentic, secret_of
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.names import FLEET, new_name

router: Final = APIRouter(include_in_schema=False)


@router.post("/webhooks/{forge}/{name}")
async def receive_webhook(request: Request, forge: ForgeName, name: Name) -> Response:
    """Have the spawner poll the changed pull requests immediately. The status is 202, or 204 if there are none."""
    backend: Backend = request.app.state.backend()
    body = await request.body()
    headers = {key.lower(): value for key, value in request.headers.items()}
    if not is_authentic(forge, headers, body, secret_of(backend.webhook_secrets, name), datetime.now(UTC)):
        raise unauthorized_error("the webhook is not signed with the secret of this name")
    key = backend.deliveries.key(forge, name, headers, body)
    if backend.deliveries.was_handled(key):
        return Response(status_code=204)
    try:
        change = change_in(forge, body)
    except ValueError as error:
        text = f"the webhook is not JSON: {error}"[:200]
        raise HerdError.of(Code.INVALID_JSON, text, remedy="choose application/json at the forge") from None
    if change is None:
        return Response(status_code=204)
    connection = Connection.over(backend.bus, FLEET, issuer=f"/sandherd/gateway/webhook/{new_name('req')}")
    checked = await connection.request(change)
    backend.deliveries.add(key)
    return Response(status_code=202 if checked.branches else 204)
