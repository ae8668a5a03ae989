"""The nats-servers of one herd on this machine: their number, directories, and routes to one another."""

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import nats.errors

from sandherd.bus.identity import write_secret
from sandherd.bus.identity.keys import read_claims
from sandherd.stack.child_process import ChildFailedError, ChildProcess
from sandherd.stack.server_health import server_name

if TYPE_CHECKING:
    from sandherd.bus.identity import HerdIdentity
    from sandherd.stack.nats import ClusterMember

SIZES: Final = (1, 3)
"""The possible numbers of servers: one, or the smallest cluster that has a majority without one of its servers."""
PROBE: Final = "probe.creds"
"""The name of the file with the credential that may publish the probe of `store_guard`."""
_RETRY_SECONDS: Final = 0.2
_ELECTION_SECONDS: Final = 60.0
"""Maximum time in seconds in which restarted servers elect the leaders of streams. It usually takes about ten."""


class SizeError(Exception):
    """A herd can't have this number of servers; the message states the reason."""


def directories(home: Path, size: int) -> list[Path]:
    """The directories of the servers. The name of each is also the name of its part of the stack."""
    return [home / "nats"] if size == 1 else [home / f"nats-{number}" for number in range(1, size + 1)]


def size_of(home: Path) -> int | None:
    """The number of servers of the herd in this home; None if there is no herd yet."""
    return next((size for size in SIZES if directories(home, size)[0].is_dir()), None)


def size_for(home: Path, requested: int | None) -> int:
    """The number of servers to run: `requested`, or that of the existing herd, or one.

    Raises `SizeError` for an unsupported number, or one that differs from the herd's: stored data would be lost. A
    server that joins a cluster deletes streams that the cluster does not have, and a server that leaves one has none of
    its streams.
    """
    existing = size_of(home)
    if requested is None or requested == existing:
        return existing or 1
    if requested not in SIZES:
        raise SizeError(f"a herd has {' or '.join(map(str, SIZES))} nats-servers, not {requested}")
    if existing is not None:
        raise SizeError(
            f"the herd in {home} was created with {_servers_text(existing)} and can't be changed to "
            f"{_servers_text(requested)}: the messages in its streams would be lost"
        )
    return requested


def memberships(size: int, password: str) -> "list[ClusterMember | None]":
    """The cluster membership of each server; None for the server of a herd that has only one."""
    from sandherd.stack.nats import ClusterMember, free_ports  # only needed to start servers

    if size == 1:
        return [None]
    routes = free_ports(size)
    return [
        ClusterMember(
            name=server_name(f"nats-{number}"), route=route, others=tuple(set(routes) - {route}), password=password
        )
        for number, route in enumerate(routes, 1)
    ]


def route_password(path: Path) -> str:
    """The password of the routes between the servers, from this file. It is created if the file is missing."""
    if not path.exists():
        write_secret(path, secrets.token_hex(32))
    return path.read_text()


def newest_token(servers: Sequence[Path], account: str) -> str | None:
    """The latest JWT of an account that any of the servers has stored; None if no server has one.

    A server overwrites the file in place, so the file of a server that is writing, or was killed then, is invalid.
    """
    tokens = [token for server in servers if (token := _ordered_token(server / "jwt" / f"{account}.jwt"))]
    return max(tokens)[1] if tokens else None


def newest_tokens(servers: Sequence[Path], identity: "HerdIdentity") -> tuple[str | None, str | None]:
    """The latest stored JWTs of the accounts of sandboxes and of users, which change at each revocation."""
    sandboxes, users = (newest_token(servers, identity.root_key(name).public) for name in ("sandboxes", "people"))
    return sandboxes, users


def _ordered_token(path: Path) -> tuple[tuple[int, int], str] | None:
    """The sort key and the text of a stored token. The key is the second of its issue, then its number of revocations.

    None if the file is missing or invalid.
    """
    try:
        token = path.read_text()
        claims = read_claims(token)
    except (FileNotFoundError, ValueError):
        return None
    return (int(claims["iat"]), len(claims["nats"].get("revocations") or {})), token


def _servers_text(count: int) -> str:
    return "one nats-server" if count == 1 else f"{count} nats-servers"


async def run_all(coroutines: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines concurrently until all have ended. Then raise the error of the first one that failed, if any."""
    results = await asyncio.gather(*coroutines, return_exceptions=True)
    for error in results:
        if error is not None:
            raise error


async def raise_on_end(child: ChildProcess) -> None:
    """Wait until a server that should keep running has ended, and raise `ChildFailedError`."""
    await child.wait_ended()
    raise ChildFailedError(f"nats-server ended with status {child.status} while it was being provisioned")


async def retry_during_election(run: Callable[[], Coroutine[Any, Any, object]], size: int) -> None:
    """Call `run`. With several servers, retry it while they may be electing leaders. Raises the last error."""
    deadline = asyncio.get_running_loop().time() + (_ELECTION_SECONDS if size > 1 else 0)
    while True:
        try:
            await run()
            return
        except (TimeoutError, nats.errors.Error):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)
