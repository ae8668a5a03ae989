"""Runs an agent that supports the Agent Client Protocol: `python -P -m sandherd_drivers.acp`."""

import logging
import sys
from types import TracebackType
from typing import Final

from sandherd_drivers.wire import Wire, run

_LOG_FORMAT: Final = "acp: %(message)s"


class OneLineFormatter(logging.Formatter):
    """Formats the library's log of protocol violations without a stack trace."""

    def formatException(  # noqa: N802  # logging's name
        self, ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]
    ) -> str:
        """The exception on one line."""
        return f"  {ei[0].__name__ if ei[0] else ''}: {str(ei[1]).partition(chr(10))[0]}"


async def main(wire: Wire) -> None:
    """Run one conversation."""
    try:
        from sandherd_drivers.acp.conversation import AcpConversation
    except ImportError as error:
        wire.report_result(error_type="start", error=f"no Agent Client Protocol in this toolchain: {error}", turns=0)
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLineFormatter(_LOG_FORMAT))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    await AcpConversation(wire).serve()


if __name__ == "__main__":
    run(main)
