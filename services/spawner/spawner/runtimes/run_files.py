"""The files of one run of a worker of the process runtime, which nothing in the sandbox can reach."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """The files of one run of the worker."""

    folder: Path

    @property
    def claim(self) -> Path:
        """Who runs it; whoever creates this file first does."""
        return self.folder / "claim"

    @property
    def exit(self) -> Path:
        """Its exit status, once it has ended."""
        return self.folder / "exit"

    @property
    def info(self) -> Path:
        """What bubblewrap says of the namespaces."""
        return self.folder / "info"

    @property
    def network(self) -> Path:
        """What the sandbox may reach; its forwarder reads it."""
        return self.folder / "network.json"

    @property
    def gate(self) -> Path:
        """The pipe at which the sandbox waits until its network is there."""
        return self.folder / "gate"

    @property
    def log(self) -> Path:
        """What the worker writes to its standard output and error, up to a size limit."""
        return self.folder / "log"

    @property
    def pipe(self) -> Path:
        """The named pipe to the process that writes the log, which is outside of the sandbox."""
        return self.folder / "pipe"

    @property
    def launch(self) -> Path:
        """What `launcher` reads."""
        return self.folder / "launch"
