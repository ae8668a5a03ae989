"""Commands in pods over WebSockets: their channels and their ends."""

import asyncio
import json
from contextlib import suppress

from aiohttp import WSMsgType, web

from tests.doubles.kubernetes.store import Json


async def refused(socket: web.WebSocketResponse, why: str) -> web.WebSocketResponse:
    """Report why no command is run, and close the connection; input is not read."""
    failure = {"metadata": {}, "status": "Failure", "message": why, "reason": "InternalError", "code": 500}
    await socket.send_bytes(b"\x03" + json.dumps(failure).encode())
    await socket.close()
    return socket


async def executed(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    """Run a command to its end, which is reported last."""
    reading = asyncio.create_task(_input(socket, process))
    pumps = [_pump(socket, process.stdout, 1), _pump(socket, process.stderr, 2)]
    try:
        await asyncio.gather(*pumps)
        code = await process.wait()
        await socket.send_bytes(b"\x03" + json.dumps(_outcome(128 - code if code < 0 else code)).encode())
    except ConnectionError:
        process.kill()
        await process.wait()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await socket.close()


async def _input(socket: web.WebSocketResponse, process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    with suppress(ConnectionError):
        async for message in socket:
            if message.type is not WSMsgType.BINARY:
                return
            if message.data[0] == 0:
                process.stdin.write(message.data[1:])
                await process.stdin.drain()
            elif message.data[0] == 255:
                process.stdin.close()


async def _pump(socket: web.WebSocketResponse, source: asyncio.StreamReader | None, channel: int) -> None:
    assert source is not None
    while piece := await source.read(32 * 1024):
        await socket.send_bytes(bytes([channel]) + piece)


def _outcome(code: int) -> Json:
    """The last message of the error channel, as `remotecommand` of apimachinery writes it."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: exit status {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
