"""Modes of files that the stack, the identity, a backup and the spawner write, whatever the umask."""

import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandherd.bus.identity import Identity
from sandherd.bus.identity.deployment import Deployment
from sandherd.private_files import make_directory, open_log, write_file
from sandherd.stack.home import Home, write_context
from sandherd.stack.rotation import rotate
from spawner.runtimes.layout import Layout

UMASKS = [0o000, 0o022, 0o777]


@pytest.fixture(params=UMASKS, ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """The umask of whoever runs it."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(top: Path) -> dict[str, int]:
    """The mode of everything below a directory, by its path there."""
    return {str(path.relative_to(top)): stat.S_IMODE(path.lstat().st_mode) for path in sorted(top.rglob("*"))}


def test_a_file_has_its_mode_and_so_have_directories_on_the_way(tmp_path: Path, umask: int) -> None:
    """Also parents that were missing, which `mkdir(parents=True, mode=…)` leaves to the umask."""
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


def test_a_file_never_has_a_wider_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that makes a file asks for 0600, not following links, and only where there is none."""
    asked: list[tuple[int, int]] = []
    real = os.open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_CREAT:
            asked.append((flags, mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    before = os.umask(0)
    try:
        write_file(tmp_path / "wide", "text", 0o644)
        os.close(open_log(tmp_path / "log"))
    finally:
        os.umask(before)
    assert asked
    assert all(mode == 0o600 and flags & os.O_EXCL for flags, mode in asked)


def test_a_draft_laid_by_somebody_else_is_not_written_to(tmp_path: Path) -> None:
    """A link under the draft's name is replaced, not followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("untouched")
    (tmp_path / ".secret.new").symlink_to(elsewhere)
    write_file(tmp_path / "secret", "value")
    assert elsewhere.read_text() == "untouched"
    assert not (tmp_path / "secret").is_symlink()


def test_two_that_make_one_directory_both_have_it(tmp_path: Path) -> None:
    """Whoever comes second finds it."""
    makers = [threading.Thread(target=make_directory, args=(tmp_path / "a" / "b" / "c",)) for _ in range(8)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join()
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_file_where_a_directory_belongs_is_refused(tmp_path: Path) -> None:
    """Nothing is written beside it."""
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")


def test_an_identity_and_a_deployment_are_closed(tmp_path: Path, umask: int) -> None:
    """0700 and 0600 but for what the broker's own user reads, which holds nothing secret."""
    Identity(tmp_path / "herd" / "identity").create(1)
    Deployment(tmp_path / "site" / "one").make(["alpha"], 1)
    readable = {"site/one/nats": 0o755, "site/one/nats/nats.conf": 0o644, "site/one/nats/accounts.json": 0o644}
    for path, mode in modes(tmp_path).items():
        wanted = 0o700 if (tmp_path / path).is_dir() else 0o600
        assert mode == readable.get(path, wanted), path


def test_a_home_and_a_sandboxs_place_are_closed(tmp_path: Path, umask: int) -> None:
    """Also logs that were moved aside, and what the spawner writes for a sandbox."""
    home = Home(tmp_path / "deep" / "home")
    home.make()
    write_context(home, {})
    with os.fdopen(open_log(home.logs / "nats.log"), "w") as log:
        log.write("many words")
    rotate(home.logs, most=1)
    place = Layout(home.sandboxes, home.path / "aside").place("sbx-1")
    place.make()
    place.write_secret(place.task, "{}")
    for path, mode in modes(tmp_path).items():
        assert mode == (0o700 if (tmp_path / path).is_dir() else 0o600), path
    assert (home.logs / "nats.log.1").read_text() == "many words"


def test_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Several writers of one file at once: each succeeds, the file is one of the contents, no draft remains."""
    file, contents = tmp_path / "passwd", [f"{number}\n" * 2000 for number in range(32)]
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda content: write_file(file, content), contents))
    assert file.read_text() in contents
    assert list(tmp_path.iterdir()) == [file]
