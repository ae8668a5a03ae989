"""Ids of the spawner's events can't be computed before they are published."""

from collections.abc import Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from sandherd.bus.consumers.consumer import Delivery
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.sandbox import SandboxRefused, SandboxRunning
from sandherd.contracts.names import DerivedIds, derived_uuid, new_uuid
from spawner.records.base_record import Record, address_of
from spawner.refusal_events import refusal_event
from spawner.runtimes.contract import ObservedSandbox
from spawner.sandboxes.orphans import OrphanCollector

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

    def event_ids(self) -> dict[str, str | None]:
        return {"taskid": None, "sandboxid": self.name}


def of_record() -> UUID:
    record = Thing(project="p1").with_events(NOW, SandboxRunning(runtime="process"))
    return UUID(address_of(record.outbox[0])[1])


def test_event_ids_of_a_record_are_random() -> None:
    """Two events of the same record at the same time have different ids of that time, not derived from the facts."""
    first, second = of_record(), of_record()
    assert len({first, second, derived_uuid(NOW, "/sandherd/spawner/sbx-1", 1)}) == 3
    assert {one.int >> 80 for one in (first, second)} == {int(NOW.timestamp() * 1000)}


def test_refusal_is_one_event_however_often_delivered() -> None:
    """Every replica derives the same id with the key; another key, or the command alone, derives another."""
    data = TerminateSandbox(sandbox="sbx-1", reason="x")
    command: Envelope[Any] = wrap(
        data, data.type, source="/sandherd/client/x", sequence=1, project="p1", subject="sbx-1", time=NOW, id=new_uuid()
    )
    refused = SandboxRefused(command=command.type, reason="no")
    deliveries = [Delivery("subject", b"", "COMMANDS", 1, times, NOW) for times in (1, 2)]
    same = {refusal_event(OURS, command, refused, one, sandbox="sbx-1").id for one in deliveries}
    other = refusal_event(ANOTHER, command, refused, deliveries[0], sandbox="sbx-1").id
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
        seen = ObservedSandbox("sbx-1", alive=True, since=NOW.timestamp(), project="p1")
        await OrphanCollector(bus, live, "default", 60).report(SimpleNamespace(name="process"), seen, NOW)  # type: ignore[arg-type]
        found.append(bus.published[0].id)
    return found


async def test_orphan_is_reported_once_by_all_spawners() -> None:
    """Replicas with the same key derive the same id from the start time and name, and others another."""
    first, second, other = await orphan_ids([OURS, DerivedIds(b"of the spawners"), ANOTHER])
    assert first == second != other
