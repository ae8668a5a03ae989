"""The file of `SANDHERD_GIT_CREDENTIALS`, in the format of git-credential-store(1)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from spawner.repositories.git import GitCredential, GitError, GitFault

_MAX_CHARACTERS: Final = 1024 * 1024
"""Maximum characters of the file that are read."""


def origin_of(url: str) -> str:
    """The scheme, host and port of a URL, in lower case and without the scheme's default port."""
    parts = urlsplit(url)
    default_port = {"https": 443, "http": 80}.get(parts.scheme)
    port = f":{parts.port}" if parts.port not in (None, default_port) else ""
    return f"{parts.scheme}://{parts.hostname}{port}".lower()


def host_of(repository: str | None) -> str | None:
    """The origin of a repository's URL; None for a local repository, which has a label instead."""
    return origin_of(repository) if repository is not None and "://" in repository else None


def credential_for(origin: str, file: Path | None) -> GitCredential | None:
    """The first credential of the file for this origin, or None. Raises `GitError`."""
    return next((one for one in read_credentials(file) if one.origin == origin), None)


def read_credentials(file: Path | None) -> Iterator[GitCredential]:
    """The credentials in the file, if there is one. Raises `GitError`. Its message contains no part of the file."""
    if file is None:
        return
    try:
        with file.open(encoding="utf-8") as opened:
            lines: Sequence[str] = opened.read(_MAX_CHARACTERS).splitlines()
    except (OSError, UnicodeError) as error:
        problem = f"the file of SANDHERD_GIT_CREDENTIALS can't be read ({type(error).__name__})"
        raise GitError(GitFault.UNAVAILABLE, problem) from None
    for line in lines:
        try:
            parts = urlsplit(line.strip())
            origin = origin_of(line.strip())
        except ValueError:
            continue  # a line that is not a URL names no host
        if parts.username and parts.password:
            yield GitCredential(origin, unquote(parts.username), unquote(parts.password))
