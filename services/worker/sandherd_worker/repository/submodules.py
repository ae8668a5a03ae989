"""Checks out the submodules of a branch, as `git submodule update --init` does, without its URLs and its settings.

The objects of all submodules are in the agent's repository, with the objects of the branch. Each submodule has its own
repository in `.git/modules`, which refers to these objects by `objects/info/alternates`. Refs in the agent's repository
protect the objects from garbage collection.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.contracts.repositories import Submodule
from sandherd_worker.repository.commit_identity import quoted
from sandherd_worker.repository.git import Git, GitError, GitRepository

_SHA256_HEX_LENGTH: Final = 64
_REF_PREFIX: Final = "refs/sandherd/submodules/"
_SUBMODULE_MODE: Final = b":160000 "
"""The mode of a submodule in the output of `git diff-index --raw`."""


@dataclass(frozen=True)
class _SubmoduleDirectories:
    """The folder and the repository of a submodule."""

    submodule: Submodule
    work_tree: Path
    git_dir: Path


class SubmoduleCheckout:
    """Checks out the submodules of one work tree, each after the submodule that contains it."""

    def __init__(
        self, git: Git, own: GitRepository, submodules: Sequence[Submodule], settings: Callable[[str], str]
    ) -> None:
        """`settings` maps the URL of a submodule to the settings for its configuration file."""
        self._git, self._own, self._settings = git, own, settings
        self._places: dict[str, _SubmoduleDirectories] = {}
        for submodule in submodules:
            parent = self._parent_of(submodule.path)
            modules = (parent.git_dir if parent else own.git_dir) / "modules"
            place = _SubmoduleDirectories(submodule, own.work_tree / submodule.path, modules / submodule.name)
            self._places[submodule.path] = place

    async def check_out(self) -> None:
        """Write the files of the submodules. The work tree must be checked out. Raises `GitError`, `OSError`."""
        for place in self._places.values():
            self._create(place)
            where = GitRepository(git_dir=place.git_dir, work_tree=place.work_tree)
            await self._git.run(where, "read-tree", "--reset", "-u", "HEAD")
            await self._git.run(
                self._own, "update-ref", f"{_REF_PREFIX}{place.submodule.commit}", place.submodule.commit
            )

    def _parent_of(self, path: str) -> _SubmoduleDirectories | None:
        """The innermost submodule that contains this path, if any."""
        parents = [known for known in self._places if path.startswith(f"{known}/")]
        return self._places[max(parents, key=len)] if parents else None

    def _create(self, place: _SubmoduleDirectories) -> None:
        """Create the submodule's repository, with its commit as HEAD. No process runs in it yet."""
        expected_folder = self._own.work_tree.resolve() / place.submodule.path
        if place.work_tree.resolve() != expected_folder or not expected_folder.is_dir():
            raise GitError(f"there is no folder for submodule {place.submodule.path!r}")
        parent = self._parent_of(place.submodule.path)
        (place.git_dir / "objects" / "info").mkdir(parents=True)
        (place.git_dir / "refs").mkdir()
        objects = _relative(place.git_dir / "objects", self._own.git_dir / "objects")
        (place.git_dir / "objects" / "info" / "alternates").write_text(f"{objects}\n")
        (place.git_dir / "HEAD").write_text(f"{place.submodule.commit}\n")
        (place.git_dir / "config").write_text(self._config(place))
        (place.work_tree / ".git").write_text(f"gitdir: {_relative(place.work_tree, place.git_dir)}\n")
        with ((parent.git_dir if parent else self._own.git_dir) / "config").open("a") as file:
            name, url = quoted(place.submodule.name), quoted(place.submodule.url)
            file.write(f"[submodule {name}]\n\turl = {url}\n\tactive = true\n")

    def _config(self, place: _SubmoduleDirectories) -> str:
        sha256 = len(place.submodule.commit) == _SHA256_HEX_LENGTH
        core = f"[core]\n\trepositoryformatversion = {int(sha256)}\n\tfilemode = true\n\tbare = false\n"
        core += f"\tlogallrefupdates = true\n\tworktree = {quoted(_relative(place.git_dir, place.work_tree))}\n"
        format_ = "[extensions]\n\tobjectformat = sha256\n" if sha256 else ""
        return core + format_ + self._settings(place.submodule.url)


async def unsaved_submodules(git: Git, own: GitRepository, commit: str) -> Sequence[str]:
    """The submodules whose commit or files differ from those in this commit. Raises `GitError`, `OSError`."""
    shown = await git.run(own, "diff-index", "-z", "--raw", "--no-renames", "--ignore-submodules=none", commit)
    parts = shown.split(b"\0")
    changed = zip(parts[::2], parts[1::2], strict=False)
    return [path.decode("utf-8", "replace") for about, path in changed if about.startswith(_SUBMODULE_MODE)]


def _relative(begin: Path, end: Path) -> str:
    """The relative path from a folder to another folder, so that both can be moved together."""
    return os.path.relpath(end, begin)
