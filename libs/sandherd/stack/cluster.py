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
"""One server, or the smallest cluster that can lose one and still has a majority."""
PROBE: Final = "probe.creds"
_AGAIN: Final = 0.2
_ELECTION: Final = 60.0
"""How long restarted servers may take to elect the leaders, in seconds; it usually takes about ten."""


class SizeError(Exception):
    """A herd can't have this number of servers; the message states the reason."""


def directories(home: Path, size: int) -> list[Path]:
    """The directory of each server; its name is the name of the part."""
    return [home / "nats"] if size == 1 else [home / f"nats-{number}" for number in range(1, size + 1)]


def size_of(home: Path) -> int | None:
    """The number of servers of the herd in this home; None if there is no herd yet."""
    return next((size for size in SIZES if directories(home, size)[0].is_dir()), None)


def size_for(home: Path, wanted: int | None) -> int:
    """How many servers to run. Raises `SizeError` for an unsupported number, or one that differs from the herd's.

    A server that joins others deletes the streams that they do not know, and a server that is alone again knows none
    of theirs: the stored data would be lost.
    """
    held = size_of(home)
    if wanted is None or wanted == held:
        return held or 1
    if wanted not in SIZES:
        raise SizeError(f"a herd has {' or '.join(map(str, SIZES))} nats-servers, not {wanted}")
    if held is not None:
        raise SizeError(
            f"the herd in {home} was created with {_servers(held)} and can't be changed to {_servers(wanted)}: "
            "what its streams hold would be lost"
        )
    return wanted


def memberships(size: int, password: str) -> "list[ClusterMember | None]":
    """The cluster membership of each server; None for a single one."""
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
    """The password of the routes between the servers: created once, and known to them alone."""
    if not path.exists():
        write_secret(path, secrets.token_hex(32))
    return path.read_text()


def newest_token(servers: Sequence[Path], account: str) -> str | None:
    """The latest of the account's tokens that the servers have stored; None if none has one.

    A server does not replace the file, it writes over it: one that writes now, or was killed meanwhile, has no token.
    """
    aged = [found for server in servers if (found := _aged(server / "jwt" / f"{account}.jwt"))]
    return max(aged)[1] if aged else None


def newest_tokens(servers: Sequence[Path], identity: "HerdIdentity") -> tuple[str | None, str | None]:
    """The latest tokens of the accounts of sandboxes and of users, which the spawner signs again at a revocation."""
    sandboxes, people = (newest_token(servers, identity.root_key(name).public) for name in ("sandboxes", "people"))
    return sandboxes, people


def _aged(path: Path) -> tuple[tuple[int, int], str] | None:
    """A stored token with its age. Of two of one second, the one that revokes more is the later one."""
    try:
        token = path.read_text()
        claims = read_claims(token)
    except (FileNotFoundError, ValueError):
        return None
    return (int(claims["iat"]), len(claims["nats"].get("revocations") or {})), token


def _servers(count: int) -> str:
    return "one nats-server" if count == 1 else f"{count} nats-servers"


async def each(runs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run these concurrently, each to its end; then raise the first error, in order, if any failed."""
    ended = await asyncio.gather(*runs, return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


async def ended_early(child: ChildProcess) -> None:
    """Wait until a server has ended, which it should not. Raises `ChildFailedError`."""
    await child.wait_ended()
    raise ChildFailedError(f"nats-server ended with status {child.status} while it was being provisioned")


async def patiently(run: Callable[[], Coroutine[Any, Any, object]], size: int) -> None:
    """Run it; with several servers, retry for as long as leader elections may take. Raises the last error."""
    deadline = asyncio.get_running_loop().time() + (_ELECTION if size > 1 else 0)
    while True:
        try:
            await run()
            return
        except (TimeoutError, nats.errors.Error):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_AGAIN)
