"""The subordinate uids and gids of the spawner's user (subuid(5), subgid(5)), and how a user namespace maps them.

In the namespace, every id equals its id on the host, with two exceptions. The id 0 is the first subordinate id, because
devpts requires an id 0. If a user's subordinate gids differ from the uids, each sandbox's gid in the namespace equals
its uid. The user's own uid is never mapped to 0, so that no process can become the user by becoming root.
"""

import os
import pwd
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

MIN_IDS: Final = 1_024
"""The minimum number of subordinate ids of a user."""
_FIELD_COUNT: Final = 3
"""The number of fields of a line in `/etc/subuid` and `/etc/subgid`."""


class NoSubordinateError(Exception):
    """Subordinate ids can't be used. The message has the reason, for users."""


@dataclass(frozen=True)
class SubordinateUser:
    """The user who owns the subordinate ids."""

    name: str
    uid: int
    gid: int
    home: Path

    @classmethod
    def current(cls) -> Self:
        """The user of this process. Raises `NoSubordinateError`."""
        try:
            account = pwd.getpwuid(os.getuid())
        except KeyError:
            raise NoSubordinateError(f"uid {os.getuid()} has no entry in /etc/passwd") from None
        return cls(account.pw_name, account.pw_uid, os.getgid(), Path(account.pw_dir))

    @property
    def names(self) -> tuple[str, str]:
        """The names by which `/etc/subuid` and `/etc/subgid` refer to the user."""
        return self.name, str(self.uid)


@dataclass(frozen=True)
class SubordinateRanges:
    """The subordinate ids of a user. Both ranges have the same length."""

    uids: range
    gids: range

    @property
    def sandboxes(self) -> range:
        """The host uids for sandboxes: all but the first, which is root in the namespace and used by no sandbox."""
        return self.uids[1:]

    def uid_map(self, user: SubordinateUser) -> list[int]:
        """The arguments of newuidmap(1) after the pid."""
        return [user.uid, user.uid, 1, 0, self.uids[0], 1, self.uids[1], self.uids[1], len(self.sandboxes)]

    def gid_map(self, user: SubordinateUser) -> list[int]:
        """The arguments of newgidmap(1) after the pid."""
        return [user.gid, user.gid, 1, 0, self.gids[0], 1, self.uids[1], self.gids[1], len(self.sandboxes)]


def find_ranges(user: SubordinateUser, etc: Path = Path("/etc")) -> SubordinateRanges:
    """The user's largest range in each file, both cut to the same length. Raises `NoSubordinateError`."""
    uids, gids = (_largest(etc / name, user) for name in ("subuid", "subgid"))
    length = min(len(uids), len(gids))
    if length < MIN_IDS:
        raise NoSubordinateError(f"the range of {user.name} has {length:,} ids, but {MIN_IDS:,} are needed")
    return SubordinateRanges(uids[:length], gids[:length])


def _largest(path: Path, user: SubordinateUser) -> range:
    ranges = sorted(_ranges_of(path, user), key=len)
    if not ranges:
        raise NoSubordinateError(f"{user.name} has no range in {path}")
    return ranges[-1]


def _ranges_of(path: Path, user: SubordinateUser) -> Iterator[range]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for fields in (line.split(":") for line in lines):
        if len(fields) == _FIELD_COUNT and fields[0] in user.names and fields[1].isdecimal() and fields[2].isdecimal():
            yield range(int(fields[1]), int(fields[1]) + int(fields[2]))


def sandbox_uids_of(uid_map: str, uid: int) -> range | None:
    """The host uids for sandboxes in a user namespace with this map; None if no spawner created the namespace.

    `uid_map`: the content of `/proc/<pid>/uid_map`, read from outside of the namespace. `uid`: that of the spawner.
    """
    rows = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    unchanged = [range(row[0], row[0] + row[2]) for row in rows if row[0] == row[1] and row[2] > 1]
    return unchanged[0] if (uid, uid, 1) in rows and len(unchanged) == 1 else None
