"""`python -P -m sandherd_drivers.acp`."""

import logging
import sys
from types import TracebackType
from typing import Final

from sandherd_drivers.wire import Wire, run

_FORMAT: Final = "acp: %(message)s"


class OneLine(logging.Formatter):
    """What the library logs of an agent that breaks the protocol, without the stack of the library."""

    def formatException(  # noqa: N802  # logging's name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """What was raised, in a line."""
        return f"  {ei[0].__name__ if ei[0] else ''}: {str(ei[1]).partition(chr(10))[0]}"


async def main(wire: Wire) -> None:
    """One conversation."""
    try:
        from sandherd_drivers.acp.conversation import Conversation
    except ImportError as error:
        wire.result(error_type="start", error=f"this toolchain has no Agent Client Protocol: {error}", turns=0)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    await Conversation(wire).serve()


if __name__ == "__main__":
    run(main)
