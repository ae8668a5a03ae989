"""Chooses the submodules of a checkout from a repository's `.gitmodules`, whose whole text may be hostile. Pure.

git-submodule(1) is not used, so that no URL or path of a repository is an argument before it was checked here.
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
_MAX_SHOWN_CHARACTERS: Final = 200
_SSH: Final = (
    re.compile(r"ssh://(?:[A-Za-z0-9_.-]+@)?(?P<host>[A-Za-z0-9.-]+)(?::22)?/(?P<path>.+)"),
    re.compile(r"(?:[A-Za-z0-9_.-]+@)?(?P<host>[A-Za-z0-9.-]+):(?P<path>[^/:].*)"),
)
"""Patterns of an ssh URL and of its short form (git-clone(1)). Such a repository is fetched by https."""


def parse_modules(printed: str) -> Mapping[str, Mapping[str, str]]:
    """The `path` and `url` of each submodule by its name, from the output of `git config --null --get-regexp`."""
    submodules: dict[str, dict[str, str]] = {}
    for entry in printed.split("\0"):
        key, _, value = entry.partition("\n")
        name, _, field = key.removeprefix("submodule.").rpartition(".")
        if name and field in {"path", "url"}:
            submodules.setdefault(name, {})[field] = value
    return submodules


def choose_submodules(
    modules: Mapping[str, Mapping[str, str]],
    links: Mapping[str, str],
    *,
    parent: Submodule | None,
    url: str | None,
    origins: Collection[str],
) -> Sequence[Submodule]:
    """The submodules of one repository. Raises `GitError` if one of them may not be fetched.

    `modules`: the entries of `.gitmodules` by name. `links`: the commits of submodules in the tree, by path. Only paths
    in both are submodules. `parent`: the submodule that this repository is; None for the repository of the checkout.
    `url`: the repository's URL, from which relative URLs are resolved. `origins`: the permitted origins.
    """
    submodules = []
    for name, module in sorted(modules.items()):
        path = module.get("path", "")
        if path in links:
            module_url = resolve_url(module.get("url", ""), url, path)
            if origin_of(module_url) not in origins:
                problem = f"its host is not permitted (SANDHERD_REPOSITORY_HOSTS): {_printable(module_url)}"
                raise submodule_error(path, problem)
            submodules.append(_submodule(name, path, module_url, links[path], parent))
    for one, other in itertools.permutations(submodules, 2):
        if other.path == one.path or f"{other.name}/".startswith(f"{one.name}/"):
            raise submodule_error(other.path, f"it shares its path, or the folder of its name, with {one.path!r}")
    return submodules


def check_number(submodules: Sequence[Submodule], depth: int) -> None:
    """Raise `GitError` if there are too many submodules, or too many levels (`depth`)."""
    if len(submodules) > MAX_SUBMODULES:
        raise GitError(GitFault.REFUSED, f"the checkout has more than {MAX_SUBMODULES} submodules")
    if depth > MAX_DEPTH:
        raise submodule_error(submodules[-1].path, f"submodules are nested in more than {MAX_DEPTH} levels")


def resolve_url(text: str, parent: str | None, path: str) -> str:
    """The https or http URL of a submodule whose URL in `.gitmodules` is `text`. Raises `GitError`."""
    if text.startswith(("./", "../")):
        return _relative(text, parent, path)
    for pattern in _SSH:
        if "://" in text and not text.startswith("ssh://"):
            break
        if (match := pattern.fullmatch(text)) is not None:
            return f"https://{match['host']}/{match['path']}"
    if not text.startswith(("https://", "http://")):
        raise submodule_error(path, f"its URL is not an http or https URL: {_printable(text)}")
    return _with_valid_origin(text, path)


def _relative(text: str, parent: str | None, path: str) -> str:
    """The URL as git resolves it (git-submodule(1)): each `../` removes the last part of the repository's own URL."""
    if parent is None:
        raise submodule_error(path, "its URL is relative, and the repository is a local one")
    parts = parent.rstrip("/").split("/")
    rest = text
    while rest.startswith(("./", "../")):
        if rest.startswith("../"):
            parts.pop()
        if len(parts) < len(("https:", "", "host")):
            raise submodule_error(path, f"its relative URL leads out of the host: {_printable(text)}")
        rest = rest.partition("/")[2]
    return _with_valid_origin("/".join((*parts, rest.rstrip("/"))), path)


def _with_valid_origin(url: str, path: str) -> str:
    try:
        origin_of(url)
        valid = bool(urlsplit(url).hostname)
    except ValueError:
        valid = False
    if not valid:
        raise submodule_error(path, f"its URL has no valid host: {_printable(url)}")
    return url


def _submodule(name: str, path: str, url: str, commit: str, parent: Submodule | None) -> Submodule:
    try:
        return Submodule(name=name, path=f"{parent.path}/{path}" if parent else path, url=url, commit=commit)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise submodule_error(path, f"its {first['loc'][0]} is not valid: {first['msg']}") from None


def _printable(url: str) -> str:
    """The URL for a message, truncated, and without the credential that it may contain."""
    return repr(re.sub(r"//[^/]*@", "//***@", url)[:_MAX_SHOWN_CHARACTERS])


def submodule_error(path: str, problem: str) -> GitError:
    """The error of a submodule that can't be checked out, now or later."""
    return GitError(GitFault.REFUSED, f"submodule {path[:_MAX_SHOWN_CHARACTERS]!r}: {problem}")
