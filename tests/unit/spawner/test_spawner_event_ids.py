"""Ids of the spawner's events: nobody can compute one before it is published."""

from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sandherd.bus.consuming import Delivery
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.derived_ids import DerivedIds
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.lifecycle import SandboxRefused, SandboxRunning
from sandherd.contracts.names import derived_uuid, new_uuid
from spawner.records.record import Record, read_said
from spawner.refusing import refusal_event
from spawner.runtimes.contract import Seen
from spawner.sandboxes.orphans import Ward

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
OURS, ANOTHER = DerivedIds(b"of the spawners"), DerivedIds(b"of somebody else")


class Thing(Record):
    """A record."""

    @property
    def name(self) -> str:
        return "sbx-1"

    @property
    def source(self) -> str:
        return "/sandherd/spawner/sbx-1"

    def about(self) -> dict[str, str | None]:
        return {"taskid": None, "sandboxid": self.name}


def of_record() -> UUID:
    record = Thing(project="p1").saying(NOW, SandboxRunning(runtime="process"))
    return read_said(record.outbox[0]).id


def test_a_record_says_its_events_under_random_ids() -> None:
    """The same record says the same at the same time: two ids, of that time, and none that follows from the facts."""
    first, second = of_record(), of_record()
    assert len({first, second, derived_uuid(NOW, "/sandherd/spawner/sbx-1", 1)}) == 3
    assert {one.int >> 80 for one in (first, second)} == {int(NOW.timestamp() * 1000)}


def test_a_refusal_is_one_event_however_often_it_is_delivered_and_needs_the_key() -> None:
    """By any replica; whoever has another key, or knows only the command, finds another id."""
    data = TerminateSandbox(sandbox="sbx-1", reason="x")
    command: Envelope[Any] = wrap(
        data, data.type, source="/sandherd/client/x", sequence=1, project="p1", subject="sbx-1", time=NOW, id=new_uuid()
    )
    said = SandboxRefused(command=command.type, reason="no")
    deliveries = [Delivery("subject", b"", "COMMANDS", 1, times, NOW) for times in (1, 2)]
    same = {refusal_event(OURS, command, said, one, sandbox="sbx-1").id for one in deliveries}
    other = refusal_event(ANOTHER, command, said, deliveries[0], sandbox="sbx-1").id
    assert len(same) == 1
    assert other not in same


class Broker:
    """Keeps what is published, with the key of a spawner."""

    def __init__(self, ids: DerivedIds) -> None:
        self.ids = ids
        self.published: list[Envelope[Any]] = []

    async def publish_event(self, event: Envelope[Any]) -> None:
        self.published.append(event)


async def orphan_ids(spawners: Iterable[DerivedIds]) -> list[UUID]:
    found = []
    for ids in spawners:
        bus, live = Broker(ids), SimpleNamespace(meters=SimpleNamespace(count=lambda *_, **__: None))
        seen = Seen("sbx-1", alive=True, since=NOW.timestamp(), project="p1")
        await Ward(bus, live, "default", 60).report(SimpleNamespace(name="process"), seen, NOW)  # type: ignore[arg-type]
        found.append(bus.published[0].id)
    return found


async def test_an_orphan_is_reported_once_by_all_spawners_and_its_id_needs_the_key() -> None:
    """It knows when it was started, and what it is called."""
    first, second, other = await orphan_ids([OURS, DerivedIds(b"of the spawners"), ANOTHER])
    assert first == second != other
