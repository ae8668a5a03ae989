"""Runs a session of Claude Code for the worker that started this."""

import asyncio
from typing import TYPE_CHECKING, Final

from sandherd_drivers.wire import Begin, Interrupt, Message, Wire, run

if TYPE_CHECKING:
    from sandherd_drivers.claude.session import Session

_OBEYING: Final = 2.0
"""How long what was wanted before the end may still take, in seconds."""


async def main(wire: Wire) -> None:
    """Until the worker wants it to stop, or the agent has ended."""
    try:
        from sandherd_drivers.claude.session import Session
    except ImportError as error:
        wire.result(error_type="start", error=f"this toolchain has no Claude Agent SDK: {error}", turns=0)
        return
    session = Session(wire)
    obeying = asyncio.create_task(_obey(wire, session))
    over = [asyncio.create_task(event.wait()) for event in (session.gone, wire.leaving)]
    await asyncio.wait({obeying, *over}, return_when=asyncio.FIRST_COMPLETED)
    if wire.leaving.is_set():
        await asyncio.wait({obeying}, timeout=wire.within(_OBEYING))
    obeying.cancel()
    await asyncio.wait({obeying}, timeout=wire.within(_OBEYING))
    await session.close()
    if obeying.done() and not obeying.cancelled():
        obeying.result()


async def _obey(wire: Wire, session: "Session") -> None:
    """What the worker says, one after the other, until it says stop."""
    async for command in wire.commands():
        match command:
            case Begin():
                await session.open(command)
            case Message():
                await session.take(command)
            case Interrupt():
                await session.interrupt()


if __name__ == "__main__":
    run(main)
