"""The forges in the settings: their hosts, and the sources of their tokens. Files are read for each use.

The first of these sources that has a token for a repository is used: a line of `SANDHERD_GIT_CREDENTIALS`, the GitHub
App, a file in the folder `SANDHERD_FORGE_TOKENS`, `GITHUB_TOKEN`.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sandherd.contracts.errors import Code, ContractError
from sandherd.settings import Settings
from spawner.forges.credentials import StoredTokens, TokenSource
from spawner.forges.factory import Forges
from spawner.forges.faults import ForgeError, ForgeFault
from spawner.forges.locations import GITHUB, ForgeHost, ForgeKind
from spawner.repositories.credential_file import credential_for
from spawner.repositories.git import GitError

_MAX_TOKEN_CHARACTERS: Final = 64 * 1024
_FORGEJO: Final = "forgejo"
ReadToken = Callable[[], str | None]
"""Returns a stored token; None if there is none."""


def forges_of(settings: Settings) -> Forges:
    """The forges in the settings, and the well-known ones. The caller has to close them.

    Raises `ContractError` for a GitHub App without a key.
    """
    forges = Forges(_hosts(settings))
    for host in forges.hosts:
        forges.add_sources(host, _sources(forges, host, settings))
    return forges


def stored_tokens(host: ForgeHost, settings: Settings) -> dict[str, ReadToken]:
    """The sources of stored tokens by name, in order of precedence. A source returns None without a token for the host.

    A source raises `ForgeError` (unavailable) if its file can't be read.
    """
    sources: dict[str, ReadToken] = {}
    if settings.git_credentials is not None:
        sources["SANDHERD_GIT_CREDENTIALS"] = partial(_token_of_line, host, settings.git_credentials)
    if settings.forge_tokens is not None:
        sources["SANDHERD_FORGE_TOKENS"] = partial(_token_of_file, host, settings.forge_tokens)
    if host == GITHUB and settings.github_token is not None:
        token = settings.github_token
        sources["GITHUB_TOKEN"] = lambda: token
    return sources


def app_name(host: ForgeHost, settings: Settings) -> str | None:
    """The name of a host's GitHub App for messages; None if the host has none."""
    has_app = settings.github_app_id is not None and host == _app_host(settings)
    return f"GitHub App {settings.github_app_id}" if has_app else None


def _hosts(settings: Settings) -> Iterator[ForgeHost]:
    for address in settings.forges:
        kind, _, url = address.partition("=")
        yield ForgeHost(ForgeKind.GITEA if kind == _FORGEJO else ForgeKind(kind), url.rstrip("/"))
    if settings.github_app_id is not None:
        yield _app_host(settings)


def _app_host(settings: Settings) -> ForgeHost:
    return ForgeHost(ForgeKind.GITHUB, settings.github_app_host.rstrip("/"))


def _sources(forges: Forges, host: ForgeHost, settings: Settings) -> Iterator[TokenSource]:
    stored = {name: StoredTokens(read, name) for name, read in stored_tokens(host, settings).items()}
    first = stored.pop("SANDHERD_GIT_CREDENTIALS", None)
    if first is not None:
        yield first
    if app_name(host, settings) is not None:
        yield _app_tokens(forges, host, settings)
    yield from stored.values()


def _app_tokens(forges: Forges, host: ForgeHost, settings: Settings) -> TokenSource:
    from spawner.forges.github_app import PERMISSIONS, GithubApp

    if settings.github_app_key is None:
        raise ContractError(
            Code.INVALID_FIELD,
            "the GitHub App has no private key: SANDHERD_GITHUB_APP_KEY is not set",
            field="github_app_key",
            remedy="create a private key on the App's page, and set the path of its file",
        )
    permissions = {**PERMISSIONS, **({"workflows": "write"} if settings.github_app_workflows else {})}
    app = GithubApp(str(settings.github_app_id), settings.github_app_key, permissions, settings.github_app_installation)
    return forges.app_tokens(host, app)


def _token_of_line(host: ForgeHost, file: Path) -> str | None:
    try:
        credential = credential_for(host.origin, file)
    except GitError as error:
        raise ForgeError(ForgeFault.UNAVAILABLE, str(error)) from None
    return credential.password if credential else None


def _token_of_file(host: ForgeHost, folder: Path) -> str | None:
    file = folder / urlsplit(host.origin).netloc.replace(":", "_")
    try:
        with file.open(encoding="utf-8") as content:
            return content.read(_MAX_TOKEN_CHARACTERS).strip() or None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeError) as error:
        kind = type(error).__name__
    raise ForgeError(ForgeFault.UNAVAILABLE, f"the file {file.name} of SANDHERD_FORGE_TOKENS can't be read ({kind})")
