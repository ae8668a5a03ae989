"""The real OpenHands agent server and the SDK's workspaces, laid over the toolchain that has the SDK itself."""

import re
import subprocess
from pathlib import Path

from tests.drivers.toolchains import BUILD, interpreter
from tests.engines.packages import alone

UV = Path(__file__).parents[2] / ".venv" / "bin" / "uv"
_OWN = ("openhands-agent-server", "openhands-workspace")
_NEEDED = ("docker", "fastapi", "aiosqlite", "alembic", "sqlalchemy", "mako", "markupsafe", "wsproto", "greenlet")
_FURTHER = ("annotated-doc", "typing-inspection")


def agent_server() -> tuple[Path, Path]:
    """`(python, packages)`: an interpreter, and a folder for its PYTHONPATH. Fetched once."""
    python = interpreter("openhands")
    with alone("agent-server"):
        folder = BUILD / "agent-server"
        if not (folder / ".fetched").exists():
            version = _version(python)
            own = [f"{name}=={version}" for name in _OWN]
            command = [str(UV), "pip", "install", "-q", "--no-deps", "--python", str(python), "--target", str(folder)]
            subprocess.run([*command, *own, *_NEEDED, *_FURTHER], check=True, stdin=subprocess.DEVNULL, timeout=600)
            (folder / ".fetched").touch()
    return python, folder


def _version(python: Path) -> str:
    """Of the SDK that is there: all its parts have one version."""
    packages = next(python.parent.parent.glob("lib/python*/site-packages"))
    (found,) = packages.glob("openhands_sdk-*.dist-info")
    match = re.fullmatch(r"openhands_sdk-(.+)\.dist-info", found.name)
    assert match is not None
    return match[1]
