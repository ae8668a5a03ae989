"""Modes of files that the stack, the identity, a backup and the spawner write, whatever the umask."""

import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandherd.admin.stack_backup import restore_keys
from sandherd.bus.identity import HerdIdentity
from sandherd.bus.identity.deployment import Deployment
from sandherd.private_files import make_directory, open_log, write_file
from sandherd.stack.home import Home, write_context
from sandherd.stack.log_rotation import rotate
from spawner.runtimes.layout import Layout

UMASKS = [0o000, 0o022, 0o777]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of the user who runs it."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(top: Path) -> dict[str, int]:
    """The mode of everything below a directory, by its path there."""
    return {str(path.relative_to(top)): stat.S_IMODE(path.lstat().st_mode) for path in sorted(top.rglob("*"))}


def test_file_and_new_directories_have_their_modes(tmp_path: Path, umask: int) -> None:
    """Missing parents too, which `mkdir(parents=True, mode=…)` leaves to the umask."""
    write_file(tmp_path / "a" / "b" / "secret", "value")
    write_file(tmp_path / "a" / "b" / "config", "{}", 0o644)
    os.close(open_log(tmp_path / "logs" / "log"))
    make_directory(tmp_path / "open", 0o755)
    assert modes(tmp_path) == {
        "a": 0o700,
        "a/b": 0o700,
        "a/b/secret": 0o600,
        "a/b/config": 0o644,
        "logs": 0o700,
        "logs/log": 0o600,
        "open": 0o755,
    }


def test_file_never_has_a_wider_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every creating call requests 0600, without following links, and only for a new file."""
    requested = recorded_creations(monkeypatch)
    before = os.umask(0)
    try:
        write_file(tmp_path / "wide", "text", 0o644)
        os.close(open_log(tmp_path / "log"))
    finally:
        os.umask(before)
    assert requested
    assert all(mode == 0o600 and flags & os.O_EXCL for flags, mode in requested)


def recorded_creations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The flags and modes of the calls of `os.open` that create a file."""
    requested: list[tuple[int, int]] = []
    real = os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            requested.append((flags, mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    return requested


def test_restored_keys_are_private(tmp_path: Path, umask: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At no time are they wider, nor are the directories that are created for the home, whatever the backup's modes."""
    backup, home = tmp_path / "backup", tmp_path / "deep" / "home"
    for name in ("identity/root/operator.seed", "creds/alpha.creds"):
        write_file(backup / name, name, 0o644)
        (backup / name).parent.chmod(0o755)
    requested = recorded_creations(monkeypatch)
    restore_keys(home, backup)
    assert [mode for _, mode in requested] == [0o600, 0o600]
    assert modes(tmp_path / "deep") == {
        "home": 0o700,
        "home/creds": 0o700,
        "home/creds/alpha.creds": 0o600,
        "home/identity": 0o700,
        "home/identity/root": 0o700,
        "home/identity/root/operator.seed": 0o600,
    }
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert (home / "creds" / "alpha.creds").read_text() == "creds/alpha.creds"


def test_foreign_draft_is_not_written_to(tmp_path: Path) -> None:
    """A link under the draft's name is replaced, not followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / ".secret.new").symlink_to(elsewhere)
    write_file(tmp_path / "secret", "value")
    assert elsewhere.read_text() == "untouched"
    assert not (tmp_path / "secret").is_symlink()


def test_concurrent_creations_of_a_directory_succeed(tmp_path: Path) -> None:
    """The later ones find it."""
    makers = [threading.Thread(target=make_directory, args=(tmp_path / "a" / "b" / "c",)) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_file_in_the_place_of_a_directory_is_refused(tmp_path: Path) -> None:
    """No file is written beside it."""
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")


def test_identity_and_deployment_are_private(tmp_path: Path, umask: int) -> None:
    """Modes are 0700 and 0600 except for the files of the broker's own user, which contain no secret."""
    HerdIdentity(tmp_path / "herd" / "identity").create(1)
    Deployment(tmp_path / "site" / "one").make(["alpha"], 1)
    broker = {f"site/one/nats/{name}": 0o644 for name in ("nats.conf", "accounts.json", "values.json")}
    readable = {"site/one/nats": 0o755, **broker}
    for path, mode in modes(tmp_path).items():
        wanted = 0o700 if (tmp_path / path).is_dir() else 0o600
        assert mode == readable.get(path, wanted), path


def test_home_and_sandbox_directory_are_private(tmp_path: Path, umask: int) -> None:
    """Rotated logs, and the spawner's files for a sandbox, are included."""
    home = Home(tmp_path / "deep" / "home")
    home.make()
    write_context(home, {})
    with os.fdopen(open_log(home.logs / "nats.log"), "w") as log:
        log.write("many words")
    rotate(home.logs, max_bytes=1)
    place = Layout(home.sandboxes, home.path / "aside").directory("sbx-1")
    place.make()
    place.write_secret(place.task, "{}")
    for path, mode in modes(tmp_path).items():
        assert mode == (0o700 if (tmp_path / path).is_dir() else 0o600), path
    assert (home.logs / "nats.log.1").read_text() == "many words"


def test_concurrent_writers_of_one_file_succeed(tmp_path: Path) -> None:
    """The file is one of the contents, and no draft remains."""
    file, contents = tmp_path / "passwd", [f"{number}\n" * 2000 for number in range(32)]
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda content: write_file(file, content), contents))
    assert file.read_text() in contents
    assert list(tmp_path.iterdir()) == [file]
