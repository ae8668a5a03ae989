"""Quarantined sandboxes of a runtime: only those that the spawner has quarantined stay, and are retried."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import SandboxState
from spawner.records.base_record import IndexEntry
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.quarantine import Quarantine
from spawner.sandboxes.sandbox_record import SandboxRecord

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
        project="p1", sandbox=name, unit=f"unit-of-{name}", runtime="remote", limits=SandboxLimits(), state=state,
        unsaid=unsaid, requested_at=NOW,
    )  # fmt: skip


class Records:
    """Stands in for the records, and collects the calls of the runtime and the reconciler."""

    def __init__(self, *records: SandboxRecord) -> None:
        self.held = {each.key: SimpleNamespace(record=each) for each in records}
        self.sandbox_index, self.sandboxes = self, self
        self.meters = SimpleNamespace(set=lambda *_: None)
        self.name = "remote"
        self.done: list[tuple[str, str]] = []
        self.stubborn: set[str] = set()

    def items(self) -> list[tuple[str, Any]]:
        return [
            (key, IndexEntry(1, held.record.view(), unsaid=False, runtime_unit=held.record.runtime_unit))
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

    async def unquarantine(self, unit: str) -> None:
        self.done.append(("unquarantine", unit))


@pytest.mark.parametrize(("state", "unsaid", "in_vain"), CASES)
def test_only_an_ended_sandbox_with_unpublished_events_is_quarantined(
    state: SandboxState, unsaid: bool, in_vain: bool
) -> None:
    """A sandbox that has not ended is not quarantined."""
    assert sandbox_transitions.is_needlessly_quarantined(record(state, unsaid=unsaid)) is in_vain


@pytest.mark.parametrize(("state", "unsaid", "in_vain"), CASES)
async def test_needlessly_quarantined_sandbox_is_removed(state: SandboxState, unsaid: bool, in_vain: bool) -> None:
    """Each pass removes it; a quarantined one is retried and never removed, and an unknown one is ignored."""
    one = record(state, unsaid=unsaid)
    all_of_it: Any = Records(one)
    stored = Quarantine(all_of_it, all_of_it)
    for _ in range(2):
        await stored.reconcile({one.runtime_unit: all_of_it, "sbx-stranger": all_of_it}, NOW)
    assert all_of_it.done.count(("remove", one.runtime_unit)) == (2 if in_vain else 0)
    assert all_of_it.done.count(("unquarantine", one.runtime_unit)) == (1 if unsaid else 0)
    assert not any(unit == "sbx-stranger" for _, unit in all_of_it.done)


async def test_failed_removal_does_not_prevent_others() -> None:
    """The failed one is tried again in the next pass."""
    two = [record(SandboxState.FAILED, unsaid=False, name=name) for name in ("sbx-1", "sbx-2")]
    all_of_it: Any = Records(*two)
    all_of_it.stubborn.add(two[0].runtime_unit)
    stored = Quarantine(all_of_it, all_of_it)
    await stored.reconcile({one.runtime_unit: all_of_it for one in two}, NOW)
    all_of_it.stubborn.clear()
    await stored.reconcile({one.runtime_unit: all_of_it for one in two}, NOW)
    assert all_of_it.done == [
        ("remove", two[1].runtime_unit),
        ("remove", two[0].runtime_unit),
        ("remove", two[1].runtime_unit),
    ]
