"""Chooses the submodules of a checkout from a repository's `.gitmodules`, all of which is hostile text. Pure.

git-submodule(1) is not used, so that a URL or a path of a repository is never an argument before it was checked here.
"""

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from sandherd.contracts.repositories import MAX_SUBMODULES, Submodule
from spawner.repositories.credential_file import origin_of
from spawner.repositories.git import GitError, GitFault

MAX_DEPTH: Final = 5
"""Maximum levels of submodules in submodules."""
_SHOWN: Final = 200
_SSH: Final = (
    re.compile(r"ssh://(?:[A-Za-z0-9_.-]+@)?(?P<host>[A-Za-z0-9.-]+)(?::22)?/(?P<path>.+)"),
    re.compile(r"(?:[A-Za-z0-9_.-]+@)?(?P<host>[A-Za-z0-9.-]+):(?P<path>[^/:].*)"),
)
"""An ssh URL, and its short form (git-clone(1)). The repository is fetched by https instead."""


def listed(printed: str) -> Mapping[str, Mapping[str, str]]:
    """The `path` and `url` of each submodule by its name, from the output of `git config --null --get-regexp`."""
    found: dict[str, dict[str, str]] = {}
    for entry in printed.split("\0"):
        key, _, value = entry.partition("\n")
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        if name and field in {"path", "url"}:
            found.setdefault(name, {})[field] = value
    return found


def chosen(
    modules: Mapping[str, Mapping[str, str]],
    links: Mapping[str, str],
    *,
    inside: Submodule | None,
    url: str | None,
    origins: Collection[str],
) -> Sequence[Submodule]:
    """The submodules of one repository. Raises `GitError` for one that may not be fetched.

    `modules`: the entries of `.gitmodules` by name. `links`: the commits of submodules in the tree, by path; only a
    path in both is a submodule. `inside`: the submodule that this repository itself is, if any. `url`: its URL, from
    which relative URLs are resolved. `origins`: the permitted origins.
    """
    found = []
    for name, module in sorted(modules.items()):
        path = module.get("path", "")
        if path in links:
            named = resolved(module.get("url", ""), url, path)
            if origin_of(named) not in origins:
                problem = f"its host is not permitted (SANDHERD_REPOSITORY_HOSTS): {_shown(named)}"
                raise refused(path, problem)
            found.append(_submodule(name, path, named, links[path], inside))
    for one, other in itertools.permutations(found, 2):
        if other.path == one.path or f"{other.name}/".startswith(f"{one.name}/"):
            raise refused(other.path, f"it shares its path, or the folder of its name, with {one.path!r}")
    return found


def checked_number(found: Sequence[Submodule], depth: int) -> None:
    """Raise `GitError` if there are too many submodules, or `depth` has too many levels."""
    if len(found) > MAX_SUBMODULES:
        raise GitError(GitFault.REFUSED, f"the checkout has more than {MAX_SUBMODULES} submodules")
    if depth > MAX_DEPTH:
        raise refused(found[-1].path, f"submodules are nested in more than {MAX_DEPTH} levels")


def resolved(text: str, parent: str | None, path: str) -> str:
    """The https or http URL for the URL of a submodule in `.gitmodules`. Raises `GitError`."""
    if text.startswith(("./", "../")):
        return _relative(text, parent, path)
    for pattern in _SSH:
        if "://" in text and not text.startswith("ssh://"):
            break
        if (match := pattern.fullmatch(text)) is not None:
            return f"https://{match['host']}/{match['path']}"
    if not text.startswith(("https://", "http://")):
        raise refused(path, f"its URL is not an http or https URL: {_shown(text)}")
    return _with_valid_origin(text, path)


def _relative(text: str, parent: str | None, path: str) -> str:
    """The URL as git resolves it (git-submodule(1)): each `../` removes the last part of the repository's own URL."""
    if parent is None:
        raise refused(path, "its URL is relative, and the repository is a local one")
    parts = parent.rstrip("/").split("/")
    rest = text
    while rest.startswith(("./", "../")):
        if rest.startswith("../"):
            parts.pop()
        if len(parts) < len(("https:", "", "host")):
            raise refused(path, f"its relative URL leads out of the host: {_shown(text)}")
        rest = rest.partition("/")[2]
    return _with_valid_origin("/".join((*parts, rest.rstrip("/"))), path)


def _with_valid_origin(url: str, path: str) -> str:
    try:
        origin_of(url)
        valid = bool(urlsplit(url).hostname)
    except ValueError:
        valid = False
    if not valid:
        raise refused(path, f"its URL has no valid host: {_shown(url)}")
    return url


def _submodule(name: str, path: str, url: str, commit: str, inside: Submodule | None) -> Submodule:
    try:
        return Submodule(name=name, path=f"{inside.path}/{path}" if inside else path, url=url, commit=commit)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise refused(path, f"its {first['loc'][0]} is not valid: {first['msg']}") from None


def _shown(url: str) -> str:
    """A URL for a message, without the credential that it may contain."""
    return repr(re.sub(r"//[^/]*@", "//***@", url)[:_SHOWN])


def refused(path: str, problem: str) -> GitError:
    """The error of a submodule that can't be checked out, now or later."""
    return GitError(GitFault.REFUSED, f"submodule {path[:_SHOWN]!r}: {problem}")
