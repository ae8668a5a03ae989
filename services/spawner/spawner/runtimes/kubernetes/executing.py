"""Running commands in a pod over the cluster's own protocol: channels of one WebSocket, and an end that is told.

What is run is written to the shell's standard input: what stands in the address of a request is in the cluster's logs.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any, Final

import aiohttp

from spawner.runtimes.boxes.furnishing import ROOT
from spawner.runtimes.boxes.provider import Command, ProviderError, ProviderFault, Ran
from spawner.runtimes.commands import Output
from spawner.runtimes.kubernetes import gate
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.faults import faults

_INPUT, _OUT, _ERR, _STATUS = 0, 1, 2, 3
_PIECE: Final = 32 * 1024
_SHELL: Final = 'eval "$(dd bs=1 count="$0" 2>/dev/null)"'
_ENDED: Final = frozenset({124, 137, 143})
"""What `timeout` of coreutils and of busybox ends with when it had to end the command; a command may do so itself."""
_MOST_OUTPUT: Final = 64 * 1024 * 1024
_STEP, _MARGIN = 120.0, 30.0
"""How long a script of ours may take, and how much longer than its own time a command: its node may not answer."""


async def script(
    cluster: Cluster, pod: str, text: str, payload: bytes = b"", *, most: int = _MOST_OUTPUT, seconds: float = _STEP
) -> Ran:
    """Run a script of ours. Raises `ProviderError` where it was cut off: it may have been done."""
    said = Output(most)
    source = text.encode()
    with faults(f"running a command in {pod}"):
        async with asyncio.timeout(seconds):
            async with await cluster.execute(pod, ["/bin/sh", "-c", _SHELL, str(len(source))]) as stream:
                await _send(stream, source + payload)
                status = await _heard(stream, said)
    if status is None:
        raise ProviderError(ProviderFault.TRANSIENT, f"kubernetes: a command in {pod} was cut off; it may have run")
    return said.ran(_code(status, pod), late=False)


async def run(cluster: Cluster, pod: str, command: Command) -> Ran:
    """Run a command to its end. One whose time is over is ended, with what it had said until then."""
    began = time.monotonic()
    folder = command.folder or f"{ROOT}/work"
    text = gate.bounded(command.argv, dict(command.environment), folder, command.seconds)
    ran = await script(cluster, pod, text, most=command.most_output, seconds=command.seconds + _MARGIN)
    late = ran.code in _ENDED and time.monotonic() - began >= command.seconds
    return Ran(None, ran.out, ran.err, timed_out=True, cut=ran.cut) if late else ran


async def _send(stream: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
    """In pieces that every server takes. The other end counts them, so that its input needs no end."""
    for at in range(0, len(data), _PIECE):
        await stream.send_bytes(bytes([_INPUT]) + data[at : at + _PIECE])


async def _heard(stream: aiohttp.ClientWebSocketResponse, said: Output) -> Mapping[str, Any] | None:
    """How it ended, once it has; None where the connection did before."""
    status: Mapping[str, Any] | None = None
    async for message in stream:
        if message.type is not aiohttp.WSMsgType.BINARY:
            break  # nobody answers at the other end any more, or what it says is no message
        channel, data = message.data[0], message.data[1:]
        if channel == _STATUS and data:
            status = json.loads(data)
        elif channel in {_OUT, _ERR}:
            said.add(data, error=channel == _ERR)
    return status


def _code(status: Mapping[str, Any], pod: str) -> int:
    """The exit status of a command. Raises `ProviderError` where there was none."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    told = f"kubernetes: no command can be run in {pod}: {status.get('message') or status.get('reason')}"
    raise ProviderError(ProviderFault.TRANSIENT, told)
