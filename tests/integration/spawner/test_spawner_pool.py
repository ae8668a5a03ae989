"""The warm pool: each unit is used by one task, replaced, and never left behind."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from nats.js.errors import KeyNotFoundError, NoKeysError

from sandherd.bus.identity.keys import Key
from sandherd.client import Herd
from sandherd.contracts.commands import SandboxLimits, TerminateSandbox
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.pool.warm_record import WarmRecord, WarmState
from spawner.runtimes import shim
from spawner.runtimes.layout import Layout
from tests.integration.spawner.file_thief import CANARY, Thief, context_of
from tests.raw_connections import RawConnection

Make = Callable[..., Service]
QUICK = {"quick": {"warm": 1}}


async def pooled(service: Service) -> list[WarmRecord]:
    """The records in the bucket."""
    kv = await service.bus.js.key_value("pool")
    found = []
    with suppress(NoKeysError):
        for key in await kv.keys():
            with suppress(KeyNotFoundError):  # removed since
                found.append(WarmRecord.model_validate_json((await kv.get(key)).value or b""))
    return found


async def ready(person: Any, service: Service, count: int = 1) -> list[WarmRecord]:
    """Wait until this number of units is ready, and nothing else is in the pool."""

    async def look() -> list[WarmRecord] | None:
        found = await pooled(service)
        waits = len(found) == count and all(record.state is WarmState.READY for record in found)
        return found if waits else None

    records: list[WarmRecord] = await person.eventually(look)
    return records


async def emptied(person: Any, home: Any) -> None:
    await person.eventually(lambda: not list((home / "sandboxes").iterdir()))


async def test_task_uses_a_warm_sandbox(spawner: Make, person: Any) -> None:
    """The task runs in the unit started for its profile, as the event states, and another unit is started."""
    async with spawner(profiles=QUICK).running() as service:
        unit = (await ready(person, service))[0].unit
        view = await person.ended(
            await person.submit(["/bin/sh", "-c", "cat given"], profile="quick", files={"given": "hello"})
        )
        assert view.state == "completed"
        await person.receives(view.sandbox, "sandbox.terminated")
        assert person.event_data(view.sandbox, "sandbox.spawned")["warm"] is True
        assert person.types(view.sandbox).count("agent.started") == 1
        assert (await ready(person, service))[0].unit != unit
        assert service.registry.get_sample_value("sandherd_warm_claims_total", {"outcome": "claimed"}) == 1
    async with spawner().running() as service:
        await emptied(person, person.home)
        assert await pooled(service) == []
    person.check_sequences()


async def test_warm_worker_gets_its_credential_with_its_identity(spawner: Make, person: Any, herd: Broker) -> None:
    """A warm worker requests no credential, and the broker refuses its key once the sandbox has ended, as any other."""
    async with spawner(profiles=QUICK).running() as service:
        record = (await ready(person, service))[0]
        place = Layout(person.home / "sandboxes", person.home / "kept").directory(record.unit)
        key = Key.from_seed((place.state / "worker.nk").read_text())
        assert record.public_key == key.public
        view = await person.ended(await person.submit(["true"], profile="quick"))
        await person.receives(view.sandbox, "sandbox.terminated")
        assert person.types(view.sandbox).count("agent.started") == 1
        counted = {"request": "spawner.credential", "outcome": "ok"}
        assert not service.registry.get_sample_value("sandherd_requests_total", counted)
        token, _ = herd.minter().mint_worker("p1", view.sandbox, key.public, 3600)
        connection = await RawConnection.open(herd.url)
        assert (await connection.connect(token, key)).startswith(b"-ERR ")
        await connection.close()
    async with spawner().running():
        await emptied(person, person.home)


async def test_task_without_a_warm_unit_starts_cold(spawner: Make, person: Any) -> None:
    """Tasks beyond the warm units, and tasks with their own limits, start cold at once; no unit is used twice."""
    async with spawner(profiles=QUICK).running() as service:
        await ready(person, service)
        tasks = [await person.submit(["true"], profile="quick") for _ in range(3)]
        tasks.append(await person.submit(["true"], profile="quick", limits=SandboxLimits(memory_mb=512)))
        tasks.append(await person.submit(["true"]))
        views = [await person.ended(task) for task in tasks]
        assert {view.state for view in views} == {"completed"}
        for view in views:
            await person.receives(view.sandbox, "sandbox.spawned")
        warm = [person.event_data(view.sandbox, "sandbox.spawned")["warm"] for view in views]
        assert 1 <= warm.count(True) <= 3
        assert warm[3:] == [False, False]
        await ready(person, service)
    async with spawner().running():
        await emptied(person, person.home)


async def test_warm_unit_that_ended_is_replaced(spawner: Make, person: Any) -> None:
    """A unit whose worker was killed is removed, and another is started."""
    async with spawner(profiles=QUICK).running() as service:
        unit = (await ready(person, service))[0].unit
        place = Layout(person.home / "sandboxes", person.home / "kept").directory(unit)
        claim = shim.read_claim(place.runs()[-1])
        assert claim
        os.killpg(claim.pid, signal.SIGKILL)

        async def replaced() -> bool:
            found = await pooled(service)
            return [record.state for record in found] == [WarmState.READY] and found[0].unit != unit

        await person.eventually(replaced)
        assert not place.exists()
    async with spawner().running():
        await emptied(person, person.home)


async def test_unit_that_another_replica_has_claimed_is_not_used(spawner: Make, person: Any) -> None:
    """Not even if this replica has written its record last, and has not received the claim yet."""
    async with spawner(profiles=QUICK).running() as service:
        record = (await ready(person, service))[0]
        bucket = await service.bus.js.key_value("pool")
        waiting = (await bucket.get(record.unit)).value or b""
        claim = {"state": WarmState.CLAIMED, "claimed_by": "p1.sbx-other", "claimed_at": record.requested_at}
        claimed = record.model_copy(update=claim)
        await bucket.put(record.unit, claimed.model_dump_json(exclude_defaults=True).encode())
        view = await person.ended(await person.submit(["true"], profile="quick"))
        assert view.state == "completed"
        assert all(one.claimed_by != f"p1.{view.sandbox}" for one in await pooled(service) if one.unit == record.unit)
        await bucket.put(record.unit, waiting)
    async with spawner().running():
        await emptied(person, person.home)


async def test_sandbox_without_a_task_uses_a_warm_unit(spawner: Make, person: Any) -> None:
    """The client sees the requested name, whatever the runtime's unit is."""
    async with spawner(profiles=QUICK).running() as service:
        await ready(person, service)
        name = await person.create(profile="quick")
        view = await person.sandbox_is(name, "running")
        assert view.warm
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.sandbox_is(name, "terminated")
    async with spawner().running():
        await emptied(person, person.home)


async def test_warm_unit_survives_its_spawner(spawner: Make, person: Any) -> None:
    """A task of the next spawner uses the warm unit."""
    async with spawner(profiles=QUICK).running() as service:
        unit = (await ready(person, service))[0].unit
    async with spawner(profiles=QUICK).running() as service:
        assert (await ready(person, service))[0].unit == unit
        view = await person.ended(await person.submit(["true"], profile="quick"))
        await person.receives(view.sandbox, "sandbox.spawned")
        assert person.event_data(view.sandbox, "sandbox.spawned")["warm"] is True
    async with spawner().running():
        await emptied(person, person.home)


async def test_warm_unit_of_another_version_is_replaced(spawner: Make, person: Any) -> None:
    """A warm unit of another version is replaced after an upgrade: its worker would load modules of both versions."""
    async with spawner(profiles=QUICK).running() as service:
        old = (await ready(person, service))[0]
    async with spawner().running() as service:
        await emptied(person, person.home)
        kv = await service.bus.js.key_value("pool")
        await kv.put(old.unit, old.model_copy(update={"worker": "older"}).model_dump_json().encode())
    async with spawner(profiles=QUICK).running() as service:

        async def replaced() -> bool:
            found = await pooled(service)
            return [record.state for record in found] == [WarmState.READY] and found[0].unit != old.unit

        await person.eventually(replaced)
        assert (await pooled(service))[0].worker == old.worker
    async with spawner().running():
        await emptied(person, person.home)


@pytest.mark.own_broker
async def test_claimed_sandbox_leaves_no_secret(spawner: Make, person: Any, herd: Broker, thief: Thief) -> None:
    """The task's secrets and named ones arrive at the claim, and no file has them after the sandbox's end."""
    named = "canary-5c0d-of-a-named-secret"
    check = f'test "$TOKEN" = {CANARY[:6]}"{CANARY[6:]}" && test "$NAMED" = {named[:6]}"{named[6:]}"'
    given = {"env": {"TOKEN": CANARY}, "secret_env": frozenset({"TOKEN"}), "secrets": {"NAMED": "k"}}
    async with spawner(keep_secrets=0, profiles=QUICK).running() as service, Herd.connect(context_of(herd)) as alice:
        await alice.set_secret("k", named)
        await ready(person, service)
        task = await person.submit(["/bin/sh", "-c", check], profile="quick", **given)
        view = await person.ended(task)
        assert view.state == "completed"
        found = await person.sandbox(view.sandbox)
        assert found is not None
        assert found.warm
        await person.sandbox_is(view.sandbox, "terminated")
        await alice.delete_secret("k")
        await person.eventually(lambda: not thief.finds(named) and not thief.finds(CANARY))
    await herd.stop()
    assert thief.finds(named) + thief.finds(CANARY) == []
