"""Reports which forges have a credential, and its source, but never its value."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from sandherd.contracts.requests import FORGE_CREDENTIALS
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.forges.configuration import app_name, stored_tokens
from spawner.forges.faults import ForgeError
from spawner.forges.locations import ForgeHost
from spawner.repositories.credential_file import read_credentials
from spawner.repositories.git import GitError
from spawner.repositories.ssh_signatures import read_signing_key

_log: Final = logs.get("forges")


def log_credentials(hosts: Iterable[ForgeHost], settings: Settings) -> None:
    """Log the origin of each host that has a credential now, with the source of each of its credentials."""
    for host, source in _origins_and_sources(hosts, settings):
        _log.info("credential of a forge found", host=host, credential=source)


async def credential_problems(hosts: Iterable[ForgeHost], settings: Settings) -> Mapping[str, str | None]:
    """The problem of the requirement `FORGE_CREDENTIALS`, such as files that can't be read; None if there is none."""
    problems = await asyncio.to_thread(_problems, hosts, settings)
    return {FORGE_CREDENTIALS: "; ".join(problems) or None}


def _origins_and_sources(hosts: Iterable[ForgeHost], settings: Settings) -> dict[tuple[str, str], None]:
    """Pairs of an origin and a source of its credential, in order. The origins include hosts that are not forges."""
    pairs: dict[tuple[str, str], None] = {}
    for origin in _origins(settings):
        pairs[origin, "SANDHERD_GIT_CREDENTIALS"] = None
    for host in hosts:
        app = app_name(host, settings)
        if app is not None:
            pairs[host.origin, app] = None
        stored = stored_tokens(host, settings)
        pairs |= dict.fromkeys(
            (host.origin, name) for name, read in stored.items() if _problem(read) is None and read()
        )
    return pairs


def _origins(settings: Settings) -> list[str]:
    try:
        return [one.origin for one in read_credentials(settings.git_credentials)]
    except GitError:
        return []  # `credential_problems` reports it


def _problems(hosts: Iterable[ForgeHost], settings: Settings) -> list[str]:
    reads = [read for host in hosts for read in stored_tokens(host, settings).values()]
    problems = [problem for problem in map(_problem, reads) if problem is not None]
    key = settings.github_app_key
    if settings.github_app_id is not None and key is not None:
        try:
            key.read_bytes()
        except OSError as error:
            problems.append(f"the file of SANDHERD_GITHUB_APP_KEY can't be read ({type(error).__name__})")
    return list(dict.fromkeys([*problems, *_signing_problems(settings)]))


def _signing_problems(settings: Settings) -> Iterator[str]:
    key = settings.signing_key
    if key is None:
        return
    try:
        if settings.signing_committer is not None:
            read_signing_key(key)
        elif key.read_bytes():
            yield "SANDHERD_SIGNING_COMMITTER is not set: commits are not signed"
    except (GitError, OSError) as error:
        yield (
            str(error)
            if isinstance(error, GitError)
            else f"SANDHERD_SIGNING_KEY can't be read ({type(error).__name__})"
        )


def _problem(read: Callable[[], str | None]) -> str | None:
    try:
        read()
    except ForgeError as error:
        return str(error)
    return None
