"""Runs a session of Claude Code for the worker that started this process."""

import asyncio
from typing import TYPE_CHECKING, Final

from sandherd_drivers.wire import Begin, Interrupt, Message, Wire, run

if TYPE_CHECKING:
    from sandherd_drivers.claude.session import ClaudeSession

_COMMAND_SECONDS: Final = 2.0
"""How long commands received before the end may still take, in seconds."""


async def main(wire: Wire) -> None:
    """Run until the worker sends stop, or the agent has ended."""
    try:
        from sandherd_drivers.claude.session import ClaudeSession
    except ImportError as error:
        wire.report_result(error_type="start", error=f"no Claude Agent SDK in this toolchain: {error}", turns=0)
        return
    session = ClaudeSession(wire)
    executing = asyncio.create_task(_execute_commands(wire, session))
    endings = [asyncio.create_task(event.wait()) for event in (session.ended, wire.stopping)]
    await asyncio.wait({executing, *endings}, return_when=asyncio.FIRST_COMPLETED)
    if wire.stopping.is_set():
        await asyncio.wait({executing}, timeout=wire.shutdown_timeout(_COMMAND_SECONDS))
    executing.cancel()
    await asyncio.wait({executing}, timeout=wire.shutdown_timeout(_COMMAND_SECONDS))
    await session.close()
    if executing.done() and not executing.cancelled():
        executing.result()


async def _execute_commands(wire: Wire, session: "ClaudeSession") -> None:
    """Execute the worker's commands in order, until stop."""
    async for command in wire.commands():
        match command:
            case Begin():
                await session.open(command)
            case Message():
                await session.deliver(command)
            case Interrupt():
                await session.interrupt()


if __name__ == "__main__":
    run(main)
