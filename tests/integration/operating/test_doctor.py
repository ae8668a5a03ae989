"""`sandherd doctor` on a real deployment: each check is made to fail for real, and states a remedy."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from event_ingest.migrator import migrations_before_new_code, read_migrations
from sandherd.bus.identity import HerdIdentity, Registrar, write_secret
from sandherd.cli.doctor.checks import examine
from sandherd.client import Context
from sandherd.client.doctor import services as doctor_services
from sandherd.client.doctor.check import Check, CheckState
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner
from tests.doubles.remote.double import IMAGE, KEY, Double
from tests.http_servers import stop_server
from tests.integration.operating.herds import PROJECT, answer, context, running, sandherd, until

P = Principal
ALWAYS = {
    "credential", "broker", "spawner", "event-ingest", "monitor", "message-relay", "gateway", "streams", "consumers",
    "migrations", "runtime process", "lag spawner-commands", "lag spawner-agents", "lag event-ingest",
    "lag message-relay-commands", "lag message-relay-agents", "lag monitor-commands", "clock", "live state",
    "history lag", "history", "dead letters",
    "sandbox disk", "sandbox host uid", "database",
}  # fmt: skip


PAGE = Path(__file__).parents[3] / "docs" / "README.md"


def test_every_check_is_documented() -> None:
    """The table of docs/README.md has the checks that doctor always prints, and those that it prints on a finding."""
    rows = PAGE.read_text().partition("## Health checks")[2].splitlines()
    cells = [row.split("|")[1] for row in rows if row.startswith("| `")]
    shown = {name.strip("` ") for cell in cells for name in cell.split(",")}
    families = {name.removesuffix(" …") for name in shown if name.endswith(" …")}
    plain = {name for name in ALWAYS if not any(name.startswith(f"{family} ") for family in families)}
    assert plain | {"versions", "service credential", "unsaid", "broker data", "disk", "identity", "agent SDK"} == {
        name for name in shown if not name.endswith(" …")
    }
    assert families == {"server", "runtime", "lag", "process"}


async def look(where: Context) -> dict[str, Check]:
    """The findings of doctor by check, except those that are always present. Each problem has a remedy."""
    found = await examine(where, datetime.now(UTC))
    assert all(check.remedy for check in found if check.state in {CheckState.WRONG, CheckState.WARNING}), found
    checks = {check.name: check for check in found}
    disk = checks.pop("sandbox disk", None)
    assert disk is None or (disk.state, disk.found) == (CheckState.WARNING, "not limited in runtime process")
    return checks


async def until_only(where: Context, *names: str) -> dict[str, Check]:
    """Wait until doctor finds exactly these faults; on a busy machine another one may appear for a while."""

    async def only() -> dict[str, Check] | None:
        found = await look(where)
        return (
            found
            if {name for name, check in found.items() if check.state is not CheckState.RIGHT} == {*names}
            else None
        )

    found: dict[str, Check] = await until(only)
    return found


async def until_all_well(where: Context) -> None:
    await until_only(where)


async def test_each_fault_fails_only_its_own_check(herd: Broker, postgres: str, tmp_path: Path) -> None:
    """A stream, a consumer, a migration, a clock and a service: each fault fails its own check, and only it.

    It is one test, as all of it needs one start.
    """
    where = context(herd)
    async with running(herd, postgres, tmp_path / "home") as services:
        await until_all_well(where)
        await command_reports_all(herd)
        await a_missing_stream_is_named(herd, where)
        await a_consumer_that_is_gone_is_named(herd, where)
        await a_migration_that_is_not_applied_is_named(postgres, where)
        await a_clock_that_is_late_is_named(services[P.MONITOR], where)
    unreachable = {"spawner", "event-ingest", "monitor", "message-relay", "gateway", "live state", "history"}

    async def named() -> bool:
        return {name for name, check in (await look(where)).items() if check.state is CheckState.WRONG} == unreachable

    await until(named)


async def command_reports_all(herd: Broker) -> None:
    wanted = {**dict.fromkeys(ALWAYS, "ok"), "sandbox disk": "look"}

    async def is_complete() -> bool:
        done = await asyncio.to_thread(sandherd, herd, "doctor", "-o", "json")
        return done.returncode == 0 and {row["check"]: row["state"] for row in answer(done)} == wanted

    await until(is_complete)


async def a_missing_stream_is_named(herd: Broker, where: Context) -> None:
    async with herd.provisioner() as jetstream:
        await jetstream.delete_stream("OUTPUT")
    found = await until_only(where, "streams")
    assert found["streams"].state is CheckState.WRONG
    assert "stream OUTPUT: missing" in found["streams"].found
    assert "sandherd provision" in str(found["streams"].remedy)
    await herd.provision()
    await until_all_well(where)


async def a_consumer_that_is_gone_is_named(herd: Broker, where: Context) -> None:
    async with herd.provisioner() as jetstream:
        await jetstream.delete_consumer("COMMANDS", "message-relay-commands")

    async def deaf() -> Check | None:
        check = (await look(where))["consumers"]
        return check if check.state is CheckState.WRONG else None

    check = await until(deaf)
    assert "message-relay-commands" in check.found
    assert "sandherd provision" in check.remedy
    await herd.provision()
    await until_all_well(where)


async def a_migration_that_is_not_applied_is_named(postgres: str, where: Context) -> None:
    """Check that it is named, as after the restoration of an older version's dump under a running service."""
    connection = await asyncpg.connect(postgres)
    try:
        newest = migrations_before_new_code(read_migrations())[-1]
        table = newest.table
        later = await connection.fetch("delete from schema_migrations where number > $1 returning *", newest.number)
        last = await connection.fetchrow(f"delete from {table} where number = $1 returning *", newest.number)
        assert last is not None
        found = await until_only(where, "migrations")
        assert found["migrations"].found == f"not applied: {last['number']} ({last['name']})"
        assert "sandherd-event-ingest migrate" in str(found["migrations"].remedy)
        insert = f"insert into {table} (number, name, sha256) values ($1, $2, $3)"
        await connection.execute(insert, last["number"], last["name"], "edited")

        async def edited() -> bool:
            return "was edited" in (await look(where))["migrations"].found

        await until(edited)
        await connection.execute(f"update {table} set sha256 = $1 where sha256 = 'edited'", last["sha256"])
        for one in later:  # the last part of an upgrade: nothing is wrong without it
            await connection.execute(insert.replace(table, "schema_migrations"), *list(one.values())[:3])
    finally:
        await connection.close()
    await until_all_well(where)


async def a_clock_that_is_late_is_named(monitor: Service, where: Context) -> None:
    """Check a monitor whose clock is a minute late."""
    monitor.examining._clock = lambda: datetime.now(UTC) - timedelta(minutes=1)

    async def is_complete() -> bool:
        """Whether it is named: half of the reply's time counts as error, so that a slow reply differs by a second."""
        return (await until_only(where, "clock"))["clock"].found == "monitor's and ours differ by 60 s"

    await until(is_complete)


@pytest.fixture
async def unreachable(herd: Broker, tmp_path: Path) -> AsyncIterator[Service]:
    """A spawner whose provider of sandboxes no longer responds."""
    async with Double() as double:
        values: dict[str, Any] = {
            "home": tmp_path / "home",
            "runtime": "remote",
            "remote_api_key": KEY,
            "remote_api_url": double.url,
        }
        service = compose_spawner(herd.settings(P.SPAWNER, **values, sandbox_image=IMAGE))
        async with service.running():
            where = context(herd)

            async def reached() -> bool:
                found = await look(where)
                return "runtime remote" in found and found["runtime remote"].state is CheckState.RIGHT

            await until(reached)
            assert double._runner is not None
            await stop_server(double._runner)
            yield service


async def test_unreachable_runtime_is_reported(herd: Broker, unreachable: Service) -> None:
    """The runtime's API does not respond: its check has the remedy; the spawner itself has no problem."""

    async def missed() -> dict[str, Check] | None:
        found = await look(context(herd))
        wrong = {name for name, check in found.items() if check.state is CheckState.WRONG}
        return found if "runtime remote" in wrong and "spawner" not in wrong else None

    found = await until(missed)
    assert "access" in str(found["runtime remote"].remedy)
    assert found["spawner"].state is CheckState.RIGHT
    assert found["streams"].state is CheckState.UNKNOWN


async def test_unhandled_backlog_is_reported(herd: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With Postgres down events wait: the check states their number and age, and the database."""
    monkeypatch.setattr(doctor_services, "MAX_WAITING_SECONDS", 0.5)
    where = context(herd)
    async with running(herd, "postgresql://127.0.0.1:1/nowhere", tmp_path / "home"):
        async with herd.bus(P.WORKER, project=PROJECT, sandbox="sbx-1") as bus:
            text = wrap(
                AgentMessage(content="hello", content_length=5), "agent.message", source="/sandherd/sandbox/sbx-1",
                sequence=1, project=PROJECT, subject="sbx-1", time=datetime.now(UTC), sandboxid="sbx-1",
            )  # fmt: skip
            await bus.publish_event(text)

        async def late() -> dict[str, Check] | None:
            found = await look(where)
            wrong = {name for name, check in found.items() if check.state is CheckState.WRONG}
            return found if wrong == {"lag event-ingest", "database", "migrations", "history"} else None

        found = await until(late)
    assert found["lag event-ingest"].found.startswith("1 waiting, the oldest for ")
    assert "event-ingest's log" in str(found["lag event-ingest"].remedy)
    assert found["event-ingest"].state is CheckState.WARNING
    assert found["migrations"].found.startswith("unknown: ")


async def test_stopped_database_is_named_with_its_address(herd: Broker, tmp_path: Path) -> None:
    """The problem is the database, with its name and address without credentials; event-ingest only waits for it."""
    url = "postgresql://ada:s3cret@127.0.0.1:1/past?password=s3cret"
    async with running(herd, url, tmp_path / "home"):
        done = await asyncio.to_thread(
            sandherd,
            herd,
            "doctor",
            "-o",
            "json",
            SANDHERD_CREDENTIALS=str(herd.credentials(P.CLIENT, project=PROJECT)),
        )
    rows = answer(done)
    found = {row["check"]: row for row in rows}
    assert done.returncode == 1
    assert next(row["check"] for row in rows if row["state"] == "wrong") == "database"
    assert found["database"]["found"].startswith("database past at 127.0.0.1:1 is unavailable: ")
    assert "check that Postgres runs" in found["database"]["remedy"]
    assert (found["event-ingest"]["state"], "database" in found["event-ingest"]["found"]) == ("look", True)
    assert "s3cret" not in done.stdout
    assert "ada" not in done.stdout


async def test_expired_credential_is_reported(herd: Broker, tmp_path: Path) -> None:
    """A minute after its expiry both the file and the broker's refusal show it."""
    path = tmp_path / "client.creds"
    registrar = Registrar(HerdIdentity(herd.home / "identity"), lambda: datetime.now(UTC) - timedelta(minutes=2))
    write_secret(path, registrar.mint_person(P.CLIENT, "ada", project=PROJECT, life=60))
    done = await asyncio.to_thread(sandherd, herd, "doctor", "-o", "json", SANDHERD_CREDENTIALS=str(path))
    found = {row["check"]: row for row in answer(done)}
    assert done.returncode == 1
    assert "expired at" in found["credential"]["found"]
    assert "expired at" in found["broker"]["found"]
    assert all(row["remedy"] for row in found.values() if row["state"] == "wrong")


async def test_unreachable_broker_is_reported(herd: Broker) -> None:
    """The error is one line with the remedy, without a traceback and without waiting."""
    await herd.kill()
    found = await look(context(herd))
    assert found["broker"].state is CheckState.WRONG
    assert "no broker at" in found["broker"].found
