"""One fork server for the process runtimes of a test process: loading the worker takes most of a short test's time.

Every fork begins in the same state, whichever runtime has requested it.
"""

import sys
from typing import TYPE_CHECKING, Any, Final

from tests.run_reports import SERVERS

if TYPE_CHECKING:
    from spawner.runtimes.fork_server import ForkServer

_USER: Final = "spawner.runtimes.process"
_SHARED: Final[dict[tuple[tuple[str, ...], str], Any]] = {}


def share() -> None:
    """Make the runtimes of this process share their servers, if it has loaded the spawner."""
    if module := sys.modules.get(_USER):
        setattr(module, "ForkServer", _server)  # noqa: B010  # mypy lets no class be assigned


def end() -> None:
    """End the shared servers."""
    for server in _SHARED.values():
        server.end()
    _SHARED.clear()


def _server(worker: tuple[str, ...], search_path: str) -> "ForkServer":
    """The shared server of this worker. A server that forks given code is not shared, as it loads no modules.

    The server of forwarders is not shared either: it is in their network, and some tests have their own network.
    """
    from spawner.runtimes.fork_server import ForkServer
    from spawner.runtimes.network import FORWARDER_COMMAND

    class Shared(ForkServer):
        def close(self) -> None:
            """Do nothing: the server outlives its runtimes."""

        def end(self) -> None:
            super().close()

        def _start(self) -> None:
            super()._start()
            if self.pid:
                SERVERS.add(self.pid)

    if "-m" not in worker or worker == FORWARDER_COMMAND:
        return ForkServer(worker, search_path)
    found: ForkServer | None = _SHARED.get((worker, search_path))
    if found is None or not found.usable:
        found = _SHARED[worker, search_path] = Shared(worker, search_path)
    return found
