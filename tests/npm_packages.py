"""npm packages for tests: installed from a lock file once for all test processes, and stored in `build`.

`python -m tests.npm_packages` installs all of them, as `make test` does beside its first steps.
"""

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "subscribe"
WORKER = ROOT / "examples" / "worker"
VALIDATORS = ROOT / "tests" / "contracts" / "validators"
FORGE_DOCUMENTS = ROOT / "tests" / "doubles" / "forges" / "forge-documents"
S3 = ROOT / "tests" / "engines" / "s3"
_SHOWN = 500
"""The number of characters that are shown of the end of npm's errors."""
_LOCKED = ("package.json", "package-lock.json")


def node_with(source: Path) -> tuple[str, Path]:
    """The Node.js program, and the folder with the packages of a lock file and with the programs (`*.mjs`) beside it.

    Without Node.js the test fails with a message of one line.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.fail(f"node and npm are not on PATH: {source.name} can't be run here", pytrace=False)
    folder = ROOT / "build" / source.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        if not _is_installed(source, folder):
            _install(npm, source, folder)
        for program in source.glob("*.mjs"):
            _copy(program, folder)
    return node, folder


def _is_installed(source: Path, folder: Path) -> bool:
    """Whether exactly the packages of the lock file are installed."""
    same = all((folder / name).is_file() and _text(folder, name) == _text(source, name) for name in _LOCKED)
    return same and (folder / "installed").exists()


def _copy(program: Path, folder: Path) -> None:
    """Copy a program atomically: another process may run it now, and an empty program succeeds without output."""
    beside = folder / f"{program.name}.part"
    shutil.copy(program, beside)
    beside.replace(folder / program.name)


def _install(npm: str, source: Path, folder: Path) -> None:
    (folder / "installed").unlink(missing_ok=True)
    for name in _LOCKED:
        shutil.copy(source / name, folder)
    command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, stdin=subprocess.DEVNULL, timeout=300, text=True
    )
    if done.returncode:
        pytest.fail(f"npm ci for {source.name}: status {done.returncode}: {done.stderr[-_SHOWN:]}", pytrace=False)
    (folder / "installed").touch()


def _text(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")


if __name__ == "__main__":
    for each in (EXAMPLE, WORKER, VALIDATORS, FORGE_DOCUMENTS, S3):
        node_with(each)
