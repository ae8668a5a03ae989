"""Several servers of one herd on this machine: how many, where each is, how they find one another, which are well."""

import asyncio
import json
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, BusError
from sandherd.bus.connection import Identity as Voice
from sandherd.bus.identity import write_secret
from sandherd.bus.identity.keys import read_claims
from sandherd.bus.setup_permissions import HEALTH, WATCHER_INBOX
from sandherd.stack.child import Child, ChildFailedError
from sandherd.stack.nats import CLUSTER, Membership, quiet_ports

SIZES: Final = (1, 3)
"""One server, or as many as may lose one and still agree."""
WATCHER: Final = "watcher.creds"
PROBE: Final = "probe.creds"
_ANSWER: Final = 1.0
_AGAIN: Final = 0.2
_ELECTION: Final = 60.0
"""How long servers that were all started anew may take to agree on who leads what, in seconds; it is about ten."""


class SizeError(Exception):
    """A herd can't have so many servers; the message says why."""


def directories(home: Path, size: int) -> list[Path]:
    """Where each server keeps its files; the name of the directory is the name of the part."""
    return [home / "nats"] if size == 1 else [home / f"nats-{number}" for number in range(1, size + 1)]


def is_broker(part: str) -> bool:
    """Whether a part of a stack is one of its nats-servers."""
    return part.partition("-")[0] == "nats"


def server_name(part: str) -> str:
    """What a server of a cluster is called among the others."""
    return part.replace("nats", CLUSTER, 1)


def size_of(home: Path) -> int | None:
    """How many servers the herd in this home was made with; None if none has been made yet."""
    return next((size for size in SIZES if directories(home, size)[0].is_dir()), None)


def size_for(home: Path, wanted: int | None) -> int:
    """How many servers are to run. Raises `SizeError` for a number that there is not, or another than there were.

    A server that joins others throws away the streams that they do not know of, and one that is alone again knows of
    none of theirs: what was stored would be gone.
    """
    held = size_of(home)
    if wanted is None or wanted == held:
        return held or 1
    if wanted not in SIZES:
        raise SizeError(f"a herd has {' or '.join(map(str, SIZES))} nats-servers, and not {wanted}")
    if held is not None:
        raise SizeError(
            f"the herd in {home} was made with {_servers(held)} and can't be changed to {_servers(wanted)}: "
            "what its streams hold would be lost"
        )
    return wanted


def memberships(size: int, password: str) -> list[Membership | None]:
    """The place of each server; one that is alone has none."""
    if size == 1:
        return [None]
    routes = quiet_ports(size)
    return [
        Membership(
            name=server_name(f"nats-{number}"), route=route, others=tuple(set(routes) - {route}), password=password
        )
        for number, route in enumerate(routes, 1)
    ]


def route_password(path: Path) -> str:
    """What opens the routes between the servers: made once, known to them alone."""
    if not path.exists():
        write_secret(path, secrets.token_hex(32))
    return path.read_text()


def newest_token(servers: Sequence[Path], account: str) -> str | None:
    """The account's token as the server has it that was told last; None if none has it yet."""
    held = [path.read_text() for path in (server / "jwt" / f"{account}.jwt" for server in servers) if path.exists()]
    return max(held, key=_age, default=None)


def _age(token: str) -> tuple[int, int]:
    """When it was made. Of two that were made in one second, the one that takes back more is the later one."""
    claims = read_claims(token)
    return int(claims["iat"]), len(claims["nats"].get("revocations") or {})


def _servers(count: int) -> str:
    return "one nats-server" if count == 1 else f"{count} nats-servers"


async def each(runs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run these side by side, each to its end; then raise what the first of them raised that failed."""
    ended = await asyncio.gather(*runs, return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


async def ended_early(child: Child) -> None:
    """Wait until a server has ended, which it should not. Raises `ChildFailedError`."""
    await child.gone()
    raise ChildFailedError(f"nats-server ended with status {child.status} while it was being provisioned")


async def patiently(run: Callable[[], Coroutine[Any, Any, object]], size: int) -> None:
    """Run it, among several servers again for as long as they may take to elect leaders. Raises what it raised last."""
    deadline = asyncio.get_running_loop().time() + (_ELECTION if size > 1 else 0)
    while True:
        try:
            await run()
            return
        except (TimeoutError, nats.errors.Error):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_AGAIN)


async def ask_health(url: str, credentials: Path, count: int) -> dict[str, str]:
    """What each server says of itself, by its name: `ok`, or what is wrong. One that does not answer is not in it.

    A server is well when it has caught up with the others in every stream that it keeps.
    """
    found: dict[str, str] = {}
    everybody = asyncio.Event()

    async def hear(msg: Msg) -> None:
        answer: dict[str, Any] = json.loads(msg.data)
        health = answer.get("data") or answer.get("error") or {}
        found[answer["server"]["name"]] = str(health.get("error") or health.get("status") or "does not say")
        if len(found) == count:
            everybody.set()

    try:
        async with (
            asyncio.timeout(2 * _ANSWER),
            Bus.open(url, name="watcher", identity=Voice.file(credentials), inbox=WATCHER_INBOX, patience=0) as bus,
        ):
            await bus.client.subscribe(inbox := bus.client.new_inbox(), cb=hear)
            await bus.client.publish(HEALTH, b"", inbox)
            async with asyncio.timeout(_ANSWER):
                await everybody.wait()
    except (TimeoutError, BusError, nats.errors.Error, OSError):
        return found  # who has not answered by now is not in it
    return found
