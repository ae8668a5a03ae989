"""Which subordinate ids a user has, and what its namespace maps. Invariant: no map has the user's uid as another's."""

import os
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes.directory_removal import remove_tree
from spawner.runtimes.sandbox_users import SandboxUsers, change_owner, collision
from spawner.runtimes.subordinate_ids import (
    MIN_IDS,
    NoSubordinateError,
    SubordinateRanges,
    SubordinateUser,
    find_ranges,
    sandbox_uids_of,
)

JOE = SubordinateUser("joe", 1000, 1000, Path("/home/joe"))


def etc(folder: Path, uids: str, gids: str) -> Path:
    (folder / "subuid").write_text(uids)
    (folder / "subgid").write_text(gids)
    return folder


@pytest.mark.parametrize("who", ["joe", "1000"])
def test_largest_range_of_each_file_is_used(tmp_path: Path, who: str) -> None:
    """Entries by name or uid are found among others and invalid lines; the length is the shorter of both."""
    uids = f"ann:100000:65536\n\n# nothing\n{who}:200000:1000\n{who}:300000:65536\njoe:x:y\n"
    found = find_ranges(JOE, etc(tmp_path, uids, f"{who}:500000:2000"))
    assert found == SubordinateRanges(range(300_000, 302_000), range(500_000, 502_000))


@pytest.mark.parametrize(
    ("uids", "gids", "words"),
    [
        ("ann:100000:65536\n", "joe:1:65536", "joe has no range in"),
        ("joe:100000:65536\n", "", "subgid"),
        (f"joe:100000:{MIN_IDS - 1}\n", "joe:100000:65536\n", "1,024 are needed"),
    ],
)
def test_missing_subordinate_range_is_reported(tmp_path: Path, uids: str, gids: str, words: str) -> None:
    """A missing range, a range in one of the files only and a small one are errors."""
    with pytest.raises(NoSubordinateError, match=words):
        find_ranges(JOE, etc(tmp_path, uids, gids))
    with pytest.raises(NoSubordinateError):
        find_ranges(JOE, tmp_path / "none")


def test_user_maps_to_itself_and_root_to_a_subordinate() -> None:
    """Ids inside equal those of the host; a sandbox's gid has the number of its uid."""
    ranges = SubordinateRanges(range(300_000, 302_000), range(500_000, 502_000))
    assert ranges.uid_map(JOE) == [1000, 1000, 1, 0, 300_000, 1, 300_001, 300_001, 1_999]
    assert ranges.gid_map(JOE) == [1000, 1000, 1, 0, 500_000, 1, 300_001, 500_001, 1_999]
    assert ranges.sandboxes == range(300_001, 302_000)


@pytest.mark.parametrize(
    ("uid_map", "found"),
    [
        ("1000 1000 1\n 0 300000 1\n 300001 300001 1999\n", range(300_001, 302_000)),
        ("0 0 4294967295\n", None),
        ("0 1000 1\n1 300000 65536\n", None),
        ("1001 1001 1\n0 300000 1\n300001 300001 1999\n", None),
        ("", None),
    ],
    ids=["ours", "the host's", "a container's", "another user's", "none"],
)
def test_own_user_namespace_is_recognised_by_its_map(uid_map: str, found: range | None) -> None:
    """Only such a namespace is joined."""
    assert sandbox_uids_of(uid_map, 1000) == found


def test_ids_shared_with_another_user_are_refused(tmp_path: Path) -> None:
    """The user's own entry does not count; the error names what to change."""
    users = SandboxUsers(300_001, 1_999, tmp_path, subordinate_names=JOE.names)
    map_of_joe = tmp_path / "self"
    map_of_joe.mkdir()
    for name in ("uid_map", "gid_map"):
        (map_of_joe / name).write_text("1000 1000 1\n300001 300001 1999\n")
    assert collision(users, etc(tmp_path, "joe:300000:2000\n", "1000:300000:2000\n"), tmp_path) is None
    reason = collision(users, etc(tmp_path, "joe:300000:2000\nann:301999:1\n", ""), tmp_path)
    assert reason is not None
    assert "ann" in reason
    assert "give joe ids in /etc/subuid and /etc/subgid" in reason


def test_owner_of_a_tree_of_any_depth_is_changed(tmp_path: Path) -> None:
    """A tree deeper than a path may be long, and than Python recurses, is visited completely."""
    top, seen = tmp_path / "top", list[str]()
    top.mkdir()
    (top / "link").symlink_to("/nowhere")
    here = os.open(top, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("deep", dir_fd=here)
        inner = os.open("deep", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("last", os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=here))
    os.close(here)
    real = os.chown

    def chown(name: Any, *ids: int, **how: Any) -> None:
        seen.append(str(name))
        real(name, *ids, **how)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "chown", chown)
        change_owner(top, os.getuid(), os.getgid())
    remove_tree(top)
    assert (len(seen), seen[-1]) == (1_503, str(top))
    assert {"link", "last"} <= set(seen)
