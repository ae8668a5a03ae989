"""The command of a trial sandbox."""

import sys
from pathlib import Path

import pytest

from spawner.runtimes.isolation import SandboxNeeds


@pytest.mark.parametrize(
    ("program", "first"),
    [(sys.executable, sys.executable), ("/opt/python3.12", "/opt/python3.12"), ("/usr/bin/node", "/bin/sh")],
)
def test_worker_in_another_language_is_not_started_as_a_python(program: str, first: str) -> None:
    """It has no Python's options: with them every trial failed, and the runtime refused all sandboxes."""
    needs = SandboxNeeds(Path(program), ("sandherd_worker",), (), None, None)
    assert needs.trial[0] == first
    assert ("import sandherd_worker" in needs.trial) == (first == program)
