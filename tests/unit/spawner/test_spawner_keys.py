"""For how many keys a sandbox gets credentials: a stranger who asks for ever fills neither its record nor a list."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sandherd.bus.service import Asked
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import AskCredential
from sandherd.contracts.specs import Limits, SandboxSpec
from sandherd.contracts.states import SandboxState
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.decisions import MOST_KEYS
from spawner.sandboxes.record import SandboxRecord

LIFE = 3600.0
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"


class Live:
    """Keeps one record, and plays the part of the mint."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, tzinfo=UTC)
        self.record = SandboxRecord(
            project="p1", sandbox="sbx-1", task=None, runtime="process", limits=Limits(), spec=SandboxSpec(),
            requested_at=self.time, state=SandboxState.RUNNING, fence=7,
        )  # fmt: skip
        self.sandboxes = self
        self.made: list[str] = []

    def now(self) -> datetime:
        return self.time

    async def change(self, _key: str, decide: Callable[[SandboxRecord, int], SandboxRecord]) -> Any:
        self.record = decide(self.record, 7)
        return self

    async def load_task(self, _sandbox: SandboxRecord) -> None:
        return None

    def mint_worker(self, _project: str, _sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        self.made.append(public_key)
        return "token", self.time + timedelta(seconds=life)


@pytest.fixture
def live() -> Live:
    return Live()


async def ask(live: Live, number: int) -> None:
    question = AskCredential(public_key=f"U{LETTERS[number] * 55}", fence=7)
    credentials = Credentials(live, live, LIFE)  # type: ignore[arg-type]  # what is used of them
    await credentials.grant(Asked(question, {"project": "p1", "sandbox": "sbx-1"}))


async def test_one_key_too_many_is_told_to_wait(live: Live) -> None:
    """No credential is made and nothing is written; it is no refusal, after which a worker would end."""
    for number in range(MOST_KEYS):
        await ask(live, number)
    before = live.record
    with pytest.raises(ContractError) as caught:
        await ask(live, MOST_KEYS)
    assert caught.value.problem.code is Code.UNAVAILABLE
    assert (live.record, len(live.made)) == (before, MOST_KEYS)


async def test_a_key_that_is_known_is_renewed_for_ever(live: Live) -> None:
    """Also by a sandbox that has as many as may be."""
    for number in range(MOST_KEYS):
        await ask(live, number)
    for _ in range(2 * MOST_KEYS):
        await ask(live, 3)
    assert len(live.record.keys) == MOST_KEYS


async def test_keys_that_have_expired_make_room(live: Live) -> None:
    """They need not be taken back."""
    for number in range(MOST_KEYS):
        await ask(live, number)
    live.time += timedelta(seconds=LIFE + 2)
    await ask(live, MOST_KEYS)
    assert [key.public_key[1] for key in live.record.keys] == [LETTERS[MOST_KEYS]]
