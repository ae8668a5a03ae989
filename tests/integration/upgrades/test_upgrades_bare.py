"""docs/upgrade.md on one machine: a herd that the last release made goes on with today's code."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.releases.archived import ROOT

PAGE = (ROOT / "docs" / "upgrade.md").read_text(encoding="utf-8")
NEW = Path(sys.executable).parent
TAKEN_FROM_US = "git pull && make install"


@pytest.fixture
def home() -> Iterator[Path]:
    """A herd's home; not `tmp_path`, whose parents another pytest closes to the user that Postgres runs as."""
    directory = Path(tempfile.mkdtemp(prefix="home-"))
    yield directory
    run(NEW, directory, "sandherd down")
    shutil.rmtree(directory, ignore_errors=True)


def run(programs: Path, home: Path, script: str) -> "subprocess.CompletedProcess[str]":
    """A line, with the programs of a version."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
    told = plain | {"SANDHERD_HOME": str(home), "PATH": f"{programs}:{NEW}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", script]
    return subprocess.run(command, env=told, cwd=home, capture_output=True, text=True, check=False, timeout=120)


def said(done: "subprocess.CompletedProcess[str]") -> str:
    """What it printed; it went well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def steps(title: str) -> list[str]:
    """The commands of a section."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\$ (.*)$", section, re.MULTILINE)


@pytest.mark.timeout(240)
def test_a_herd_of_the_last_release_goes_on_with_todays_code(old: Path, home: Path) -> None:
    """What the page says is done: keys, streams and history of before are there, and work goes on."""
    down, install, up, doctor, after = steps("On this machine")
    assert (down, install) == ("sandherd down", TAKEN_FROM_US)
    said(run(old.parent, home, "sandherd up && sandherd run 'say it' -- echo before"))
    said(run(old.parent, home, down))
    said(run(NEW, home, up))
    said(run(NEW, home, "sandherd run 'say it' -- echo behind"))
    tasks = json.loads(said(run(NEW, home, "sandherd tasks list --past -o json")))["tasks"]
    assert [task["state"] for task in tasks] == ["completed", "completed"]
    events = said(run(NEW, home, f"sandherd events {tasks[1]['task']}"))
    assert "task.completed" in events
    assert "up to date" in said(run(NEW, home, after))
    said(run(NEW, home, doctor))
