"""What a runtime shows as put aside: only what we have put there stays, and is tried again."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.contracts.specs import Limits
from sandherd.contracts.states import SandboxState
from spawner.records.known import Known
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.sandboxes import decisions
from spawner.sandboxes.kept import Kept
from spawner.sandboxes.record import SandboxRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)
CASES = [
    (SandboxState.TERMINATED, True, False),
    (SandboxState.TERMINATED, False, True),
    (SandboxState.FAILED, False, True),
    (SandboxState.RUNNING, False, False),
    (SandboxState.STOPPING, False, False),
]


def record(state: SandboxState, *, unsaid: bool, name: str = "sbx-1") -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox=name, unit=f"unit-of-{name}", runtime="remote", limits=Limits(), state=state,
        unsaid=unsaid, requested_at=NOW,
    )  # fmt: skip


class Records:
    """All that is asked of the records here, and what was asked of the runtime and the keeper."""

    def __init__(self, *records: SandboxRecord) -> None:
        self.held = {each.key: SimpleNamespace(record=each) for each in records}
        self.sandbox_index, self.sandboxes = self, self
        self.meters = SimpleNamespace(set=lambda *_: None)
        self.name = "remote"
        self.done: list[tuple[str, str]] = []
        self.stubborn: set[str] = set()

    def items(self) -> list[tuple[str, Any]]:
        return [
            (key, Known(1, held.record.view(), unsaid=False, alias=held.record.alias))
            for key, held in self.held.items()
        ]

    async def load(self, key: str) -> Any:
        return self.held.get(key)

    async def change_sandbox(self, key: str, _decide: Any) -> None:
        self.done.append(("change", key))

    def wake(self, key: str) -> None:
        self.done.append(("wake", key))

    async def remove(self, unit: str) -> None:
        if unit in self.stubborn:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "not now")
        self.done.append(("remove", unit))

    async def take_back(self, unit: str) -> None:
        self.done.append(("take back", unit))


@pytest.mark.parametrize(("state", "unsaid", "in_vain"), CASES)
def test_only_what_ended_with_something_unsaid_lies_aside(state: SandboxState, unsaid: bool, in_vain: bool) -> None:
    """What has not ended is its keeper's to judge."""
    assert decisions.lies_in_vain(record(state, unsaid=unsaid)) is in_vain


@pytest.mark.parametrize(("state", "unsaid", "in_vain"), CASES)
async def test_what_nobody_has_put_aside_is_removed(state: SandboxState, unsaid: bool, in_vain: bool) -> None:
    """In every pass; what we have put there is never removed, but tried again, and a stranger is let be."""
    one = record(state, unsaid=unsaid)
    all_of_it: Any = Records(one)
    kept = Kept(all_of_it, all_of_it)
    for _ in range(2):
        await kept.tend({one.alias: all_of_it, "sbx-stranger": all_of_it}, NOW)
    assert all_of_it.done.count(("remove", one.alias)) == (2 if in_vain else 0)
    assert all_of_it.done.count(("take back", one.alias)) == (1 if unsaid else 0)
    assert not any(unit == "sbx-stranger" for _, unit in all_of_it.done)


async def test_what_can_not_be_removed_keeps_no_other_from_being_removed() -> None:
    """It is tried again in the next pass."""
    two = [record(SandboxState.FAILED, unsaid=False, name=name) for name in ("sbx-1", "sbx-2")]
    all_of_it: Any = Records(*two)
    all_of_it.stubborn.add(two[0].alias)
    kept = Kept(all_of_it, all_of_it)
    await kept.tend({one.alias: all_of_it for one in two}, NOW)
    all_of_it.stubborn.clear()
    await kept.tend({one.alias: all_of_it for one in two}, NOW)
    assert all_of_it.done == [("remove", two[1].alias), ("remove", two[0].alias), ("remove", two[1].alias)]
