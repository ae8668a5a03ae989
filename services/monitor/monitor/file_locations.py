"""Locations in the file system of a sandbox, derived only from the text of paths.

Pure: nothing is resolved in the sandbox.
"""

import re
from dataclasses import dataclass
from posixpath import normpath
from typing import Final

_HOME: Final = re.compile(r"^(?:~|\$HOME|\$\{HOME\})(?=/|$)")
_TEMPORARY: Final = re.compile(
    r"^(?:/tmp|/var/tmp|/private/tmp|/private/var/folders|/dev/shm|\$TMPDIR|\$\{TMPDIR\}|\$TMP|\$TEMP)(?=/|$)"
)
_CACHE: Final = re.compile(
    r"^(?:(?:~|/root|/home/[^/]+|/Users/[^/]+)/(?:\.cache|\.npm|\.cargo/registry|\.gradle/caches|\.m2/repository|\.pnpm-store"
    r"|\.yarn|\.bun/install|\.local/share/Trash|go/pkg)(?:/|$)|/var/cache/|/var/lib/apt/lists(?:/|$))"
)
"""Caches of package managers, which download their content again."""
_SYSTEM: Final = re.compile(
    r"^/(?:bin|boot|dev|etc|lib|lib32|lib64|opt|proc|run|sbin|srv|sys|usr|var|Library|System|Applications)(?:/|$)"
)
_HOME_FOLDER: Final = re.compile(r"^(?:~|/root|/home/[^/]+|/Users/[^/]+)(?:/[^/]+)?$")
"""A user's home, or a folder directly in it. A deeper folder may be a work tree."""
_SHELL_EXPANSION: Final = re.compile(r"[$`]")
_CREDENTIAL_FILE: Final = re.compile(
    r"(?:^|/)(?:\.ssh/(?:id_[^/.]+|[^/]+\.pem|[^/]+_rsa|[^/]+_ed25519|identity|\*)|\.netrc|\.git-credentials"
    r"|\.aws/(?:credentials|sso/cache/[^/]+|cli/cache/[^/]+)|\.azure/(?:accessTokens\.json|msal_token_cache[^/]*)"
    r"|(?:\.config/)?gcloud/(?:application_default_credentials\.json|credentials\.db|access_tokens\.db|legacy_credentials/.+)"
    r"|\.kube/config|\.docker/config\.json|\.config/gh/hosts\.yml|\.gnupg/private-keys[^/]*(?:/.+)?|\.vault-token"
    r"|\.claude/\.credentials\.json|\.codex/auth\.json|\.config/git/credentials)$"
    r"|^(?:~|/root|/home/[^/]+|/Users/[^/]+)/\.(?:npmrc|pypirc)$|^/etc/g?shadow-?$|^/(?:var/)?run/secrets/.+"
    r"|^/proc/[^/]+/environ$"
)
MAX_DEPTH: Final = 64
"""Maximum depth. It is also assumed for an unknown working directory, so that its relative paths are not outside."""


@dataclass(frozen=True, slots=True)
class ShellLocation:
    """The working directory of a shell.

    It is an absolute folder, or at most `depth` folders deep in the work tree; a negative depth is outside of it.
    """

    work_tree: str = ""
    """The absolute path of the work tree; empty if it is not known."""
    folder: str = ""
    """An absolute folder, or one that begins with `~`; empty in the work tree."""
    depth: int = 0


def after_cd(shell_location: ShellLocation, folder: str) -> ShellLocation:
    """The working directory after `cd folder`."""
    path = _HOME.sub("~", folder)
    if path == "-" or _SHELL_EXPANSION.search(path):
        return ShellLocation(shell_location.work_tree, "", MAX_DEPTH)
    if path.startswith(("/", "~")):
        path = normpath(path)
        depth = _depth_in_work_tree(shell_location.work_tree, path)
        return (
            ShellLocation(shell_location.work_tree, path)
            if depth is None
            else ShellLocation(shell_location.work_tree, "", depth)
        )
    if shell_location.folder:
        return after_cd(shell_location, f"{shell_location.folder}/{path}")
    return ShellLocation(shell_location.work_tree, "", min(MAX_DEPTH, shell_location.depth + _depth_change(path)))


def deleted_outside(shell_location: ShellLocation, path: str) -> bool:
    """Whether this path is certainly outside the work tree, or the whole work tree.

    False for temporary folders and caches.
    """
    if _TEMPORARY.match(path) or _SHELL_EXPANSION.search(path := _HOME.sub("~", path)):
        return False
    if not path.startswith(("/", "~")):
        if not shell_location.folder:
            return shell_location.depth + _lowest_depth(path) < 0
        path = f"{shell_location.folder}/{path}"
    path = normpath(path)
    path = re.sub(r"^//", "/", path)
    if _TEMPORARY.match(path) or _CACHE.match(path):
        return False
    return (
        not _depth_in_work_tree(shell_location.work_tree, path) if shell_location.work_tree else _is_known_outside(path)
    )


def is_credential(path: str) -> bool:
    """Whether this is the usual path of a file in which programs store credentials."""
    return _CREDENTIAL_FILE.search(_HOME.sub("~", path)) is not None


def _is_known_outside(path: str) -> bool:
    """Whether a path is outside of any usual work tree.

    That is a path in a system folder, or a home folder or `/`, or a path directly in one of these.
    """
    if _SYSTEM.match(path):
        return not path.startswith("/var/lib/") or path.count("/") <= 3
    return path == "/" or path.count("/") == 1 or _HOME_FOLDER.match(path) is not None


def _depth_in_work_tree(work_tree: str, path: str) -> int | None:
    """The depth of an absolute path in the work tree; None if it is outside.

    If the work tree is not known, it is `MAX_DEPTH`, or None for a path that is certainly outside.
    """
    if not work_tree:
        return MAX_DEPTH if not _is_known_outside(path) else None
    home = re.match(r"(?:/root|/home/[^/]+|/Users/[^/]+)(?=/|$)", work_tree)
    if home and path.startswith("~"):
        path = home[0] + path[1:]
    if path == work_tree:
        return 0
    return path[len(work_tree) :].count("/") if path.startswith(f"{work_tree}/") else None


def _depth_change(path: str) -> int:
    return sum(-1 if part == ".." else 1 for part in path.split("/") if part not in {"", "."})


def _lowest_depth(path: str) -> int:
    """The lowest depth that a relative path reaches, relative to its starting folder."""
    depth = lowest = 0
    for part in path.split("/"):
        depth += -1 if part == ".." else 0 if part in {"", "."} else 1
        lowest = min(lowest, depth)
    return min(lowest, depth)
