"""The SDK's workspaces, installed over the toolchain that has the SDK itself and the real OpenHands agent server."""

import re
import subprocess
from pathlib import Path

from tests.drivers.toolchains import BUILD, interpreter
from tests.engines.packages import alone

UV = Path(__file__).parents[2] / ".venv" / "bin" / "uv"
_NEEDED = ("docker",)
"""Packages that the workspaces need in addition."""


def agent_server() -> tuple[Path, Path]:
    """`(python, packages)`: an interpreter, and a folder for its PYTHONPATH. They are downloaded once."""
    python = interpreter("openhands")
    with alone("workspaces"):
        folder = BUILD / "workspaces"
        if not (folder / ".fetched").exists():
            version = _version(python)
            wanted = [f"openhands-workspace=={version}", *_NEEDED]
            command = [str(UV), "pip", "install", "-q", "--no-deps", "--python", str(python), "--target", str(folder)]
            subprocess.run([*command, *wanted], check=True, stdin=subprocess.DEVNULL, timeout=600)
            (folder / ".fetched").touch()
    return python, folder


def _version(python: Path) -> str:
    """The version of the installed SDK: all its parts have one version."""
    packages = next(python.parent.parent.glob("lib/python*/site-packages"))
    (found,) = packages.glob("openhands_sdk-*.dist-info")
    match = re.fullmatch(r"openhands_sdk-(.+)\.dist-info", found.name)
    assert match is not None
    return match[1]
