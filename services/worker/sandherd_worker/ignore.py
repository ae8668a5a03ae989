"""Which paths of a work tree are not watched: what is never anybody's work, and what git ignores.

Git's rules are in the `.gitignore` of each directory and in a repository's `info/exclude`; a repository within another
one has its own. Not read: what a user's git configuration names, and a repository's index, so that a file that was
added although a rule names it is passed over as well.
"""

import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd_worker.gitignore import Rules

GIT: Final = ".git"
ALWAYS: Final = frozenset({GIT, "node_modules", "__pycache__", ".venv"})
UNFINISHED: Final = ".sandherd-part-"
"""How the names of files begin that are on their way into the work tree."""
_GITIGNORE: Final = ".gitignore"
_MOST_BYTES: Final = 1024 * 1024
_NO_RULES: Final = Rules()

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class _Scope:
    """What one directory says about itself and all below."""

    stamps: tuple[_Stamp, ...] = ()
    gitignore: Rules = _NO_RULES
    repository: bool = False
    """Whether a repository begins here; what stands further up is no concern of it."""
    exclude: Rules = _NO_RULES
    git_dir: str | None = None
    """Where the repository's own files are, if in the tree and not in `.git`."""

    def verdict(self, path: str, *, directory: bool) -> bool | None:
        name = os.fsencode(path)
        verdict = self.gitignore.verdict(name, directory=directory)
        if verdict is None and self.repository:
            verdict = bool(self.exclude.verdict(name, directory=directory))
        return verdict


class Ignored:
    """Tells whether a path, relative and with forward slashes, is passed over, by the directories that it has read."""

    def __init__(self) -> None:
        self._scopes: dict[str, _Scope] = {}
        self._git_dirs: frozenset[str] = frozenset()

    def __call__(self, path: str, *, directory: bool) -> bool:
        """Whether to pass it over. What lies in a directory that is passed over need not be asked for."""
        base, _, name = path.rpartition("/")
        if name in ALWAYS or name.startswith(UNFINISHED) or path in self._git_dirs:
            return True
        while True:
            scope = self._scopes.get(base)
            if scope is not None:
                verdict = scope.verdict(path[len(base) + 1 :] if base else path, directory=directory)
                if verdict is not None:
                    return verdict
            if not base:
                return False
            base = base.rpartition("/")[0]

    def within(self, path: str) -> bool:
        """Whether it, or a directory that it lies in, is passed over."""
        parts = path.split("/")
        prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return any(self(prefix, directory=prefix != path) for prefix in prefixes)

    def read(self, root: Path, directory: str, names: Collection[str]) -> bool:
        """Read what a directory, in which these names are, says by now. Whether that is not what it said before."""
        before = self._scopes.get(directory)
        if _GITIGNORE not in names and GIT not in names:
            self._scopes.pop(directory, None)
            return before is not None and self._changed(before, _Scope())
        excluding = _excluding(root, root / directory / GIT) if GIT in names else None
        listed, git = root / directory / _GITIGNORE, root / directory / GIT
        stamps = (_stamp(listed), _stamp(git), _stamp(excluding) if excluding else None)
        if before is not None and before.stamps == stamps:
            return False
        self._scopes[directory] = scope = _Scope(
            stamps,
            Rules(_content(listed)),
            GIT in names,
            Rules(_content(excluding) if excluding else b""),
            _git_dir(root, excluding),
        )
        return self._changed(before, scope)

    def _changed(self, before: _Scope | None, after: _Scope) -> bool:
        if (before is not None and before.git_dir) or after.git_dir:
            self._git_dirs = frozenset(one.git_dir for one in self._scopes.values() if one.git_dir)
        return True


def _excluding(root: Path, git: Path) -> Path | None:
    """Where a repository names what it ignores; None for a place out of the tree, which is not ours to read."""
    place = git
    if not git.is_dir():
        place = git.parent / _told(git, b"gitdir: ")
        place = place / _told(place / "commondir")
    real = Path(os.path.realpath(place / "info" / "exclude"))
    return real if real.is_relative_to(os.path.realpath(root)) else None


def _told(path: Path, prefix: bytes = b"") -> str:
    """The path that stands in a file; an empty one if there is none."""
    return os.fsdecode(_content(path).removeprefix(prefix).strip(b"\n\0").replace(b"\0", b""))


def _git_dir(root: Path, excluding: Path | None) -> str | None:
    if excluding is None or excluding.parts[-3:-2] == (GIT,):
        return None
    return str(excluding.parent.parent.relative_to(os.path.realpath(root)))


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _content(path: Path) -> bytes:
    """What is in a file; nothing if it is a link, as git takes it, or no file, or can't be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MOST_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
