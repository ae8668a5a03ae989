"""A home that another user has prepared, or can change, is refused before anything is written in it."""

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.admin.stack_backup import restore_stack
from sandherd.client.errors import HerdError
from sandherd.safe_home import CREATED, UnsafeHomeError, check_home
from sandherd.stack import down, up
from tests.preloaded_cli import preloaded_sandherd

NOBODY_UID = 65534
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory like /tmp: everyone may create entries, and only their owners may replace them."""
    directory = Path(tempfile.mkdtemp(prefix="prepared-")).resolve()
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def victim(shared: Path) -> Path:
    """The target of other users' links."""
    directory = shared / "victim"
    directory.mkdir(mode=0o755)
    (directory / "f").write_text("precious")
    return directory


def as_unprivileged(script: str, where: Path) -> None:
    """Run a shell script as another user."""
    program = ["setpriv", f"--reuid={NOBODY_UID}", f"--regid={NOBODY_UID}", "--clear-groups", "sh", "-ec", script]
    subprocess.run(program, cwd=where, check=True)


def seen(top: Path) -> dict[str, tuple[int, int]]:
    """The owner and mode of everything in it."""
    return {
        str(path): (path.lstat().st_uid, stat.S_IMODE(path.lstat().st_mode)) for path in (top, *sorted(top.rglob("*")))
    }


def refused(home: Path, *words: str) -> str:
    """Run a command that exits with an error; returns its output."""
    environment = os.environ | {"SANDHERD_HOME": str(home)}
    done = subprocess.run(
        [preloaded_sandherd(), *words], env=environment, capture_output=True, text=True, check=False, umask=0
    )
    assert done.returncode not in {0, 2}, done.stdout
    return " ".join(done.stderr.split())


@root_only
@pytest.mark.parametrize(
    "words",
    [("up", "--no-wait"), ("down",), ("harness", "install", "claude"), ("credentials", "create", "--role=client")],
    ids=" ".join,
)
def test_home_of_another_user_is_refused(shared: Path, victim: Path, words: tuple[str, ...]) -> None:
    """Nothing is written to the home, through its links, or to their targets; the error has path, reason and remedy."""
    links = "".join(f"ln -s {victim} home/{name};" for name in ("identity", "logs", "postgres"))
    as_unprivileged(f"mkdir -m 777 home; {links} mkdir -m 777 home/run home/creds", shared)
    before = seen(shared)
    error = refused(shared / "home", *words)
    assert seen(shared) == before
    assert f"{shared / 'home'}: belongs to user id {NOBODY_UID}" in error
    assert "--home" in error


@root_only
@pytest.mark.parametrize(
    ("script", "part", "reason"),
    [
        ("ln -s ../victim home/logs", "logs", "symbolic link"),
        ("ln -s ../victim home/postgres", "postgres", "symbolic link"),
        ("mkdir -p home/nats/data; chmod 777 home/nats/data", "nats", "belongs to user id"),
        ("mkdir home/identity", "identity", "belongs to user id"),
        ("mkdir home/run; touch home/run/state.json", "run", "belongs to user id"),
        ("touch home/logs0; ln -s ../../victim/f home/open/x", "identity/x", "symbolic link"),
        ("mkdir home/pg/data", "postgres/data", "belongs to user id"),
        ("mkdir home/sandboxes-disks", "sandboxes-disks", "belongs to user id"),
        ("ln -s ../victim home/repositories", "repositories", "symbolic link"),
    ],
)
async def test_part_of_another_user_is_refused(shared: Path, victim: Path, script: str, part: str, reason: str) -> None:
    """A part of another user is refused, also if the home was only open to others for a time."""
    home = shared / "home"
    for directory in (home, home / "open", home / "pg"):
        directory.mkdir()
        directory.chmod(0o777)
    as_unprivileged(script, shared)
    for opened, name in (("open", "identity"), ("pg", "postgres")):
        if not os.path.lexists(home / name):
            (home / opened).rename(home / name)
    with pytest.raises(UnsafeHomeError, match=reason) as found:
        await up(home, wait=False)
    assert found.value.filename == str(home / part)
    assert (victim / "f").read_text() == "precious"
    assert list(victim.iterdir()) == [victim / "f"]


@root_only
async def test_home_behind_what_others_can_replace_is_refused(shared: Path, victim: Path) -> None:
    """A home is refused if another user's link leads to it, or if a directory above it is another user's or open."""
    as_unprivileged(f"ln -s {victim} link; mkdir -m 777 open", shared)
    for home, path in ((shared / "link" / "home", shared / "link"), (shared / "open" / "home", shared / "open")):
        with pytest.raises(UnsafeHomeError) as found:
            await up(home, wait=False)
        assert found.value.filename == str(path)
        assert "--home" in found.value.remedy
        assert not home.exists()


async def test_own_directories_that_are_too_open_are_closed(shared: Path) -> None:
    """`up` works in an earlier version's home, also through its user's link, and closes it to other writers."""
    home = shared / "home"
    for directory in (home, home / "logs", home / "identity" / "root"):
        directory.mkdir(parents=True)
        directory.chmod(0o777)
    (shared / "mine").symlink_to(home)
    (home / "settings.yaml").symlink_to(shared / "elsewhere")
    try:
        await up(shared / "mine")
        wide = [path for path, (_, mode) in seen(home).items() if mode & 0o022 and not Path(path).is_symlink()]
        assert not wide
        check_home(home)  # with all that a running stack has
        assert {entry.name for entry in home.iterdir()} - {"settings.yaml"} <= CREATED
    finally:
        await down(shared / "mine")


@root_only
async def test_restoration_to_a_prepared_home_is_refused(shared: Path, victim: Path) -> None:
    """The restoration is refused before the keys are copied."""
    as_unprivileged(f"mkdir -m 777 home; ln -s {victim} home/identity", shared)
    with pytest.raises(HerdError, match=f"belongs to user id {NOBODY_UID}"):
        await restore_stack(shared / "home", victim, 1)
    assert list(victim.iterdir()) == [victim / "f"]
