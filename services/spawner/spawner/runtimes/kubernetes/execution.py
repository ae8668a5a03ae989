"""Runs commands in a pod over the cluster's exec protocol: a WebSocket with channels, the last one for the status.

Scripts are sent to the shell's standard input, not as arguments, because request URLs appear in the cluster's logs.
"""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import aiohttp

from spawner.runtimes.boxes.box_files import ROOT
from spawner.runtimes.boxes.provider import Command, CommandResult, ProviderError, ProviderFault
from spawner.runtimes.commands import TIMEOUT_STATUSES, Output
from spawner.runtimes.kubernetes import entrypoint
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.faults import faults

_INPUT, _OUT, _ERR, _STATUS = 0, 1, 2, 3
"""The numbers of the channels."""
_PIECE_BYTES: Final = 32 * 1024
_SHELL: Final = 'eval "$(dd bs=1 count="$0" 2>/dev/null)"'
"""Reads a script of a number of bytes, the argument, from standard input, and runs it with the rest of the input."""
_NO_KUBELET: Final = re.compile(r"dial(?:ing| tcp)|connection refused|no route to host|i/o timeout")
"""The errors of an API server that can't connect to the kubelet of a pod."""
_MAX_OUTPUT: Final = 64 * 1024 * 1024
_SCRIPT_SECONDS, _MARGIN = 120.0, 30.0
"""The timeout of our own scripts, and the time after a command's own timeout until its node counts as unresponsive, in
seconds."""


async def script(
    cluster: Cluster,
    pod: str,
    text: str,
    payload: bytes = b"",
    *,
    max_output: int = _MAX_OUTPUT,
    seconds: float = _SCRIPT_SECONDS,
) -> CommandResult:
    """Run one of our scripts, which can read `payload` from its standard input.

    Raises `ProviderError`, after a lost connection also if the script has run.
    """
    output = Output(max_output)
    source = text.encode()
    with faults(f"running a command in {pod}"):
        async with asyncio.timeout(seconds):
            async with await cluster.execute(pod, ["/bin/sh", "-c", _SHELL, str(len(source))]) as stream:
                with suppress(aiohttp.ClientConnectionResetError):  # the server has already sent the reason
                    await _send(stream, source + payload)
                status = await _read_status(stream, output)
    if status is None:
        raise ProviderError(
            ProviderFault.TRANSIENT, f"kubernetes: connection to a command in {pod} lost; it may have run"
        )
    return output.result(_code(status, pod), timed_out=False)


async def run(cluster: Cluster, pod: str, command: Command) -> CommandResult:
    """Run a command to its end. After its timeout, the command is killed, and its output until then is returned."""
    began = time.monotonic()
    folder = command.folder or f"{ROOT}/work"
    text = entrypoint.run_with_timeout(command.argv, dict(command.environment), folder, command.seconds)
    result = await script(cluster, pod, text, max_output=command.max_output, seconds=command.seconds + _MARGIN)
    if result.code in TIMEOUT_STATUSES and time.monotonic() - began >= command.seconds:
        return CommandResult(None, result.out, result.err, timed_out=True, cut=result.cut)
    return result


async def _send(stream: aiohttp.ClientWebSocketResponse, data: bytes) -> None:
    """Send in pieces that every server accepts. The receiver counts bytes, so no end of input is needed."""
    for offset in range(0, len(data), _PIECE_BYTES):
        await stream.send_bytes(bytes([_INPUT]) + data[offset : offset + _PIECE_BYTES])


async def _read_status(stream: aiohttp.ClientWebSocketResponse, output: Output) -> Mapping[str, Any] | None:
    """The status of the command once it has ended; None if the connection ended first."""
    status: Mapping[str, Any] | None = None
    async for message in stream:
        if message.type is not aiohttp.WSMsgType.BINARY:
            break  # the connection was closed, or the message is invalid
        channel, data = message.data[0], message.data[1:]
        if channel == _STATUS and data:
            status = json.loads(data)
        elif channel in {_OUT, _ERR}:
            output.add(data, error=channel == _ERR)
    return status


def _code(status: Mapping[str, Any], pod: str) -> int:
    """The exit status of a command. Raises `ProviderError` if it is missing."""
    if status.get("status") == "Success":
        return 0
    for cause in (status.get("details") or {}).get("causes") or []:
        if cause.get("reason") == "ExitCode":
            return int(cause["message"])
    reason = str(status.get("message") or status.get("reason"))
    remedy = "; the kubelet of its node does not respond: check the node" if _NO_KUBELET.search(reason) else ""
    message = f"kubernetes: no command can be run in {pod}: {reason}{remedy}"
    raise ProviderError(ProviderFault.TRANSIENT, message)
