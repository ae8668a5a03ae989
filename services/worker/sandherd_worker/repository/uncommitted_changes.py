"""Commits the uncommitted changes in an agent's work tree, whatever state its repository is in.

No hook runs, and the author that the agent's repository configures is not used. Files that can't be committed
are left out and described.
"""

import asyncio
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd.archives.ignore import content
from sandherd.contracts.repositories import Checkout
from sandherd.forge_markup import escape_forge_markup
from sandherd_worker.repository.commit_identity import CommitIdentity
from sandherd_worker.repository.git import Git, GitError, GitRepository
from sandherd_worker.storable_text import valid_text

_MAX_SUMMARY_CHARS: Final = 72
_DEFAULT_SUMMARY: Final = "Work of the agent"
_BODY: Final = "The agent had left this uncommitted; Sandherd committed it."
_TOTAL_FACTOR: Final = 8
"""The size limit of all uncommitted files together, as a multiple of the limit of one file."""
_NEW_INDEX: Final = "sandherd-index"


@dataclass
class OmissionNotes:
    """Notes for the event about the files that are not committed, with the reasons."""

    texts: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Add a note, unless it is known."""
        if text not in self.texts:
            self.texts.append(text)

    def text(self) -> str | None:
        """All notes as one text; None if there are none."""
        return "; ".join(self.texts) or None


@dataclass(frozen=True, kw_only=True)
class CommitContext:
    """The branch, the author and the message of the commit, and the files that it must not contain."""

    checkout: Checkout
    identity: CommitIdentity
    message: str
    max_file_bytes: int
    """Maximum size of a file, in bytes."""
    secrets: tuple[bytes, ...] = ()
    """A file that contains one of these is not committed, because the branch may be published."""


def message_of(text: str, task: str | None, identity: CommitIdentity) -> str:
    """The commit message, with the first line of the task's redacted text. Markup of forges in it is escaped."""
    first = next((line for line in valid_text(text).splitlines() if line.strip()), _DEFAULT_SUMMARY)
    summary = " ".join("".join(char if char.isprintable() else " " for char in first).split())
    if len(summary) > _MAX_SUMMARY_CHARS:
        summary = summary[: _MAX_SUMMARY_CHARS - 1].rstrip() + "…"
    trailers = [f"Sandherd-Task: {task}"] if task else []
    trailers += [f"Co-authored-by: {identity.co_author}"] if identity.co_author else []
    return "\n".join([escape_forge_markup(summary) or _DEFAULT_SUMMARY, "", _BODY, "", *trailers]).rstrip() + "\n"


class UncommittedChanges:
    """Commits the uncommitted changes of one work tree."""

    def __init__(self, git: Git, own: GitRepository, context: CommitContext, notes: OmissionNotes) -> None:
        self._git, self._repository, self._context, self._notes = git, own, context, notes
        self._branch = f"refs/heads/{context.checkout.branch}"

    async def commit(self, tip: str) -> str:
        """Commit the differences to the branch's commit `tip`; returns the new commit, or `tip` if there is none.

        Raises `GitError`, `OSError`.
        """
        if not await self._head_is_at(tip):
            return tip
        tree = await self._tree(tip)
        if tree == await self._read("rev-parse", f"{tip}^{{tree}}"):
            return tip
        commit = await self._read(
            "commit-tree", tree, "-p", tip, "-F", "-",
            stdin=self._context.message.encode(), variables=self._context.identity.variables,
        )  # fmt: skip
        await self._read("update-ref", self._branch, commit, tip)
        return commit

    async def _head_is_at(self, tip: str) -> bool:
        """Whether the files in the work tree come from this commit; otherwise they belong to another branch."""
        head = await self._read("rev-parse", "--verify", "--quiet", "HEAD^{commit}", accepted=frozenset({0, 1, 128}))
        if head != tip:
            text = f"uncommitted files, because HEAD is not at {self._context.checkout.branch}"
            self._notes.add(f"{text}, but at {head}" if head else text)
        return head == tip

    async def _tree(self, tip: str) -> str:
        """The tree with the changes, from the agent's index, or from a new index if that can't be used."""
        merging = await self._read("rev-parse", "--verify", "--quiet", "MERGE_HEAD", accepted=frozenset({0, 1, 128}))
        if merging:
            self._notes.add(f"that {merging} was being merged")
        try:
            return await self._stage_and_write_tree({})
        except GitError:
            own = {"GIT_INDEX_FILE": str(self._repository.git_dir / _NEW_INDEX)}
            await self._read("read-tree", tip, variables=own)
            return await self._stage_and_write_tree(own)

    async def _stage_and_write_tree(self, variables: Mapping[str, str]) -> str:
        await self._read("update-index", "-q", "--refresh", variables=variables, accepted=frozenset({0, 1}))
        shown = await self._paths(
            "diff-files", "-z", "--name-status", "--no-renames", "--ignore-submodules=dirty", variables=variables
        )
        deleted = [path for kind, path in zip(shown[::2], shown[1::2], strict=False) if kind == b"D"]
        changed = [path for kind, path in zip(shown[::2], shown[1::2], strict=False) if kind != b"D"]
        untracked = await self._paths("ls-files", "-z", "--others", "--exclude-standard", variables=variables)
        added = await asyncio.to_thread(self._accepted, [*changed, *untracked])
        await self._update(("--force-remove",), deleted, variables)
        await self._update(("--add", "--remove", "--replace"), added, variables)
        return await self._read("write-tree", variables=variables)

    async def _update(self, options: tuple[str, ...], paths: Iterable[bytes], variables: Mapping[str, str]) -> None:
        listed = b"".join(path + b"\0" for path in paths)
        if listed:
            await self._read("update-index", *options, "-z", "--stdin", stdin=listed, variables=variables)

    def _accepted(self, paths: Iterable[bytes]) -> list[bytes]:
        """The paths that may be committed: links, and files that are not too large and contain no secret."""
        accepted, large, secret, others, total = [], [], [], [], 0
        for path in dict.fromkeys(paths):
            size = self._size_of(path)
            if size is None:
                others.append(path)
            elif size > self._context.max_file_bytes or total + size > _TOTAL_FACTOR * self._context.max_file_bytes:
                large.append(path)
            elif size and self._has_secret(path):
                secret.append(path)
            else:
                accepted.append(path)
                total += size
        self._note_left_out(large, "too large")
        self._note_left_out(secret, "with a secret of the task")
        self._note_left_out(others, "not a file: a repository of its own, or a pipe")
        return accepted

    def _size_of(self, path: bytes) -> int | None:
        """The size of a file or a link; None for anything else. A missing file counts as an empty file."""
        try:
            status = (self._repository.work_tree / os.fsdecode(path)).lstat()
        except OSError:
            return 0
        return status.st_size if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode) else None

    def _has_secret(self, path: bytes) -> bool:
        if not self._context.secrets:
            return False
        text = content(self._repository.work_tree / os.fsdecode(path))
        return any(secret in text for secret in self._context.secrets)

    def _note_left_out(self, paths: list[bytes], reason: str) -> None:
        if paths:
            first = valid_text(os.fsdecode(paths[0]))[:200]
            self._notes.add(f"{len(paths)} uncommitted paths ({reason}), the first of them {first!r}")

    async def _paths(self, *arguments: str, variables: Mapping[str, str]) -> list[bytes]:
        own = GitRepository(git_dir=self._repository.git_dir, work_tree=self._repository.work_tree, variables=variables)
        return [path for path in (await self._git.run(own, *arguments)).split(b"\0") if path]

    async def _read(
        self,
        *arguments: str,
        stdin: bytes | None = None,
        variables: Mapping[str, str] | None = None,
        accepted: frozenset[int] = frozenset({0}),
    ) -> str:
        own = GitRepository(
            git_dir=self._repository.git_dir, work_tree=self._repository.work_tree, variables=variables or {}
        )
        return (await self._git.run(own, *arguments, stdin=stdin, accepted=accepted)).decode("utf-8", "replace").strip()


def repository_in(work_dir: Path) -> GitRepository:
    """The repository in this folder, never the repository of a parent folder."""
    return GitRepository(git_dir=work_dir / ".git", work_tree=work_dir)
