"""What is written down of the server, for whoever asks the sandbox's runtime: where it is, how it stands, its key."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.contracts.serving import ServerState

FILE: Final = "agent-server.json"
"""In the state directory; the spawner reads it there."""
_OWN: Final = 0o600


@dataclass(frozen=True)
class Told:
    """The file, and what never changes in it."""

    path: Path
    kind: str
    key: str

    def write(self, state: ServerState, *, starts: int, port: int | None = None, error: str | None = None) -> None:
        """Write it anew, whole or not at all; only its owner may read it. Raises `OSError`."""
        told = {"kind": self.kind, "state": state, "starts": starts, "port": port, "key": self.key, "error": error}
        fresh = self.path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _OWN)
        with os.fdopen(descriptor, "w") as file:
            json.dump(told, file)
        fresh.replace(self.path)
