"""Interactive terminals over a WebSocket: a command with a pseudo-terminal, its input, output, size and end.

Binary messages are the terminal's bytes in both directions. The command outlives the socket: a client that has lost its
connection, or has detached, can attach again within a minute, after the bytes that it has received.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect

from gateway.request_models import part_of
from gateway.sockets import Socket, SocketEndError
from sandherd.client.errors import validated
from sandherd.client.herd import Herd
from sandherd.client.sandboxes.execution import Execution, exit_status
from sandherd.contracts.model import Count, Model
from sandherd.contracts.names import SafeName, new_name
from sandherd.contracts.requests import INPUT_BYTES, Exec, ExecInput, InputAccepted, TerminalSize

_RETRY_SECONDS: Final = 0.1
"""Seconds until input that the command has not accepted is sent again."""
_ATTACH_TIMEOUT_SECONDS: Final = 15.0
_MAX_TIMEOUT_SECONDS: Final = 86_400
_CLOSE_REFUSED: Final = 4400
_TERMINAL_ENV: Final = {"TERM": "xterm-256color"}
_UNUSED_FIELDS: Final = frozenset({"sandbox", "exec", "stdin", "wait_seconds", "terminal", "timeout_seconds"})
"""Fields of `Exec` that the message `start` does not have, or has in another form."""


class Attach(Model):
    """Continue with a running or ended command after `offset` bytes of its output."""

    type: Literal["attach"]
    exec: SafeName
    offset: Count = 0


class Resize(Model):
    """The terminal's new size."""

    type: Literal["resize"]
    size: TerminalSize


class Detach(Model):
    """Close the socket; the command continues, and ends if no client attaches within 60 s."""

    type: Literal["detach"]


Start: Any = part_of(
    Exec,
    "Start",
    without=_UNUSED_FIELDS,
    type=(Literal["start"], ...),
    size=(TerminalSize, TerminalSize(rows=24, columns=80)),
    timeout_seconds=(Annotated[int, Field(ge=1, le=_MAX_TIMEOUT_SECONDS)], _MAX_TIMEOUT_SECONDS),
)
_FirstMessage: Final[TypeAdapter[Any]] = TypeAdapter(Annotated[Start | Attach, Field(discriminator="type")])
_LaterMessage: Final[TypeAdapter[Any]] = TypeAdapter(Annotated[Resize | Detach, Field(discriminator="type")])


class TerminalHandler:
    """Serves a terminal in one sandbox."""

    def __init__(self, herd: Herd, sandbox: str) -> None:
        self._herd = herd
        self._sandbox = sandbox
        self._accepted_bytes = 0
        """The number of bytes of input that the command has accepted."""

    async def __call__(self, socket: Socket) -> None:
        """Start a command or attach to one, then serve it until it ends or the client detaches."""
        first = _parse(_FirstMessage, await socket.receive())
        execution = await (self._attach(first) if isinstance(first, Attach) else self._start(first))
        await socket.send({"type": "started", "exec": execution.name})
        await socket.run(self._output(socket, execution), self._input(socket, execution))

    async def _start(self, start: Any) -> Execution:
        request = validated(
            Exec,
            sandbox=self._sandbox,
            exec=new_name("exc"),
            command=start.command,
            cwd=start.cwd,
            env=_TERMINAL_ENV | dict(start.env),
            timeout_seconds=start.timeout_seconds,
            wait_seconds=0,
            terminal=start.size,
        )
        return await Execution.start(self._herd.connection, request)

    async def _attach(self, attach: Attach) -> Execution:
        execution = Execution(self._herd.connection, self._sandbox, attach.exec, offset=attach.offset)
        state = await execution.poll(wait=0)
        if state.state == "running":
            # An input without bytes changes nothing. The reply has the number of bytes that were accepted.
            request = ExecInput(sandbox=self._sandbox, exec=attach.exec, offset=0)
            reply: InputAccepted = await self._herd.connection.request(request, timeout=_ATTACH_TIMEOUT_SECONDS)
            self._accepted_bytes = reply.accepted
        return execution

    async def _output(self, socket: Socket, execution: Execution) -> None:
        async for piece in execution.output():
            await socket.send(piece.data)
        state = execution.state
        assert state is not None  # `output` has requested it
        await socket.send({"type": "ended", "state": state.state, "status": exit_status(state), "error": state.error})

    async def _input(self, socket: Socket, execution: Execution) -> None:
        """Write each message before the next one is read, so that a client can't send more than the program reads."""
        with suppress(WebSocketDisconnect):
            while True:
                message = await socket.receive()
                if isinstance(message, bytes):
                    await self._write(execution, message)
                    continue
                control = _parse(_LaterMessage, message)
                if isinstance(control, Detach):
                    return
                await execution.write(b"", offset=self._accepted_bytes, size=control.size)

    async def _write(self, execution: Execution, data: bytes) -> None:
        while data:
            piece = data[:INPUT_BYTES]
            accepted = await execution.write(piece, offset=self._accepted_bytes)
            data = data[accepted - self._accepted_bytes :]
            if accepted < self._accepted_bytes + len(piece):
                await asyncio.sleep(_RETRY_SECONDS)
            self._accepted_bytes = accepted


def _parse(adapter: TypeAdapter[Any], message: dict[str, Any] | bytes) -> Any:
    """The validated message. Raises `SocketEndError` with the fault, but without the invalid value."""
    try:
        return adapter.validate_python(message)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part)[:40] for part in first["loc"])
        raise SocketEndError(_CLOSE_REFUSED, f"{field}: {first['msg']}") from None
