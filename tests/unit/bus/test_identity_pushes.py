"""Revocations that arrive while one is pushed are pushed together, and none is reported before it is pushed."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.bus.identity import Key, KeyKind, revocation
from sandherd.bus.identity.material import revocations
from sandherd.bus.identity.revocation import AccountRevoker, RevocationFailedError

NOW = datetime(2026, 11, 20, tzinfo=UTC)
END = NOW + timedelta(hours=1)
ACCOUNT = {"sub": "A1", "name": "HERD", "nats": {"type": "account", "version": 2}}


class List:
    """The list of one spawner."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = {}
        self.changes = 0

    async def change(self, new: Mapping[str, int], _now: int) -> tuple[dict[str, int], int]:
        self.keys |= new
        self.changes += 1
        return dict(self.keys), self.changes

    async def read(self) -> tuple[dict[str, int], int]:
        return dict(self.keys), self.changes


class System:
    """A broker that accepts a token once it may, or refuses it."""

    def __init__(self) -> None:
        self.accepts = asyncio.Event()
        self.received = asyncio.Event()
        self.refusals = 0
        self.pushed: list[set[str]] = []

    async def request(self, _subject: str, token: bytes, timeout: float) -> bytes:
        assert timeout > 0
        self.received.set()
        await self.accepts.wait()
        if self.refusals:
            self.refusals -= 1
            return b'{"error": {"code": 500}}'
        self.pushed.append(set(revocations(token.decode())))
        return b'{"data": {"code": 200}}'


@pytest.fixture
def system() -> System:
    return System()


@pytest.fixture
def revoker(system: System) -> AccountRevoker:
    shared: Any = List()
    broker: Any = system
    return AccountRevoker(broker, shared, ACCOUNT, Key.new(KeyKind.OPERATOR))


async def revoke(revoker: AccountRevoker, *keys: str) -> None:
    await revoker.revoke(dict.fromkeys(keys, END), NOW)


async def waiting(revoker: AccountRevoker, system: System, *keys: str) -> list[asyncio.Task[None]]:
    """One revocation that is being pushed, and the others, which wait for it."""
    tasks = [asyncio.create_task(revoke(revoker, keys[0]))]
    await system.received.wait()
    tasks += [asyncio.create_task(revoke(revoker, key)) for key in keys[1:]]
    await asyncio.sleep(0)
    return tasks


async def test_revocations_that_wait_are_pushed_together(revoker: AccountRevoker, system: System) -> None:
    """Of five, one is pushed, and then the four that arrived meanwhile; each returns after its key was pushed."""
    tasks = await waiting(revoker, system, *"abcde")
    assert not any(task.done() for task in tasks)
    system.accepts.set()
    await asyncio.gather(*tasks)
    assert system.pushed == [{"a"}, set("abcde")]


async def test_refused_push_fails_for_one_and_is_repeated_for_the_others(
    revoker: AccountRevoker, system: System
) -> None:
    """The caller whose push fails has to repeat it; the keys of those that wait are pushed nevertheless."""
    system.refusals = 2
    tasks = await waiting(revoker, system, *"abc")
    system.accepts.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [RevocationFailedError, RevocationFailedError, type(None)]
    assert system.pushed == [set("abc")]


async def test_cancelled_revocation_leaves_the_others(revoker: AccountRevoker, system: System) -> None:
    """A caller that gives up during its push, or while it waits, prevents no other key from being pushed."""
    tasks = await waiting(revoker, system, *"abcd")
    tasks[0].cancel()
    tasks[1].cancel()
    system.accepts.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert {"c", "d"} <= system.pushed[-1]


async def test_pushes_rest_in_proportion_to_their_duration(
    revoker: AccountRevoker, system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a long list does not occupy the spawner; the rest has a maximum."""
    now, rests = [0.0], list[float]()

    async def sleep(seconds: float) -> None:
        rests.append(seconds)
        now[0] += seconds

    async def push(_keys: Mapping[str, int], _moment: int) -> None:
        now[0] += durations.pop(0)

    durations = [0.01, 5.0, 0.0]
    system.accepts.set()
    monkeypatch.setattr(revocation, "_clock", lambda: now[0])
    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(revoker, "_push", push)
    for key in "abc":
        await revoke(revoker, key)
    assert rests == [0.0, pytest.approx(0.03), pytest.approx(0.25)]
