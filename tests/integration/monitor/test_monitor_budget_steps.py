"""Budgets on a real broker: events, commands, and restarts between any two steps."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from monitor.bucket_entries import BucketWatch
from monitor.budgets import request_handlers
from monitor.budgets.budget_ledger import DAY_HOURS, used_since
from monitor.budgets.budget_messages import BudgetMessages
from monitor.budgets.budget_state import BudgetState
from monitor.budgets.enforcement import BudgetEnforcement
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import read_batch
from sandherd.bus.errors import PublishRefusedError
from sandherd.bus.lease import Lease
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.budgets import BudgetLimits, HerdBudgets, WindowLimits
from sandherd.contracts.names import FLEET
from sandherd.contracts.records import SandboxSummary, SandboxUsage
from sandherd.contracts.subjects import Principal
from sandherd.telemetry.meters import Meters
from spawner.tasks.budget_blocks import BudgetBlockReader
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.task_queue import TaskQueue
from tests.polling import eventually

World = Any
GRACE = 60.0


class CrashError(Exception):
    """The monitor was killed here."""


class CrashingBus:
    """A bus that fails at one of its writes, before or after the broker stores it."""

    def __init__(self, bus: Bus, at: int, *, after: bool) -> None:
        self._bus = bus
        self._left = at
        self._after = after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._bus, name)
        return self._counted(found) if name in {"publish", "publish_event", "publish_command"} else found

    def _counted(self, write: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def publish(*args: Any, **named: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise CrashError
            result = await write(*args, **named)
            if self._left == 0:
                raise CrashError
            return result

        return publish


async def one_life(bus: Any, lease: Lease, moments: list[datetime], budgets: HerdBudgets) -> BudgetState:
    """A monitor that starts, reads the buckets, makes a pass at each time, and ends. Raises `CrashError`."""
    book = BudgetState(budgets)
    watches = (BucketWatch(bus, "summaries", book.change_summary), BucketWatch(bus, "budgets", book.change_ledger))
    meters = Meters(CollectorRegistry())
    enforcement = BudgetEnforcement(bus, lease, book, BudgetMessages(bus, meters, GRACE), meters)

    async def work() -> None:
        for watch in watches:
            await watch.catch_up()
        for now in moments:
            await enforcement.work(now)

    await run_until_first(*(watch.follow() for watch in watches), work())
    return book


async def write_summary(bus: Bus, name: str, cost: int, at: datetime, **fields: Any) -> None:
    """Write a summary of sandbox `sbx-<name>` of the task `task-<name>`, whose budget is 100 micro-dollars."""
    usage = SandboxUsage(cost_micro_usd=cost, metered=True, priced=True)
    known: dict[str, Any] = {
        "task": f"task-{name}",
        "budget": BudgetLimits(cost_micro_usd=100),
        "state": "waiting",
        "sequence": cost,
    }
    times: dict[str, Any] = {"started_at": at, "updated_at": at}
    named: dict[str, Any] = {"project": "default", "sandbox": f"sbx-{name}"}
    document = SandboxSummary(spending=usage, **times, **named | known | fields)
    await bus.js.publish(f"$KV.summaries.{document.project}.{document.sandbox}", document.model_dump_json().encode())


async def stored(bus: Bus, stream: str, subject: str) -> list[dict[str, Any]]:
    """The messages of a stream on these subjects, in order."""
    found = await read_batch(bus, stream, subject, first=1, limit=1000, max_bytes=10**7)
    return [json.loads(message.data) for message in found]


@asynccontextmanager
async def held_lease(bus: Bus) -> AsyncIterator[Lease]:
    lease = Lease(bus, "monitor.budgets", "test")
    task = asyncio.ensure_future(lease.run())
    await lease.wait_held()
    try:
        yield lease
    finally:
        await cancel_and_wait([task])


async def test_restart_between_any_two_steps_repeats_and_loses_nothing(world: World) -> None:
    """Killed before or after each write, the monitor publishes one warning, one message, one stop and one charge."""
    budgets = HerdBudgets()
    start = datetime.now(UTC)
    names, number = [], 0
    async with world.herd.bus(Principal.MONITOR) as bus, held_lease(bus) as lease:
        crashed = True
        while crashed:
            number += 1
            outcomes = []
            for after in (False, True):
                names.append(f"{number}-{'after' if after else 'before'}")
                outcomes.append(await crash_once(bus, lease, names[-1], number, start, after=after))
            crashed = any(outcomes)
        book = await one_life(bus, lease, [start], budgets)
        events = await stored(bus, "EVENTS", "sandherd.v1.event.default.*.monitor.*")
        messages = await stored(world.spawner, "COMMANDS", "sandherd.v1.command.message-relay.>")
    assert number > 6
    assert used_since(book.project("default").value.hours, start, DAY_HOURS).cost == 101 * len(names)
    for name in names:
        types = [event["type"] for event in events if event["taskid"] == f"task-{name}"]
        assert types == ["monitor.budget_warned", "monitor.budget_exceeded"], name
        assert [one["data"]["sender_id"] for one in messages if one["subject"] == f"sbx-{name}"] == ["budgets"], name
        await world.until(lambda name=name: world.requested(f"sbx-{name}"))
        assert world.requested(f"sbx-{name}") == ["budget_exceeded"], name


class RefusingBus:
    """A bus that can't write the ledger of one project."""

    def __init__(self, bus: Bus, project: str) -> None:
        self._bus = bus
        self._project = project

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bus, name)

    async def publish(self, subject: str, *args: Any, **named: Any) -> Any:
        if subject.startswith(f"$KV.budgets.{self._project}."):
            raise PublishRefusedError("too large")
        return await self._bus.publish(subject, *args, **named)


async def test_project_that_can_not_be_charged_stops_no_other(world: World) -> None:
    """The later tasks in the pass are charged and stopped, and the blocked project stays blocked."""
    start = datetime.now(UTC)
    async with world.herd.bus(Principal.MONITOR) as bus, held_lease(bus) as lease:
        await write_summary(bus, "first", 101, start, project="a-first")
        await write_summary(bus, "other", 101, start, project="other")
        limited = HerdBudgets(project=WindowLimits(day=BudgetLimits(cost_micro_usd=1)))
        blocked = (await one_life(bus, lease, [start], limited)).blocks.value.projects
        assert blocked.keys() == {"a-first", "other"}
        for name, project in (("first", "a-first"), ("other", "other")):
            await write_summary(bus, name, 201, start, project=project)
        book = await one_life(RefusingBus(bus, "a-first"), lease, [start + timedelta(seconds=GRACE + 1)], limited)
        assert used_since(book.project("other").value.hours, start, DAY_HOURS).cost == 201
        assert book.blocks.value.projects["a-first"] == blocked["a-first"]
        assert "201" not in blocked["other"]
        await world.until(lambda: world.requested("sbx-other"))


async def crash_once(bus: Bus, lease: Lease, name: str, number: int, start: datetime, *, after: bool) -> bool:
    """Whether the first monitor was killed at its write of this number; further monitors do the rest."""
    moments = [start, start + timedelta(seconds=GRACE + 1)]
    crashing: Any = CrashingBus(bus, number, after=after)
    await write_summary(bus, name, 85, start)
    crashed = False
    for cost, times in ((85, moments[:1]), (101, moments)):
        await write_summary(bus, name, cost, start)
        try:
            await one_life(crashing, lease, times, HerdBudgets())
        except CrashError:
            crashed = True
            await one_life(bus, lease, times, HerdBudgets())
    await one_life(bus, lease, moments, HerdBudgets())
    await write_summary(bus, name, 101, start, state="ended")
    await one_life(bus, lease, moments[:1], HerdBudgets())
    return crashed


@pytest.mark.parametrize(("scope", "projects"), [("project", ("p1", "p1")), ("herd", ("p1", "p2"))])
async def test_restart_between_any_two_steps_of_a_window(world: World, scope: str, projects: tuple[str, str]) -> None:
    """Killed before or after each write, the monitor publishes each crossing of the project or the herd once.

    So is its warning. Each of two live agents gets one message and is stopped once. Two days later the window has
    moved, and the next crossing is a new one.
    """
    crossings: dict[str, list[str]] = {}
    start, number, crashed = datetime.now(UTC), 0, True
    async with world.herd.bus(Principal.MONITOR) as bus, held_lease(bus) as lease:
        while crashed:
            number, crashed = number + 1, False
            for after in (False, True):
                start += timedelta(days=2)
                crossing = WindowCrossing(bus, lease, scope, projects, start)
                crashed |= await crossing.happens(CrashingBus(bus, number, after=after))
                crossings[start.isoformat()] = crossing.names
        events = await stored(bus, "EVENTS", "sandherd.v1.event.*.*.monitor.*")
        messages = await stored(world.spawner, "COMMANDS", "sandherd.v1.command.message-relay.>")
    assert number > 8
    for at, names in crossings.items():
        about = [one for one in events if datetime.fromisoformat(one["time"]).isoformat() == at]
        assert [(one["type"], one["data"]["scope"]) for one in about] == [
            ("monitor.budget_warned", scope),
            ("monitor.budget_exceeded", scope),
        ]
        for name in names:
            assert [one["data"]["sender_id"] for one in messages if one["subject"] == name] == ["budgets"], name
            await world.until(lambda name=name: world.requested(name))
            assert world.requested(name) == ["budget_exceeded"], name
    assert len(events) == 2 * len(crossings)


class WindowCrossing:
    """Two sandboxes together exceed the budget of a day by one micro-dollar."""

    def __init__(self, bus: Bus, lease: Lease, scope: str, projects: tuple[str, str], start: datetime) -> None:
        self._bus = bus
        self._lease = lease
        self._budgets = HerdBudgets.model_validate(f"{scope}.day.cost=0.0001usd")
        self._projects = projects
        self._start = start
        self.names = [f"sbx-{start:%m%d%H%M}-{name}" for name in ("a", "b")]

    async def happens(self, crashing: Any) -> bool:
        """Whether the first monitor was killed; further monitors do the rest."""
        moments = [self._start, self._start + timedelta(seconds=GRACE + 1)]
        crashed = False
        for cost, times in ((85, moments[:1]), (101, moments)):
            await self._write(cost)
            try:
                await one_life(crashing, self._lease, times, self._budgets)
            except CrashError:
                crashed = True
                await one_life(self._bus, self._lease, times, self._budgets)
        await self._write(101, state="ended")
        passed = [self._start, self._start + timedelta(hours=25)]
        book = await one_life(self._bus, self._lease, passed, self._budgets)
        used = [used_since(book.project(name).value.hours, self._start, DAY_HOURS).cost for name in {*self._projects}]
        assert sum(used) == 101
        return crashed

    async def _write(self, cost: int, **fields: Any) -> None:
        for name, project, part in zip(self.names, self._projects, (cost - 1, 1), strict=True):
            place = {"project": project, "sandbox": name, "budget": None, "task": f"task-{name}"}
            await write_summary(self._bus, name, part, self._start, **place | fields)


async def test_unreadable_ledger_disables_its_own_budgets_only(world: World) -> None:
    """An unreadable ledger is left as it is, and shown as unmetered; the other project is charged and warned of."""
    start, budgets = datetime.now(UTC), HerdBudgets.model_validate("project.day.cost=0.0001usd")
    async with world.herd.bus(Principal.MONITOR) as bus, held_lease(bus) as lease:
        await bus.js.publish("$KV.budgets.a1.ledger", b'{"project": "a1", "hours": "of a newer version"}')
        for project in ("a1", "b1"):
            await write_summary(bus, project, 90, start, project=project, budget=None)
        book = await one_life(bus, lease, [start], budgets)
        left = await bus.js.get_last_msg("KV_budgets", "$KV.budgets.a1.ledger")
        events = await stored(bus, "EVENTS", "sandherd.v1.event.*.*.monitor.*")
    assert book.unreadable == {"a1.ledger"}
    assert b"newer" in (left.data or b"")
    assert [(one["project"], one["type"]) for one in events] == [("b1", "monitor.budget_warned")]
    assert {limit.metered for limit in book.limits_of_project(book.project("a1").value, start)} == {False}


async def test_budget_is_enforced_by_the_service(world: World) -> None:
    """Usage leads to a warning, a message to the agent, and the end of its sandbox; the spawner shows the project."""
    sandbox, budget = "sbx-1", BudgetLimits(turns=5)
    await world.record(sandbox)
    await world.by_spawner(sandbox, "sandbox.requested", budget=budget)
    await world.by_worker(sandbox, "agent.started", sdk="command", task="t", task_description_length=1)
    await world.receive(sandbox)
    queue = TaskQueue(SandboxLimits(total=9), 60)
    reading = asyncio.ensure_future(BudgetBlockReader(world.spawner, queue, 0.05).run())
    settings = {"budgets": HerdBudgets.model_validate("project.day.turns=6"), "budget_grace": 2}
    async with world.relay().running(), world.monitor(**settings).running():
        for _ in range(4):
            await world.by_worker(sandbox, "agent.turn_completed")
        await world.until(lambda: world.of("monitor.budget_warned"))
        await world.by_worker(sandbox, "agent.turn_completed")
        await world.until(lambda: world.of("monitor.budget_exceeded"))
        await world.by_worker(sandbox, "agent.turn_completed")
        await eventually(lambda: world.received)
        await world.until(lambda: world.requested(sandbox) != [])
        await eventually(lambda: queue.capacity.over_budget("default"))
    await cancel_and_wait([reading])
    assert {event["data"].get("scope", "task") for event in world.of("monitor.budget_exceeded")} <= {"task", "project"}
    assert "5 of 5 turns" in world.received[0] or "5 turns of 5 turns" in world.received[0]
    assert set(world.requested(sandbox)) == {"budget_exceeded"}
    assert queue.capacity.exhausted_limit("default", "process") == (
        "project default has used 6 turns of 6 turns of a day: no task begins"
    )


def connected(world: World, principal: Principal, project: str = "default") -> AbstractAsyncContextManager[Herd]:
    """A connection with a user's credential, for a project."""
    broker = world.herd
    context = Context(nats_url=broker.url, credentials=broker.credentials(principal), project=project, home=broker.home)
    return Herd.connect(context)


async def refuses_what_changes_nothing(client: Herd) -> None:
    """Check grants for a kind without a limit, and for a task that has not started."""
    with pytest.raises(HerdError, match="task-1 has no limit of cost, tokens: a grant would change nothing"):
        await client.grant_budget("task-1", "turns=8,cost=2usd,tokens=3", name="grant-1-of-others")
    with pytest.raises(HerdError, match="no sandbox of task"):
        await client.grant_budget("task-2", "turns=8")


async def test_grant_lets_an_agent_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of the project can grant more before the agent is stopped, but not an unlimited amount.

    Only an operator sets a project's budget.
    """
    monkeypatch.setattr(request_handlers, "MAX_GRANTS", 1)
    sandbox = "sbx-1"
    await world.record(sandbox)
    await world.by_spawner(sandbox, "sandbox.requested", budget=BudgetLimits(turns=2))
    await world.by_worker(sandbox, "agent.started", sdk="command", task="t", task_description_length=1)
    client = await world.stack.enter_async_context(connected(world, Principal.CLIENT))
    operator = await world.stack.enter_async_context(connected(world, Principal.OPERATOR))
    async with world.monitor(budget_grace=3600).running():
        for _ in range(2):
            await world.by_worker(sandbox, "agent.turn_completed")
        await world.until(lambda: world.of("monitor.budget_exceeded"))
        for _ in range(2):
            found = (await client.grant_budget("task-1", "turns=8", name="grant-1", by="ada")).budgets
            assert [(one.limit, one.granted) for one in found if one.budget == "turns"] == [(10, 8)]
        await eventually(lambda: world.of("monitor.budget_granted"))

        async def cleared() -> bool:
            lines = (await client.budgets("task-1")).budgets
            return [(one.used, one.exceeded_at) for one in lines if one.budget == "turns"] == [(2, None)]

        await eventually(cleared)
        await shows_spending(client, sandbox)
        with pytest.raises(HerdError, match="has 1 grants"):
            await client.grant_budget("task-1", "turns=8", name="grant-2")
        with pytest.raises(HerdError, match="permission"):
            await client.set_budget(day="turns=1")
        lines = (await operator.set_budget(day="turns=1")).budgets
        assert [one.limit for one in lines if (one.window, one.budget) == ("day", "turns")] == [1]
        await world.until(
            lambda: any(one["data"].get("scope") == "project" for one in world.of("monitor.budget_exceeded"))
        )
        await reports_budgets(world, client)
        await refuses_what_changes_nothing(client)
    assert len(world.of("monitor.budget_granted")) == 1
    assert world.requested(sandbox) == []


async def shows_spending(client: Herd, sandbox: str) -> None:
    """Check that `monitor show` has the task's use of each kind; a kind that no event reports is unmetered."""
    view = await client.monitored(sandbox)
    spent = {one.budget: one for one in view.spending or () if one.scope == "task"}
    assert [(kind, one.metered) for kind, one in spent.items()] == [
        *(("cost", False), ("tokens", False), ("turns", True), ("wall_time", True)),
    ]
    assert (spent["turns"].used, spent["turns"].limit, spent["turns"].share) == (2, 10, 0.2)


async def reports_budgets(world: World, client: Herd) -> None:
    """Check that `monitor report` has the project's limits and its need of a user; the herd's are for operators."""
    [report] = (await client.monitor_report()).projects
    assert [(one.window, one.budget, one.share) for one in report.budgets or ()] == [("day", "turns", 2.0)]
    assert [(need.reason, need.sandbox, need.task) for need in report.needs] == [("budget", None, None)]
    assert (await client.monitor_report()).budgets is None
    async with connected(world, Principal.OPERATOR, FLEET) as all_projects:
        everything = await all_projects.monitor_report()
    assert (everything.budgets, [one.project for one in everything.projects]) == ([], ["default"])
