"""If an ordinary user's subordinate uids can't be used, sandboxes have the user's uid, and the reason is stated.

`tests/e2e/test_subordinate_uids.py` tests hosts on which they are used.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes.sandbox_users import SandboxUsers, refuses_owners
from tests.engines.ordinary_user import ROOT, OrdinaryUser, ids_of

pytestmark = [
    pytest.mark.timeout(1200),
    pytest.mark.skipif(os.getuid() != 0, reason="only root can be an ordinary user for a while"),
]
PROGRAM = Path(__file__).with_name("ordinary_spawner.py")
IDS = ids_of(2)
NO_MAP = "newuidmap: write to uid_map failed: Operation not permitted"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may enter; files that a user has left in it are removed."""
    made = Path(tempfile.mkdtemp(prefix="joe-"))
    made.chmod(0o755)
    yield made
    OrdinaryUser(made, 2).remove()


def spawner(user: OrdinaryUser, *words: str, path: str | None = None) -> Any:
    """The findings of the program: isolation, the uid's owner, gaps, why none is started, and the result of `words`."""
    beside = f"{user.programs}:/usr/sbin:/usr/bin:/sbin:/bin" if path is None else path
    env = ["env", f"PATH={beside}", f"PYTHONPATH={ROOT}"]
    done = user.run(*env, sys.executable, "-P", str(PROGRAM), str(user.home / "herd"), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def broken(folder: Path) -> Path:
    """A folder with the programs, one of which fails."""
    made = folder / "programs"
    made.mkdir()
    for name in ("newuidmap", "newgidmap"):
        (made / name).write_text(f"#!/bin/sh\necho '{NO_MAP}' >&2\nexit 1\n")
        (made / name).chmod(0o755)
    return made


CASES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no range": (lambda folder: spawner(OrdinaryUser(folder, 2, None)), "has no range in /etc/subuid"),
    "small": (lambda folder: spawner(OrdinaryUser(folder, 2, IDS[:100])), "has 100 ids, but 1,024 are needed"),
    "missing": (lambda folder: spawner(OrdinaryUser(folder, 2, IDS), path="/none"), "newuidmap is not installed"),
    "failing": (lambda folder: spawner(OrdinaryUser(folder, 2, IDS, broken(folder))), NO_MAP),
    "refused": (lambda folder: spawner(OrdinaryUser(folder, 2, IDS), "covered"), "can be used as a mount point"),
}


@pytest.mark.parametrize("case", CASES)
def test_missing_range_falls_back_to_the_users_uid_with_the_reason(case: str, folder: Path) -> None:
    """Without a range, bubblewrap isolates sandboxes as before; the gap has the reason, and what the uid exposes."""
    look, words = CASES[case]
    isolation, whose, gaps, refusal, _ = look(folder)
    assert (isolation, whose, refusal) == ("bubblewrap", "spawner", None)
    (gap,) = [gap for gap in gaps if "uid" in gap]
    assert "sandboxes run under the spawner's own uid" in gap
    assert "subordinate uids (/etc/subuid) are not used: " in gap
    assert words in gap


@pytest.mark.parametrize("why", ["no range", "refused"])
def test_sandboxes_with_the_users_uid_stay_managed(why: str, folder: Path) -> None:
    """While a sandbox with the user's uid runs, a spawner manages it; new ones then have subordinate uids."""
    if why == "refused":
        spawner(OrdinaryUser(folder, 2, IDS), "create", "sbx-old", "covered")
    else:
        spawner(OrdinaryUser(folder, 2, None), "create", "sbx-old")
    user = OrdinaryUser(folder, 2, IDS)
    _, whose, gaps, refusal, done = spawner(user, "run", "sbx-old")
    assert (whose, refusal, done) == ("spawner", None, "1000\n")
    assert any("started without subordinate uids still run" in gap for gap in gaps)
    spawner(user, "remove", "sbx-old")
    assert not user.processes()
    assert spawner(user)[1] == "subordinate"


def test_sandboxes_with_subordinate_uid_are_managed_without_the_range(folder: Path) -> None:
    """A sandbox whose range and programs have been removed is still joined, ended, and removed."""
    user = OrdinaryUser(folder, 2, IDS)
    assert spawner(user, "create", "sbx-old")[1] == "subordinate"
    place = user.home / "herd" / "sandboxes" / "sbx-old"
    uid = (place / "work").stat().st_uid
    assert uid in IDS
    without = OrdinaryUser(folder, 2, None)
    assert spawner(without, "run", "sbx-old", path="/none")[1::3] == ["subordinate", "1000\n"]
    spawner(without, "remove", "sbx-old")
    assert not place.exists()
    assert not user.processes()
    assert spawner(without)[1] == "spawner"


def test_file_system_without_owners_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without owners is reported, as some network ones are; a full disk leads to no weaker uid."""
    users = SandboxUsers(IDS.start, 10, tmp_path, subordinate_names=("joe",))
    assert refuses_owners(tmp_path, users) is None
    for number, refuses in ((1, True), (28, False)):

        def chown(*_: Any, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(os, "chown", chown)
            assert bool(refuses_owners(tmp_path, users)) is refuses
