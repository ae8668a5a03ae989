"""The SDKs of agents in the image of a double's boxes: a stand-in for one, and how a box gets to see it."""

import shutil
from pathlib import Path

from tests.doubles.remote import agent_server

_PYTHON = '#!/bin/sh\nshift 3\nexec python3 -I -S "$(dirname "$0")/../agent_server.py" "$@"\n'
"""Run as `python -P -m openhands.agent_server`, it is the small agent server of the Runtime API's double."""
_PLACE = "/toolchains"


def laid(folder: Path) -> Path:
    """The stand-in, in a folder as `sandherd harness install` makes one."""
    python = folder / "openhands" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(_PYTHON)
    python.chmod(0o755)
    shutil.copy(agent_server.__file__, python.parent.parent)
    return folder


def shown(folder: Path | None) -> list[str]:
    """What bubblewrap is told, so that a box has them where its image's variable says."""
    return ["--ro-bind", str(folder), _PLACE, "--setenv", "SANDHERD_TOOLCHAINS", _PLACE] if folder else []
