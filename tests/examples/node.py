"""The Node.js example with what it needs, installed from its lock once for all test processes."""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "subscribe"
BUILD = ROOT / "build" / "subscribe"
_LOCKED = ("package.json", "package-lock.json")


def program() -> list[str]:
    """The command that runs the example. Fails the test, in one line, where there is no Node.js."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail("node and npm are not on PATH: the example for Node.js can't be run here", pytrace=False)
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / ".lock").open("w") as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        if not _is_installed():
            _install(npm)
        shutil.copy(EXAMPLE / "follow.mjs", BUILD)
    return [node, str(BUILD / "follow.mjs")]


def _is_installed() -> bool:
    """Whether exactly what the lock says was installed."""
    same = all((BUILD / name).is_file() and _text(BUILD, name) == _text(EXAMPLE, name) for name in _LOCKED)
    return same and (BUILD / "installed").exists()


def _install(npm: str) -> None:
    (BUILD / "installed").unlink(missing_ok=True)
    for name in _LOCKED:
        shutil.copy(EXAMPLE / name, BUILD)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    subprocess.run(command, cwd=BUILD, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=100)
    (BUILD / "installed").touch()


def _text(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")
