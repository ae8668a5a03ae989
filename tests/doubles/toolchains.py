"""The image of a double's boxes: SDKs of agents, a stand-in for one, the worker, and how a box sees them."""

import io
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sandherd.worker_bundle import WORKER, bundle
from tests.doubles.remote import agent_server

_PYTHON = '#!/bin/sh\nshift 3\nexec python3 -I -S "$(dirname "$0")/../agent_server.py" "$@"\n'
"""Run as `python -P -m openhands.agent_server`, it starts the small agent server of the Runtime API's double."""
_PLACE = "/toolchains"


def laid(folder: Path) -> Path:
    """Put the stand-in into a folder as `sandherd harness install` does."""
    python = folder / "openhands" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(_PYTHON)
    python.chmod(0o755)
    shutil.copy(agent_server.__file__, python.parent.parent)
    return folder


@dataclass
class Contents:
    """The contents of an image beside its operating system."""

    toolchains: Path | None = None
    worker: Path | None = None
    """The worker, as `sandherd image build` puts it there. Without it, the adapter copies it into each box."""

    def shown(self) -> list[str]:
        """Arguments for bubblewrap that show the contents to a box, and set the variable that names the SDKs."""
        arguments = ["--ro-bind", str(self.worker), WORKER] if self.worker else []
        if self.toolchains:
            arguments += ["--ro-bind", str(self.toolchains), _PLACE, "--setenv", "SANDHERD_TOOLCHAINS", _PLACE]
        return arguments


def with_worker(folder: Path) -> Path:
    """Put the worker into a folder as it is in an image."""
    with tarfile.open(fileobj=io.BytesIO(bundle())) as archive:
        archive.extractall(folder, filter="data")
    compiling = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(folder / "lib")]
    subprocess.run(compiling, check=True, capture_output=True)
    return folder
