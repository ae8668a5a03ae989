"""Signs the commits of sandboxes. A signature is a part of its commit, so a signed commit replaces each of them.

A signed commit has the tree, author and message of the agent's commit, and the configured committer at the same time.
Its parents are the signed commits of the original's parents. So the branch has other commits than its sandbox: the
record has the sandbox's last commit beside the signed one, and later commits of the sandbox are signed on top of that.
"""

import asyncio
import hashlib
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.mirror import Mirror
from spawner.repositories.ssh_signatures import Sign, read_signing_key

MAX_COMMITS: Final = 1000
"""Maximum commits that are signed at once."""
_COMMIT: Final = 1
"""The type number of a commit in a pack (gitformat-pack(5))."""
Parents = Mapping[str, Sequence[str]]
"""The parents of commits, by the commit."""


@dataclass(frozen=True)
class CommitSigner:
    """Signs with the key in this file, as this committer: `NAME <ADDRESS>`."""

    key: Path
    committer: str

    async def signed(self, mirror: Mirror, record: BranchRecord, commit: str) -> str:
        """The signed commit for a commit of a sandbox. The mirror has that one, and gets both. Raises `GitError`.

        Commits that the repository or a branch has already are not signed. The caller holds the mirror's lock.
        """
        sign = await asyncio.to_thread(read_signing_key, self.key)
        known = await _known(mirror, record)
        excluded = [record.unsigned] if record.unsigned in known else []
        arguments = ("--topo-order", "--reverse", f"--max-count={MAX_COMMITS + 1}", commit)
        shown = await mirror.run("rev-list", *arguments, "--not", "--branches", "--remotes", record.commit, *excluded)
        names = shown.split()
        if len(names) > MAX_COMMITS:
            raise GitError(
                GitFault.TOO_LARGE, f"it has more than {MAX_COMMITS} new commits, the maximum that is signed at once"
            )
        if names:
            await self._store_signed(mirror, names, known, sign)
        return known.get(commit, commit)

    async def _store_signed(self, mirror: Mirror, names: Sequence[str], known: dict[str, str], sign: Sign) -> None:
        """Store the signed commits, parents first, and add each to `known`."""
        listed = "".join(f"{name}\n" for name in names).encode()
        _, printed = await mirror.git("cat-file", "--batch", stdin=listed)
        made = await asyncio.to_thread(_all_signed, _contents(printed), known, self.committer, sign)
        pack = await asyncio.to_thread(packed, made)
        await mirror.git("unpack-objects", "-q", "--strict", stdin=pack)


async def _known(mirror: Mirror, record: BranchRecord) -> dict[str, str]:
    """The signed commit of each commit that `record.unsigned` contains; none if the mirror does not have that."""
    if record.unsigned is None or not await mirror.has_commit(record.unsigned):
        return {}
    ends = (record.unsigned, record.commit)
    shown = await mirror.run("rev-list", "--parents", *ends, "--not", record.base_commit)
    rows = (row.split(" ") for row in shown.splitlines())
    return counterparts(*ends, {name: parents for name, *parents in rows})


def counterparts(unsigned: str, signed: str, parents: Parents) -> dict[str, str]:
    """The signed commit of each commit that `unsigned` contains: both histories have the same form."""
    found: dict[str, str] = {}
    pairs = [(unsigned, signed)]
    while pairs:
        one, other = pairs.pop()
        if one != other and one not in found:
            found[one] = other
            pairs += zip(parents.get(one, ()), parents.get(other, ()), strict=False)
    return found


def signed_commit(content: bytes, known: Mapping[str, str], committer: str, sign: Sign) -> bytes:
    """The content of the signed commit for a commit with this content. `known`: the signed commits of its parents."""
    head, _, message = content.partition(b"\n\n")
    tree, *others = head.split(b"\n")
    parents = [line.split(b" ")[1].decode() for line in takewhile(lambda line: line.startswith(b"parent "), others)]
    author, ended, *extra = others[len(parents) :]  # in this order only, as git reads them (git-fsck(1))
    encoding = [line for line in extra if line.startswith(b"encoding ")][:1]  # another signature would be invalid
    times = ended.rsplit(b" ", 2)[1:]
    made = [tree, *(b"parent " + known.get(parent, parent).encode() for parent in parents), author]
    made += [b" ".join((b"committer", committer.encode(), *times)), *encoding]
    signature = sign(b"\n".join(made) + b"\n\n" + message).rstrip(b"\n").replace(b"\n", b"\n ")
    return b"\n".join((*made, b"gpgsig " + signature)) + b"\n\n" + message


def packed(commits: Sequence[bytes]) -> bytes:
    """A pack of these commits (gitformat-pack(5))."""
    parts = [b"PACK", struct.pack(">II", 2, len(commits))]
    parts += [_entry_header(len(content)) + zlib.compress(content) for content in commits]
    whole = b"".join(parts)
    return whole + hashlib.sha1(whole, usedforsecurity=False).digest()


def _entry_header(size: int) -> bytes:
    made = [_COMMIT << 4 | size & 15]
    size >>= 4
    while size:
        made[-1] |= 128
        made.append(size & 127)
        size >>= 7
    return bytes(made)


def _all_signed(
    contents: Iterable[tuple[str, bytes]], known: dict[str, str], committer: str, sign: Sign
) -> list[bytes]:
    made = []
    for name, content in contents:
        signed = signed_commit(content, known, committer, sign)
        known[name] = hashlib.sha1(b"commit %d\0" % len(signed) + signed, usedforsecurity=False).hexdigest()
        made.append(signed)
    return made


def _contents(printed: bytes) -> Iterable[tuple[str, bytes]]:
    """The names and contents that `git cat-file --batch` prints."""
    at = 0
    while at < len(printed):
        end = printed.index(b"\n", at)
        name, _, size = printed[at:end].decode().split(" ")
        yield name, printed[end + 1 : end + 1 + int(size)]
        at = end + 2 + int(size)
