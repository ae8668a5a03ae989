"""Git LFS in a sandbox: its filter for objects in the sandbox, without the program git-lfs and without a server.

Objects are in `.git/lfs/objects`, where git-lfs stores them. New objects are saved with the branch, as files of a
commit. The name of each file is the SHA-256 of the object. This commit
is not on the branch; its ref in the bundle is `refs/sandherd/lfs`.
"""

import re
import shutil
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Final

from sandherd_worker.repository.commit_identity import CommitIdentity, quoted
from sandherd_worker.repository.git import Git, GitError, GitRepository

REF: Final = "refs/sandherd/lfs"
_MAX_POINTER_BYTES: Final = 1024
_MAX_BLOBS_PER_CALL: Final = 20_000
_OID: Final = re.compile(r"[0-9a-f]{64}")
_POINTER: Final = re.compile(
    rb"version https://[a-z.-]+/spec/v1\n(?:ext-.+\n)*oid sha256:(?P<oid>[0-9a-f]{64})\nsize [0-9]+\n?"
)
_SCRIPT: Final = r"""#!/bin/sh
# Written by Sandherd: the filter of Git LFS (gitattributes(5)), for the objects that are in this sandbox.
set -e
folder=$(git rev-parse --git-common-dir)/lfs
mkdir -p "$folder/tmp" "$folder/objects"
part=$(mktemp "$folder/tmp/XXXXXXXX")
trap 'rm -f "$part"' EXIT
cat >"$part"
size=$(($(wc -c <"$part")))
oid=
if [ "$size" -lt 1024 ] && head -n 1 "$part" | grep -q '^version https://[a-z.-]*/spec/v1$'; then
    oid=$(sed -n 's/^oid sha256:\([0-9a-f]*\)$/\1/p' "$part")
fi
place() { printf '%s/%s/%s/%s' "$1" "$(printf %s "$oid" | cut -c 1-2)" "$(printf %s "$oid" | cut -c 3-4)" "$oid"; }
if [ "$1" = smudge ]; then
    [ ${#oid} -eq 64 ] || exec cat "$part"
    own=$(place "$folder/objects")
    mirror=$(git config sandherd.lfs || true)
    if [ ! -e "$own" ] && [ -n "$mirror" ] && [ -e "$(place "$mirror")" ]; then
        mkdir -p "${own%/*}"
        cp "$(place "$mirror")" "$part.new"
        mv "$part.new" "$own"
    fi
    [ -e "$own" ] || exec cat "$part"
    exec cat "$own"
fi
if [ -n "$oid" ] || [ "$size" -eq 0 ]; then exec cat "$part"; fi
oid=$(sha256sum "$part" | cut -c 1-64)
own=$(place "$folder/objects")
if [ ! -e "$own" ]; then
    mkdir -p "${own%/*}"
    mv "$part" "$own"
fi
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %s\n' "$oid" "$size"
"""


def enable(git_dir: Path, mirror: Path | None) -> str:
    """Write the filter into a new repository, and return its settings. `mirror` is a directory with other objects."""
    script = git_dir / "sandherd-lfs"
    script.write_text(_SCRIPT)
    script.chmod(0o755)
    command = '"\\"$(git rev-parse --git-common-dir)/sandherd-lfs\\" {}"'
    clean, smudge = command.format("clean"), command.format("smudge")
    place = f"[sandherd]\n\tlfs = {quoted(str(mirror))}\n" if mirror is not None else ""
    return f'[filter "lfs"]\n\tclean = {clean}\n\tsmudge = {smudge}\n\trequired = true\n{place}'


def unpack(archive: IO[bytes], git_dir: Path) -> None:
    """Extract the objects from the spawner's tar file. It blocks. Raises `OSError` and `GitError`."""
    try:
        with tarfile.open(fileobj=archive) as opened:
            for member in opened:
                content = opened.extractfile(member)
                if content is not None and _OID.fullmatch(member.name):
                    target = _object(git_dir, member.name)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("wb") as file:
                        shutil.copyfileobj(content, file)
    except tarfile.TarError as error:
        raise GitError(f"the objects of Git LFS can't be read: {error}") from None


class NewObjects:
    """The objects in the agent's repository that the commits since the base need."""

    def __init__(self, git: Git, own: GitRepository, identity: CommitIdentity) -> None:
        self._git, self._repository, self._identity = git, own, identity

    async def commit(self, base: str, tip: str) -> str | None:
        """Commit the objects for the bundle; returns the ref, or None without objects. Raises `GitError`, `OSError`."""
        listed = await self._run("rev-list", "--objects", "--no-object-names", f"{base}..{tip}")
        found = [oid for oid in await self._referenced_oids(listed) if _object(self._repository.git_dir, oid).is_file()]
        if not found:
            return None
        paths = "".join(f"{_object(self._repository.git_dir, oid)}\n" for oid in found).encode()
        blobs = (
            await self._run(
                "-c", "core.compression=0", "hash-object", "-w", "--no-filters", "--stdin-paths", stdin=paths
            )
        ).split()
        entries = zip(blobs, found, strict=True)
        lines = b"".join(
            b"100644 blob " + blob + b"\t" + oid.encode() + b"\n"
            for blob, oid in sorted(entries, key=lambda one: one[1])
        )
        tree = (await self._run("mktree", stdin=lines)).decode().strip()
        own = GitRepository(
            git_dir=self._repository.git_dir, work_tree=self._repository.work_tree, variables=self._identity.variables
        )
        commit = (await self._git.run(own, "commit-tree", "-m", "Objects of Git LFS", tree)).decode().strip()
        await self._run("update-ref", REF, commit)
        return REF

    async def _referenced_oids(self, listed: bytes) -> Sequence[str]:
        """The ids of the LFS objects to which pointers among these git objects refer."""
        checked = await self._run("cat-file", "--batch-check", stdin=listed) if listed else b""
        lines = [line.split(b" ") for line in checked.splitlines()]
        small = [line[0] for line in lines if line[1:2] == [b"blob"] and 0 < int(line[2]) <= _MAX_POINTER_BYTES]
        found: set[str] = set()
        for begin in range(0, len(small), _MAX_BLOBS_PER_CALL):
            batch = b"\n".join(small[begin : begin + _MAX_BLOBS_PER_CALL]) + b"\n"
            found.update(_oids_in(await self._run("cat-file", "--batch", stdin=batch)))
        return sorted(found)

    async def _run(self, *arguments: str, stdin: bytes | None = None) -> bytes:
        return await self._git.run(self._repository, *arguments, stdin=stdin)


def _oids_in(printed: bytes) -> Iterable[str]:
    """The ids in the pointers in the output of `git cat-file --batch`. Raises `GitError`."""
    at = 0
    while at < len(printed):
        end = printed.index(b"\n", at)
        size = printed[at:end].rpartition(b" ")[2]
        if not size.isdigit():
            raise GitError("git cat-file has printed no object")
        content = printed[end + 1 : end + 1 + int(size)]
        if match := _POINTER.fullmatch(content):
            yield match["oid"].decode()
        at = end + int(size) + 2


def _object(git_dir: Path, oid: str) -> Path:
    return git_dir / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
