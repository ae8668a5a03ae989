"""Forwards loopback ports of this machine to ports in a sandbox, until an interrupt or the end of the sandbox."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import sandbox_of
from sandherd.cli.options import Format
from sandherd.cli.render.console import print_line
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_text
from sandherd.contracts.errors import Code
from sandherd.contracts.states import SANDBOX_ENDED

_CHECK_SECONDS: Final = 5.0
"""The interval in seconds at which the state of the sandbox is requested."""
_MAX_PORT: Final = 65_535


@dataclass(frozen=True)
class PortPair:
    """A port of this machine, 0 for any free port, and a port of the sandbox."""

    local: int
    remote: int


def port_pair(text: str) -> PortPair:
    """Parse `REMOTE`, `LOCAL:REMOTE` or `:REMOTE`. Raises `HerdError`."""
    local_text, colon, remote = text.rpartition(":")
    local = local_text or "0" if colon else remote
    if not (_is_port(remote) and (_is_port(local) or local == "0")):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"{text!r} is neither a port nor a pair of ports",
            field="port",
            remedy="write REMOTE, LOCAL:REMOTE, or :REMOTE for any free local port, as in 8080:80",
        )
    return PortPair(int(local), int(remote))


def forward(sandbox: str, pairs: Sequence[str], output: Format) -> Work:
    """A function that forwards ports. An invalid port raises `HerdError` here, before any connection is made."""
    ports = [port_pair(text) for text in pairs]

    async def work(herd: Herd) -> int:
        name = await sandbox_of(herd, sandbox)
        await _check_running(herd, name)
        async with AsyncExitStack() as opened:
            for pair in ports:
                context = herd.forward_port(name, pair.remote, local=pair.local, report=_report)
                _show(name, (await opened.enter_async_context(context)).local, pair.remote, output)
            await _wait_for_end(herd, name)
        print_error(f"{name} has ended")
        return 1

    return work


async def _check_running(herd: Herd, sandbox: str) -> None:
    view = await herd.sandbox(sandbox)
    if view.state in SANDBOX_ENDED:
        raise HerdError.of(Code.CONFLICT, f"{sandbox} has ended", field="sandbox")


async def _wait_for_end(herd: Herd, sandbox: str) -> None:
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        try:
            if (await herd.sandbox(sandbox)).state in SANDBOX_ENDED:
                return
        except HerdError as error:
            if error.problem.code not in {Code.UNAVAILABLE, Code.BUSY}:
                raise


def _show(sandbox: str, local: int, remote: int, output: Format) -> None:
    if output.is_json:
        print_line({"sandbox": sandbox, "local": local, "remote": remote})
    else:
        write_text(f"127.0.0.1:{local} -> {sandbox}:{remote}", flush=True)


def _report(error: HerdError) -> None:
    print_error(error.line)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len(str(_MAX_PORT)) and 0 < int(text) <= _MAX_PORT
