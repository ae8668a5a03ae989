"""Host uids for sandboxes. Invariant: a uid belongs to one sandbox of the host for as long as that sandbox is there."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spawner.runtimes.layout import SandboxDirectory
from spawner.runtimes.sandbox_users import NoUserError, SandboxUsers, collision

FIRST = 1_900_000_000


def place(folder: Path, name: str) -> SandboxDirectory:
    made = SandboxDirectory(folder / name)
    made.make()
    return made


def test_uid_is_never_assigned_twice(tmp_path: Path) -> None:
    """Sandboxes of two spawners that allocate concurrently have different uids, until the range is used up."""
    spawners = [SandboxUsers(FIRST, 24, tmp_path / "host" / "uids") for _ in range(2)]
    places = [place(tmp_path / f"herd{number % 2}", f"sbx-{number}") for number in range(24)]
    with ThreadPoolExecutor(8) as threads:
        uids = list(threads.map(lambda pair: spawners[pair[0] % 2].claim(pair[1]), enumerate(places)))
    assert len(set(uids)) == 24
    with pytest.raises(NoUserError, match="SANDHERD_SANDBOX_UID_COUNT"):
        spawners[0].claim(place(tmp_path / "herd0", "sbx-more"))
    spawners[0].release(places[0])
    assert spawners[1].claim(place(tmp_path / "herd1", "sbx-next")) == uids[0]


def test_sandbox_keeps_its_uid(tmp_path: Path) -> None:
    """The uid survives restarts of its spawner, and a reboot, which clears reservations, if it is still free."""
    users = SandboxUsers(FIRST, 1000, tmp_path / "host" / "uids")
    mine = place(tmp_path, "sbx-mine")
    uid = users.claim(mine)
    assert SandboxUsers(FIRST, 1000, users.folder).claim(mine) == uid
    (users.folder / str(uid)).unlink()
    assert users.claim(mine) == uid


def test_uid_reused_after_a_reboot_is_not_shared(tmp_path: Path) -> None:
    """If another sandbox has reserved the uid after a reboot, its former sandbox gets another uid."""
    users = SandboxUsers(FIRST, 1000, tmp_path / "host" / "uids")
    mine, other = place(tmp_path, "sbx-mine"), place(tmp_path, "sbx-other")
    uid = users.claim(mine)
    (users.folder / str(uid)).write_text(str(other.folder))
    other.record_user(uid)
    assert users.claim(mine) != uid
    users.release(mine)
    assert (users.folder / str(uid)).read_text() == str(other.folder)


def test_reservation_of_removed_sandbox_is_reused_unless_its_uid_runs(tmp_path: Path) -> None:
    """A reservation whose sandbox directory was removed externally is reused, unless a process has its uid."""
    uid = os.getuid() or FIRST
    users = SandboxUsers(uid, 1, tmp_path / "host" / "uids")
    users.folder.mkdir(parents=True, mode=0o700)
    (users.folder / str(uid)).write_text(str(tmp_path / "gone"))
    mine = place(tmp_path, "sbx-mine")
    if uid == os.getuid():
        with pytest.raises(NoUserError):
            users.claim(mine)
    else:
        assert users.claim(mine) == uid


def test_stale_reservations_are_removed(tmp_path: Path) -> None:
    """Reservations of a deleted home are removed; not those of live sandboxes, nor of a uid that has a process."""
    running = os.getuid()
    users = SandboxUsers(FIRST, 1000, tmp_path / "host" / "uids")
    live, deleted = place(tmp_path / "live", "sbx-1"), place(tmp_path / "deleted", "sbx-2")
    stored, stale = users.claim(live), users.claim(deleted)
    (users.folder / str(running)).write_text(str(tmp_path / "deleted" / "sbx-3"))
    shutil.rmtree(tmp_path / "deleted")
    assert users.remove_stale() == [stale]
    assert {entry.name for entry in users.folder.iterdir()} == {str(stored), str(running)}
    assert users.remove_stale() == []


def test_writable_folder_of_reservations_is_refused(tmp_path: Path) -> None:
    """In such a folder another user could give a sandbox the uid of another sandbox."""
    users = SandboxUsers(FIRST, 10, tmp_path / "host" / "uids")
    users.folder.mkdir(parents=True)
    users.folder.chmod(0o777)
    with pytest.raises(NoUserError, match="writable by others"):
        users.claim(place(tmp_path, "sbx-mine"))


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("passwd", "joe:x:1900000005:100::/home/joe:/bin/sh"),
        ("group", "staff:x:1900000009:"),
        ("subuid", "joe:1899990000:65536"),
        ("subgid", "1000:1900000009:1"),
    ],
)
def test_range_with_foreign_ids_is_refused(tmp_path: Path, file: str, line: str) -> None:
    """Ids of accounts, groups and subordinate ranges are refused; the text names both settings."""
    (tmp_path / file).write_text(f"root:x:0:0::/root:/bin/sh\n{line}\n" if file == "passwd" else f"{line}\n")
    reason = collision(SandboxUsers(FIRST, 10, tmp_path), etc=tmp_path)
    assert reason is not None
    assert "SANDHERD_SANDBOX_UID_FIRST" in reason
    assert file in reason


def test_uid_range_unmapped_in_this_container_is_refused(tmp_path: Path) -> None:
    """A spawner that is root of a user namespace has the mapped ids, and no others."""
    (tmp_path / "self").mkdir()
    for name in ("uid_map", "gid_map"):
        (tmp_path / "self" / name).write_text("         0     100000      65536\n")
    assert collision(SandboxUsers(FIRST, 10, tmp_path), etc=tmp_path / "none", proc=tmp_path) is not None
    assert collision(SandboxUsers(20_000, 10_000, tmp_path), etc=tmp_path / "none", proc=tmp_path) is None
