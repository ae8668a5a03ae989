"""Decides which paths of a work tree are left out: directories that never contain work, and what git ignores.

Git's rules are in the `.gitignore` of each directory and in a repository's `info/exclude`; a nested repository has its
own. Only clients read the rules of a user's git configuration (`IgnoreRules(user=...)`). A repository's index is not
read, so a tracked file that matches a rule is ignored as well.
"""

import os
import stat
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.archives.gitignore import GitignoreRules

GIT: Final = ".git"
ALWAYS: Final = frozenset({GIT, "node_modules", "__pycache__", ".venv"})
"""Names that are ignored in every directory."""
UNFINISHED: Final = ".sandherd-part-"
"""The name prefix of files that are still being written into the work tree."""
_GITIGNORE: Final = ".gitignore"
_MAX_BYTES: Final = 1024 * 1024
_NO_RULES: Final = GitignoreRules()

_Stamp = tuple[int, int, int] | None
"""The time of the last change, the size and the inode of a file; None if it does not exist."""


@dataclass(frozen=True)
class _Scope:
    """The rules that one directory sets for itself and everything below."""

    stamps: tuple[_Stamp, ...] = ()
    """The stamps of the files that the rules were read from."""
    gitignore: GitignoreRules = _NO_RULES
    repository: bool = False
    """Whether a repository begins here; rules of directories above do not apply to it."""
    excludes: tuple[GitignoreRules, ...] = ()
    """The rules of the whole repository, in the order of their precedence."""
    git_dir: str | None = None
    """The path of the repository's git directory, if it is in the tree and not in `.git`."""

    def verdict(self, path: str, *, directory: bool) -> bool | None:
        name = os.fsencode(path)
        verdict = self.gitignore.verdict(name, directory=directory)
        if verdict is None and self.repository:
            verdict = _first_verdict(self.excludes, name, directory=directory) or False
        return verdict


class IgnoreRules:
    """Decides whether a relative path (with forward slashes) is ignored, by the rules of directories read so far."""

    def __init__(self, *, confined: bool = True, user: GitignoreRules = _NO_RULES) -> None:
        """If not `confined`, `info/exclude` is also read from git directories outside the tree.

        `user` has the rules of the user's git configuration.
        """
        self._confined, self._user = confined, user
        self._scopes: dict[str, _Scope] = {}
        self._git_dirs: frozenset[str] = frozenset()

    def __call__(self, path: str, *, directory: bool) -> bool:
        """Whether the path is ignored. Paths within an ignored directory need not be queried."""
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
                return bool(self._user.verdict(os.fsencode(path), directory=directory))
            base = base.rpartition("/")[0]

    def within(self, path: str) -> bool:
        """Whether the path, or a directory that contains it, is ignored."""
        parts = path.split("/")
        prefixes = ["/".join(parts[: depth + 1]) for depth in range(len(parts))]
        return any(self(prefix, directory=prefix != path) for prefix in prefixes)

    def read(self, root: Path, directory: str, names: Collection[str]) -> bool:
        """Read the rules of a directory, whose entries are `names`. Returns whether the rules have changed."""
        old_scope = self._scopes.get(directory)
        if _GITIGNORE not in names and GIT not in names:
            self._scopes.pop(directory, None)
            return old_scope is not None and self._update_git_directories(old_scope, _Scope())
        exclude_file = self._exclude_file(root, root / directory / GIT) if GIT in names else None
        gitignore, git = root / directory / _GITIGNORE, root / directory / GIT
        stamps = (_stamp(gitignore), _stamp(git), _stamp(exclude_file) if exclude_file else None)
        if old_scope is not None and old_scope.stamps == stamps:
            return False
        self._scopes[directory] = scope = _Scope(
            stamps,
            GitignoreRules(content(gitignore)),
            GIT in names,
            (GitignoreRules(content(exclude_file) if exclude_file else b""), self._user),
            _git_dir(root, exclude_file),
        )
        return self._update_git_directories(old_scope, scope)

    def _exclude_file(self, root: Path, git: Path) -> Path | None:
        """The path of a repository's exclude file; None if it is outside the tree, where a worker must not read."""
        git_directory = git
        if not git.is_dir():
            git_directory = git.parent / _stored_path(git, b"gitdir: ")
            if not self._may_read(root, git_directory):
                return None
            git_directory = git_directory / _stored_path(git_directory / "commondir")
        real = Path(os.path.realpath(git_directory / "info" / "exclude"))
        return real if self._may_read(root, real) else None

    def _may_read(self, root: Path, path: Path) -> bool:
        return not self._confined or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))

    def _update_git_directories(self, old_scope: _Scope | None, new_scope: _Scope) -> bool:
        if (old_scope is not None and old_scope.git_dir) or new_scope.git_dir:
            self._git_dirs = frozenset(scope.git_dir for scope in self._scopes.values() if scope.git_dir)
        return True


def ignored_in(
    root: Path, *, with_git: bool, folder: str = "", rules: IgnoreRules | None = None
) -> Callable[[str, bool], bool]:
    """The `skips` for `writer.pack` of a folder within `root`: it skips what git ignores.

    With `with_git`, it skips nothing in a git directory. The rules of the root, of each directory down to the folder,
    and of each directory in the folder apply.
    """
    ignored = rules or IgnoreRules()
    prefix = f"{folder}/" if folder else ""
    for directory in ("", *parents(prefix)):
        ignored.read(root, directory, _names(root / directory))

    def skips(path: str, directory: bool) -> bool:  # noqa: FBT001  # `pack`'s signature
        if with_git and GIT in path.split("/"):
            return False
        if ignored(prefix + path, directory=directory):
            return True
        if directory:
            ignored.read(root, prefix + path, _names(root / prefix / path))
        return False

    return skips


def parents(path: str) -> Sequence[str]:
    """The directories above a relative path, the outermost first."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: depth + 1]) for depth in range(len(parts))]


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []


def _first_verdict(lists: Sequence[GitignoreRules], name: bytes, *, directory: bool) -> bool | None:
    verdicts = (rules.verdict(name, directory=directory) for rules in lists)
    return next((verdict for verdict in verdicts if verdict is not None), None)


def _stored_path(path: Path, prefix: bytes = b"") -> str:
    """The path that is stored in a file of git; empty if the file does not exist."""
    return os.fsdecode(content(path).removeprefix(prefix).strip(b"\n\0").replace(b"\0", b""))


def _git_dir(root: Path, exclude_file: Path | None) -> str | None:
    """The path of the git directory of an exclude file; None if it is named `.git`, or is outside the tree."""
    real = os.path.realpath(root)
    if exclude_file is None or exclude_file.parts[-3:-2] == (GIT,) or not exclude_file.is_relative_to(real):
        return None
    return str(exclude_file.parent.parent.relative_to(real))


def _stamp(path: Path) -> _Stamp:
    try:
        state = path.lstat()
    except (OSError, ValueError):
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def content(path: Path) -> bytes:
    """A file's content; empty if it is a link (as in git), not a regular file, or unreadable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_BYTES) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
