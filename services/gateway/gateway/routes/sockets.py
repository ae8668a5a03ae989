"""WebSockets: live events for clients of earlier systems, and interactive terminals."""

from typing import Final

from fastapi import APIRouter, WebSocket

from gateway.routes.route_replies import Name
from gateway.sessions import Backend, herd_of
from gateway.sockets import EventsHandler, Socket, serve
from gateway.terminals import TerminalHandler
from sandherd.contracts.names import new_name

router: Final = APIRouter()


@router.websocket("/sandboxes/{sandbox}/events/socket")
async def events_socket(websocket: WebSocket, sandbox: Name, after: str | None = None) -> None:
    """Stream events of a sandbox after the position `after`; without a position, new events."""
    backend: Backend = websocket.app.state.backend()

    async def handle(socket: Socket) -> None:
        await herd_of(backend, socket.caller, new_name("req")).sandbox(sandbox)
        await EventsHandler(backend.streams, sandbox, after)(socket)

    await serve(websocket, backend.streams, backend.sockets, "read", handle)


@router.websocket("/sandboxes/{sandbox}/terminal")
async def terminal(websocket: WebSocket, sandbox: Name) -> None:
    """A command with a pseudo-terminal in a sandbox."""
    backend: Backend = websocket.app.state.backend()

    async def handle(socket: Socket) -> None:
        herd = herd_of(backend, socket.caller, new_name("req"))
        await herd.sandbox(sandbox)
        await TerminalHandler(herd, sandbox)(socket)

    await serve(websocket, backend.streams, backend.sockets, "work", handle)
