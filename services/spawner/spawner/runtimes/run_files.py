"""The paths of the files of one worker run of the process runtime. No process in the sandbox can access the files."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunFiles:
    """The files of one run of the worker."""

    folder: Path

    @property
    def claim(self) -> Path:
        """The file that identifies the run's shim. Of several shims, the one that creates the file runs the worker."""
        return self.folder / "claim"

    @property
    def exit(self) -> Path:
        """The worker's exit status, written once the worker has ended."""
        return self.folder / "exit"

    @property
    def info(self) -> Path:
        """The ids of the sandbox's namespaces, written by bubblewrap."""
        return self.folder / "info"

    @property
    def network(self) -> Path:
        """The sandbox's network policy, read by its forwarder."""
        return self.folder / "network.json"

    @property
    def network_log(self) -> Path:
        """The log of the sandbox's forwarder: refused connections and errors."""
        return self.folder / "network.log"

    @property
    def gate(self) -> Path:
        """The pipe on which the sandbox waits until its network is ready."""
        return self.folder / "gate"

    @property
    def log(self) -> Path:
        """The worker's standard output and error, up to a size limit."""
        return self.folder / "log"

    @property
    def pipe(self) -> Path:
        """The named pipe to the process that writes the log, outside the sandbox."""
        return self.folder / "pipe"

    @property
    def launch(self) -> Path:
        """The launch file that `launcher` reads."""
        return self.folder / "launch"
