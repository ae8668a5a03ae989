"""Signs the commits of sandboxes. A signature is a part of its commit, so each commit is replaced by a signed commit.

A signed commit has the tree, author, message and time of the agent's commit, and the configured committer. Its parents
are the signed commits of the original's parents. So the branch has other commits than the sandbox. The branch's record
has the sandbox's last commit beside the signed one, and later commits of the sandbox get the signed one as a parent.
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
_COMMIT_TYPE: Final = 1
"""The type number of a commit in a pack (gitformat-pack(5))."""
Parents = Mapping[str, Sequence[str]]
"""The parents of each commit."""


@dataclass(frozen=True)
class CommitSigner:
    """Signs commits with the key in the file `key`."""

    key: Path
    committer: str
    """The committer of signed commits: `NAME <ADDRESS>`."""

    async def signed(self, mirror: Mirror, record: BranchRecord, commit: str) -> str:
        """The signed commit for a commit of a sandbox. Raises `GitError`.

        The mirror has the sandbox's commit, and gets the signed one. Commits that the repository or a branch already
        has are not signed. The caller holds the mirror's lock.
        """
        sign = await asyncio.to_thread(read_signing_key, self.key)
        signed_ids = await _signed_counterparts(mirror, record)
        excluded = [record.unsigned] if record.unsigned in signed_ids else []
        arguments = ("--topo-order", "--reverse", f"--max-count={MAX_COMMITS + 1}", commit)
        printed = await mirror.run("rev-list", *arguments, "--not", "--branches", "--remotes", record.commit, *excluded)
        names = printed.split()
        if len(names) > MAX_COMMITS:
            raise GitError(
                GitFault.TOO_LARGE, f"it has more than {MAX_COMMITS} new commits, the maximum that is signed at once"
            )
        if names:
            await self._store_signed(mirror, names, signed_ids, sign)
        return signed_ids.get(commit, commit)

    async def _store_signed(self, mirror: Mirror, names: Sequence[str], signed_ids: dict[str, str], sign: Sign) -> None:
        """Sign the named commits, parents first, and store them. Adds the new ids to `signed_ids`, by the old ids."""
        listed = "".join(f"{name}\n" for name in names).encode()
        _, printed = await mirror.git("cat-file", "--batch", stdin=listed)
        signed_commits = await asyncio.to_thread(_signed_contents, _contents(printed), signed_ids, self.committer, sign)
        pack = await asyncio.to_thread(pack_of, signed_commits)
        await mirror.git("unpack-objects", "-q", "--strict", stdin=pack)


async def _signed_counterparts(mirror: Mirror, record: BranchRecord) -> dict[str, str]:
    """The signed commit of each commit in the history of `record.unsigned`; none if the mirror lacks that commit."""
    if record.unsigned is None or not await mirror.has_commit(record.unsigned):
        return {}
    tips = (record.unsigned, record.commit)
    printed = await mirror.run("rev-list", "--parents", *tips, "--not", record.base_commit)
    rows = (row.split(" ") for row in printed.splitlines())
    return counterparts(*tips, {name: parents for name, *parents in rows})


def counterparts(unsigned: str, signed: str, parents: Parents) -> dict[str, str]:
    """The signed commit of each commit in the history of `unsigned`.

    The histories of `unsigned` and `signed` have the same form, so commits at the same place correspond.
    """
    replacements: dict[str, str] = {}
    pairs = [(unsigned, signed)]
    while pairs:
        original, replacement = pairs.pop()
        if original != replacement and original not in replacements:
            replacements[original] = replacement
            pairs += zip(parents.get(original, ()), parents.get(replacement, ()), strict=False)
    return replacements


def signed_commit(content: bytes, signed_ids: Mapping[str, str], committer: str, sign: Sign) -> bytes:
    """The content of the signed commit for a commit with this content.

    `signed_ids`: the ids of signed commits by those of their originals, at least for the parents.
    """
    head, _, message = content.partition(b"\n\n")
    tree, *others = head.split(b"\n")
    parents = [line.split(b" ")[1].decode() for line in takewhile(lambda line: line.startswith(b"parent "), others)]
    author, old_committer, *extra = others[len(parents) :]  # git accepts this order only (git-fsck(1))
    encoding = [line for line in extra if line.startswith(b"encoding ")][:1]  # without an old signature
    time_and_zone = old_committer.rsplit(b" ", 2)[1:]
    lines = [tree, *(b"parent " + signed_ids.get(parent, parent).encode() for parent in parents), author]
    lines += [b" ".join((b"committer", committer.encode(), *time_and_zone)), *encoding]
    signature = sign(b"\n".join(lines) + b"\n\n" + message).rstrip(b"\n").replace(b"\n", b"\n ")
    return b"\n".join((*lines, b"gpgsig " + signature)) + b"\n\n" + message


def pack_of(commits: Sequence[bytes]) -> bytes:
    """A pack of these commits (gitformat-pack(5))."""
    parts = [b"PACK", struct.pack(">II", 2, len(commits))]
    parts += [_entry_header(len(content)) + zlib.compress(content) for content in commits]
    content = b"".join(parts)
    return content + hashlib.sha1(content, usedforsecurity=False).digest()


def _entry_header(size: int) -> bytes:
    """The type and size of an entry. Bit 7 of a byte states that a further byte follows."""
    header = [_COMMIT_TYPE << 4 | size & 15]
    size >>= 4
    while size:
        header[-1] |= 128
        header.append(size & 127)
        size >>= 7
    return bytes(header)


def _signed_contents(
    contents: Iterable[tuple[str, bytes]], signed_ids: dict[str, str], committer: str, sign: Sign
) -> list[bytes]:
    """The contents of the signed commits. Adds the new ids to `signed_ids`, by the old ids."""
    signed_commits = []
    for name, content in contents:
        signed = signed_commit(content, signed_ids, committer, sign)
        signed_ids[name] = hashlib.sha1(b"commit %d\0" % len(signed) + signed, usedforsecurity=False).hexdigest()
        signed_commits.append(signed)
    return signed_commits


def _contents(printed: bytes) -> Iterable[tuple[str, bytes]]:
    """The names and contents of objects in the output of `git cat-file --batch`."""
    at = 0
    while at < len(printed):
        end = printed.index(b"\n", at)
        name, _, size = printed[at:end].decode().split(" ")
        yield name, printed[end + 1 : end + 1 + int(size)]
        at = end + 2 + int(size)
