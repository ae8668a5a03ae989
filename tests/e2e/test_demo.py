"""The demo: one real task from submission to history, and a status that tells the truth."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo.py"

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture
def home() -> Iterator[Path]:
    """A stack home that the database's user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="demo-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def run_demo(home: Path, agent: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"DEMO_HOME": str(home)} | ({"DEMO_AGENT": str(agent)} if agent else {})
    return subprocess.run(
        [sys.executable, str(DEMO)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280
    )


def test_the_demo_does_what_it_says(home: Path) -> None:
    """It ends with status 0, and shows the result, both edits, and what it took."""
    done = run_demo(home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "C(50, 25) = 126410606437752, checked" in done.stdout
    assert "created binomial.py" in done.stdout
    assert "modified binomial.py" in done.stdout
    assert "submit → agent.started" in done.stdout
    # A command costs its start: what the demo wants to know for itself, it asks without any.
    assert done.stdout.count("$ sandherd ") == 7
    assert "Where the time went" in done.stdout


def test_the_demo_fails_when_the_work_was_not_done(home: Path) -> None:
    """An agent that does nothing makes the demo end with status 1, and the stack is ended all the same."""
    idler = home / "idler.sh"
    idler.write_text("exit 0\n")
    done = run_demo(home, idler)
    assert done.returncode == 1
    assert "failed:" in done.stdout
    assert not list((home / "run").glob("*.pid"))
