"""Finds the forge, the owner and the name of a repository by its URL. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import SplitResult, urlsplit

from spawner.forges.faults import ForgeError, ForgeFault

_SEGMENT: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_MAX_SEGMENTS: Final = 21
"""Maximum parts of a repository's path: GitLab has up to twenty levels of groups, and the project."""
_MAX_URL_CHARACTERS: Final = 2048
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}


class ForgeKind(StrEnum):
    """Kinds of forges."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    """Gitea and Forgejo, which have the same API."""


@dataclass(frozen=True)
class ForgeHost:
    """A forge at `url`, such as `https://git.example.com` or `https://example.com/gitlab`.

    `api` is the URL of its API, if that is not at the default path of its kind.
    """

    kind: ForgeKind
    url: str
    api: str = ""

    @property
    def origin(self) -> str:
        """The scheme, host and port, which select git's credential."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{_authority(parts)}"

    @property
    def api_url(self) -> str:
        """The URL of the API, without a slash at its end."""
        if self.api:
            return self.api.rstrip("/")
        url = self.url.rstrip("/")
        if self.kind is ForgeKind.GITHUB:
            return "https://api.github.com" if url == GITHUB.url else f"{url}/api/v3"
        return f"{url}/api/{'v4' if self.kind is ForgeKind.GITLAB else 'v1'}"


GITHUB: Final = ForgeHost(ForgeKind.GITHUB, "https://github.com")
WELL_KNOWN: Final = (
    GITHUB,
    ForgeHost(ForgeKind.GITLAB, "https://gitlab.com"),
    ForgeHost(ForgeKind.GITEA, "https://codeberg.org"),
)


@dataclass(frozen=True)
class ForgeRepository:
    """A repository of a forge. `owner` is a user, an organization, or GitLab's groups, separated by slashes."""

    host: ForgeHost
    owner: str
    name: str

    @property
    def path(self) -> str:
        """The owner and the name, separated by a slash."""
        return f"{self.owner}/{self.name}"

    def pull_ref(self, number: int) -> str:
        """The git ref of a pull request's head, which also exists after its branch was deleted."""
        return f"refs/{'merge-requests' if self.host.kind is ForgeKind.GITLAB else 'pull'}/{number}/head"

    @property
    def url(self) -> str:
        """The URL of the page for users. The URL for git has `.git` appended."""
        return f"{self.host.url.rstrip('/')}/{self.path}"


def forge_of(url: str, hosts: Iterable[ForgeHost] = ()) -> ForgeRepository | None:
    """The repository of a URL; None if its host is not a forge that is configured in `hosts` or well known.

    Raises `ForgeError` (refused) for a URL at a forge that contains a credential, or no valid owner and name.
    """
    parts = _split(url)
    if parts is None:
        return None
    for host in (*hosts, *WELL_KNOWN):
        forge_parts = urlsplit(host.url)
        folder = forge_parts.path.strip("/")
        if (parts.scheme, _authority(parts)) == (forge_parts.scheme, _authority(forge_parts)):
            path = parts.path.strip("/")
            if not folder or path.startswith(f"{folder}/"):
                return _repository(host, parts, path.removeprefix(folder).strip("/"))
    return None


def _split(url: str) -> SplitResult | None:
    """The parts of an HTTP or HTTPS URL; None for any other URL, and for an invalid one."""
    if len(url) > _MAX_URL_CHARACTERS or not url.isascii() or not url.isprintable():
        return None
    try:
        parts = urlsplit(url)
        valid = parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if valid else None


def _authority(parts: SplitResult) -> str:
    """The host and port, without the scheme's default port."""
    host = (parts.hostname or "").lower().removesuffix(".")
    host = f"[{host}]" if ":" in host else host
    return host if parts.port in {None, _DEFAULT_PORTS.get(parts.scheme)} else f"{host}:{parts.port}"


def _repository(host: ForgeHost, parts: SplitResult, path: str) -> ForgeRepository:
    if "@" in parts.netloc:
        raise ForgeError(
            ForgeFault.REFUSED, "the repository's URL contains a credential: remove it, and configure a token"
        )
    segments = path.removesuffix(".git").split("/")
    count = len(segments)
    has_valid_count = 2 <= count <= _MAX_SEGMENTS if host.kind is ForgeKind.GITLAB else count == 2
    if not has_valid_count or parts.query or parts.fragment or not all(_is_valid(segment) for segment in segments):
        raise ForgeError(ForgeFault.REFUSED, f"the repository's URL has no valid owner and name at {host.url}")
    return ForgeRepository(host, "/".join(segments[:-1]), segments[-1])


def _is_valid(segment: str) -> bool:
    return bool(_SEGMENT.fullmatch(segment)) and segment not in {".", "..", "-"}
