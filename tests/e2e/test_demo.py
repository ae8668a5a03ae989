"""The demo runs a real task from submission to history, and its exit status is right."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.test_umask import check_modes
from tests.engines.ordinary_user import OrdinaryUser, ids_of
from tests.preloaded_cli import preloaded

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@pytest.fixture
def home() -> Iterator[Path]:
    """A stack home that the database's user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="demo-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


FORKED = "import runpy, sys; sys.executable = sys.argv.pop(1); runpy.run_path(sys.argv.pop(1), run_name='__main__')"
"""The demo, whose commands are beside another `python`."""


def beside(program: Path, folder: Path) -> Path:
    """The `python` in a new folder, beside which `sandherd` is this program."""
    folder.mkdir()
    (folder / "sandherd").symlink_to(program)
    (folder / "python").symlink_to(sys.executable)
    return folder / "python"


def run_demo(
    home: Path, agent: Path | None = None, python: Path | None = None, umask: int = -1
) -> subprocess.CompletedProcess[str]:
    """Run the demo. `python` has another `sandherd` beside it; `umask` differs from this process's."""
    forked = ["-c", FORKED, str(python)] if python else []
    environment = os.environ | {"DEMO_HOME": str(home)} | ({"DEMO_AGENT": str(agent)} if agent else {})
    return subprocess.run(
        [sys.executable, *forked, str(DEMO)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        umask=umask,
    )


def shows_what_was_done(done: "subprocess.CompletedProcess[str]") -> None:
    """Check that the status is 0, and that the result, the edit, the branch, and the usage are shown."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert "C(50, 25) = 126410606437752, checked" in done.stdout
    assert "modified binomial.py" in done.stdout
    assert "bugfix/fix-the-failing-test" in done.stdout
    assert "+        result = result * (n - i) // (i + 1)" in done.stdout
    assert "submit → agent.started" in done.stdout
    # Each command costs a start: the demo gets its own data without commands.
    assert done.stdout.count("$ sandherd ") == 8
    assert "Where the time went" in done.stdout
    assert re.search(
        r"The page of the session is http://127\.0\.0\.1:\d+/sandboxes/(sbx-\w+) while .*open \1\n",
        done.stdout,
        re.DOTALL,
    )


def test_demo_shows_its_results(home: Path) -> None:
    """The status is 0; the result, the branch and the cost are shown."""
    shows_what_was_done(run_demo(home))


@pytest.fixture
def ordinary_user() -> Iterator[Callable[[range | None], OrdinaryUser]]:
    """A function that creates an ordinary user with these subordinate ids, or without any."""
    made: list[OrdinaryUser] = []

    def make(ids: range | None) -> OrdinaryUser:
        folder = Path(tempfile.mkdtemp(prefix="demo-joe-"))
        folder.chmod(0o755)
        made.append(OrdinaryUser(folder, 2, ids))
        return made[-1]

    yield make
    for user in made:
        user.remove()


@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can be an ordinary user for a while")
@pytest.mark.parametrize("ids", [ids_of(2), None], ids=["subordinate ids", "none"])
def test_ordinary_user_runs_the_demo(ordinary_user: Callable[[range | None], OrdinaryUser], ids: range | None) -> None:
    """With and without subordinate ids nothing has to be installed or configured, and no process is left."""
    user = ordinary_user(ids)
    home, programs = user.home / "demo", user.folder / "c"
    programs.mkdir()
    os.chown(programs, user.uid, user.uid)
    with preloaded(programs, user.line, user.environment()) as (program, server):
        python = beside(program, user.folder / "beside")
        done = user.run("env", f"DEMO_HOME={home}", sys.executable, "-c", FORKED, str(python), str(DEMO))
        shows_what_was_done(done)
        assert user.processes().keys() <= {server}
    owners = {path.lstat().st_uid for path in [home, *home.rglob("*")]}
    assert owners == {user.uid}


def test_make_demo_runs_the_demo() -> None:
    """`make demo`, which README names, runs the program of these tests."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    planned = subprocess.run(["make", "-n", "demo"], cwd=ROOT, env=environ, capture_output=True, text=True, check=True)
    assert planned.stdout.splitlines()[-1].split()[-2:] == [".venv/bin/python", str(DEMO.relative_to(ROOT))]


def test_demo_fails_when_the_work_was_not_done(home: Path, sandherd_program: Path) -> None:
    """If the agent does nothing, the demo exits with status 1, and the stack is ended nevertheless.

    It runs with the widest umask: no other user can read or list the stack's files.
    """
    home.chmod(0o755)  # so that the modes of the stack's home protect it
    idler = home / "idler.sh"
    idler.write_text("exit 0\n")
    stack = home / "deep" / "home"
    done = run_demo(stack, idler, beside(sandherd_program, home / "programs"), umask=0)
    assert done.returncode == 1
    assert "failed:" in done.stdout
    assert not list((stack / "run").glob("*.pid"))
    check_modes(stack)
