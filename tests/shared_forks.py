"""One fork server for the process runtimes of a test process: to load the worker is most of what a short test costs.

What it forks begins in the same state, whichever runtime has requested it.
"""

import sys
from typing import TYPE_CHECKING, Any, Final

from tests.run_reports import SERVERS

if TYPE_CHECKING:
    from spawner.runtimes.fork_server import ForkServer

_USER: Final = "spawner.runtimes.process"
_SHARED: Final[dict[tuple[tuple[str, ...], str], Any]] = {}


def share() -> None:
    """From now on, runtimes of this process share servers, if it has loaded the spawner."""
    if module := sys.modules.get(_USER):
        setattr(module, "ForkServer", _server)  # noqa: B010  # mypy lets no class be assigned


def end() -> None:
    """End the servers."""
    for server in _SHARED.values():
        server.end()
    _SHARED.clear()


def _server(worker: tuple[str, ...], search_path: str) -> "ForkServer":
    """The server of this worker; one that forks code is not shared, as it loads no modules.

    Nor is that of forwarders: they have its network, and some tests have a network of their own.
    """
    from spawner.runtimes.fork_server import ForkServer
    from spawner.runtimes.network import FORWARDER_COMMAND

    class Shared(ForkServer):
        def close(self) -> None:
            """It outlives its runtimes."""

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
