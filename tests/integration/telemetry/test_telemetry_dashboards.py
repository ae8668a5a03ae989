"""What the dashboards ask: each panel of each, answered by a real Prometheus and a real Postgres of a herd at work."""

import re
from typing import Any, Final

import asyncpg
import pytest

from sandherd.stack.home import Home, read_record
from tests.integration.telemetry.conftest import HERD, ROOT, Watched
from tests.integration.telemetry.grafana import Asked, asked, boards, of_postgres, of_prometheus

READER: Final = ROOT / "deploy" / "grafana" / "reader.sql"
NOUGHT: Final = {
    "Waiting", "Longest wait", "Missing", "Not stored yet", "Oldest of them", "Behind", "Lost and left over",
    "Started beforehand", "Put aside", "Commands refused", "Room made", "Spans spared", "In spools", "Spools",
    "Calls in flight", "Not read yet", "Found", "Leave asked for", "Connections that came back",
    "Refused by the broker", "For the collector", "Not delivered", "Not answered", "Delivered again", "In and stored",
    "At work", "Too late to count",
}  # fmt: skip
"""What may be 0 in a herd that is well; whatever else is shown has moved."""


def test_every_panel_of_prometheus_shows_data(watched: Watched) -> None:
    """Each query of each panel finds series with numbers; all but faults, and what waits, are more than 0."""
    found: dict[Asked, list[float]] = {}

    def all_there() -> bool:
        for one in asked("expr"):
            if not found.get(one) or not any(found[one]):
                found[one] = watched.prometheus.numbers(of_prometheus(one.text, HERD))
        return all(values and (one.panel in NOUGHT or any(values)) for one, values in found.items())

    try:
        watched.prometheus.until(all_there, "")
    except AssertionError:
        lacking = [f"{one}: {one.text}" for one, values in found.items() if not values]
        still = [str(one) for one, values in found.items() if values and one.panel not in NOUGHT and not any(values)]
        pytest.fail(f"no data: {lacking}\nnever moved: {still}")
    assert len(found) > 80


def test_a_dashboard_shows_its_own_herd_alone(watched: Watched) -> None:
    """Asked about another one, no panel finds anything."""
    for one in asked("expr"):
        assert watched.prometheus.find(of_prometheus(one.text, "another")) == [], str(one)


def test_the_herds_can_be_chosen(watched: Watched) -> None:
    """The variable at the top of each dashboard is a query that finds the herd."""
    for name, board in boards().items():
        for variable in board["templating"]["list"]:
            if variable["name"] == "herd":
                match = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]["query"])
                assert match, name
                assert watched.prometheus.ask(f"label/{match[2]}/values", **{"match[]": match[1]}) == [HERD]


async def test_every_panel_of_one_sandbox_shows_data(watched: Watched) -> None:
    """Each statement is answered to the role that may only read, with rows of the sandbox that was steered."""
    owner = await asyncpg.connect(database_url(watched))
    await owner.execute(READER.read_text())
    await owner.execute(READER.read_text())
    # No program may ask leave by itself, so what a driver would have asked is put there.
    await owner.execute(
        "insert into approvals (project, sandbox, approval, state, state_sequence, state_at, tool, requested_at) "
        "values ('default', $1, 'leave-1', 'pending', 1, now(), 'Bash', now())",
        watched.sandbox,
    )
    await owner.close()
    reader = await asyncpg.connect(database_url(watched).replace("postgres@", "sandherd_reader@"))
    try:
        chosen = {"project": "default", "sandbox": watched.sandbox}
        for variable in boards()["sandbox"]["templating"]["list"]:
            if variable["type"] == "query":
                rows = await reader.fetch(of_postgres(variable["query"], chosen))
                assert chosen[variable["name"]] in {row[0] for row in rows}
        for one in asked("rawSql"):
            rows = await reader.fetch(of_postgres(one.text, chosen))
            assert rows, str(one)
            assert any(value is not None for row in rows for value in row.values()), str(one)
            nothing = await reader.fetch(of_postgres(one.text, chosen | {"sandbox": "it's another's"}))
            assert len(nothing) <= 1, str(one)
        for statement in ("delete from events", "select * from schema_migrations", "create table mine (a int)"):
            await refused(reader, statement)
    finally:
        await reader.close()


async def refused(reader: Any, statement: str) -> None:
    with pytest.raises((asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)):
        await reader.execute(statement)


def database_url(watched: Watched) -> str:
    record = read_record(Home(watched.home))
    assert record is not None
    assert record.database_url is not None
    return record.database_url
