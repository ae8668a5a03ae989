"""The number of keys for which a sandbox gets credentials is limited."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import GetCredential
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.contracts.states import SandboxState
from sandherd.service.service import IncomingRequest
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.sandboxes.sandbox_transitions import MAX_KEYS

LIFE = 3600.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Live:
    """Stores one record, and stands in for the mint."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, tzinfo=UTC)
        self.record = SandboxRecord(
            project="p1", sandbox="sbx-1", task=None, runtime="process", limits=SandboxLimits(), spec=SandboxSpec(),
            requested_at=self.time, state=SandboxState.RUNNING, fence=7,
        )  # fmt: skip
        self.sandboxes = self
        self.made: list[str] = []
        self.expiries: list[datetime] = []
        self.slow = timedelta()
        """How long a write takes."""

    def now(self) -> datetime:
        return self.time

    async def change(self, _key: str, decide: Callable[[SandboxRecord, int], SandboxRecord]) -> Any:
        self.record = decide(self.record, 7)
        self.time += self.slow
        return self

    async def load_task(self, _sandbox: SandboxRecord) -> None:
        return None

    def mint_worker(self, _project: str, _sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        self.made.append(public_key)
        self.expiries.append(self.time + timedelta(seconds=life))
        return "token", self.expiries[-1]


@pytest.fixture
def live() -> Live:
    return Live()


async def ask(live: Live, number: int) -> None:
    question = GetCredential(public_key=f"U{LETTERS[number] * 55}", fence=7)
    credentials = Credentials(live, live, LIFE)  # type: ignore[arg-type]  # what is used of them
    await credentials.grant(IncomingRequest(question, {"project": "p1", "sandbox": "sbx-1"}))


async def test_key_over_the_limit_is_unavailable(live: Live) -> None:
    """No credential is issued and nothing is written. The error is not `refused`, after which a worker would end."""
    for number in range(MAX_KEYS):
        await ask(live, number)
    before = live.record
    with pytest.raises(ContractError) as caught:
        await ask(live, MAX_KEYS)
    assert caught.value.problem.code is Code.UNAVAILABLE
    assert (live.record, len(live.made)) == (before, MAX_KEYS)


async def test_known_key_is_always_renewed(live: Live) -> None:
    """A sandbox with the maximum of keys may renew too."""
    for number in range(MAX_KEYS):
        await ask(live, number)
    for _ in range(2 * MAX_KEYS):
        await ask(live, 3)
    assert len(live.record.keys) == MAX_KEYS


async def test_expired_keys_free_their_places(live: Live) -> None:
    """Expired keys need not be revoked."""
    for number in range(MAX_KEYS):
        await ask(live, number)
    live.time += timedelta(seconds=LIFE + 2)
    await ask(live, MAX_KEYS)
    assert [key.public_key[1] for key in live.record.keys] == [LETTERS[MAX_KEYS]]


async def test_token_expires_before_the_record_of_it(live: Live) -> None:
    """This holds also if recording the key took long: a key that is recorded as expired is not revoked."""
    live.slow = timedelta(seconds=30)
    await ask(live, 1)
    assert live.expiries[0] < live.record.keys[0].expires_at
