"""One stack for all tests of real agents with all services."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.drivers.toolchains import UV, interpreter
from tests.e2e.line import Line
from tests.models.ports import DECLARED, endpoints


@pytest.fixture(scope="package")
def line_home(sandherd_program: Path) -> Iterator[Path]:
    """The home of a running stack, with the installed SDKs except acp's."""
    home = Path(tempfile.mkdtemp(prefix="agents-"))
    (home / "toolchains").mkdir()
    for kind in ("claude", "openhands"):
        (home / "toolchains" / kind).symlink_to(interpreter(kind).parent.parent)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
    environment[DECLARED] = endpoints()
    command = [str(sandherd_program), "--home", str(home)]
    try:
        subprocess.run([*command, "up"], env=environment, check=True, capture_output=True)
        yield home
    finally:
        subprocess.run([*command, "down"], env=environment, check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
async def line(line_home: Path, sandherd_program: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Line]:
    """The stack, and the command; `make` may have installed uv where only it searches."""
    monkeypatch.setenv("PATH", os.pathsep.join((os.environ["PATH"], str(UV))))
    line = Line(line_home, sandherd_program)
    yield line
    await line.leave()


@pytest.fixture(scope="session", autouse=True)
def _forked_services(sandherd_program: Path) -> None:
    """Make supervisors and services of these tests' stacks forks (`tests/preloaded_cli`)."""
