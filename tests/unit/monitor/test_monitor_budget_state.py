"""Budgets: the state that is read from the stored summaries and ledgers, and the passes that begin with it."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from monitor.budgets import budget_ledger
from monitor.budgets.amounts import SandboxUse, UsedByKind
from monitor.budgets.budget_ledger import ProjectLedger, ReachedLimit
from monitor.budgets.budget_messages import BudgetMessages
from monitor.budgets.budget_state import BudgetState
from monitor.budgets.enforcement import BudgetEnforcement
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.budgets import BudgetLimits, HerdBudgets, WindowLimits
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.records import SandboxSummary
from sandherd.telemetry.meters import Meters
from tests.polling import eventually

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)


def summary(sequence: int, sandbox: str = "sbx-1", **fields: Any) -> bytes:
    known: dict[str, Any] = {"project": "p1", "sandbox": sandbox, "task": "t", "started_at": T0, "updated_at": T0}
    return SandboxSummary(**known | {"sequence": sequence} | fields).model_dump_json().encode()


def test_limits_of_the_herd_are_unmetered_if_the_ledger_of_a_project_is_unreadable() -> None:
    """The usage of that project is missing in the sum; an unreadable ledger of a task changes nothing here."""
    book = BudgetState(HerdBudgets(herd=WindowLimits(day=BudgetLimits(turns=5))))
    book.change_ledger("p1.task.ledger", b'{"task": 1}', 1)
    assert {one.metered for one in book.limits_of_herd(T0)} == {True}
    book.change_ledger("p1.ledger", b'{"hours": 1}', 2)
    assert {one.metered for one in book.limits_of_herd(T0)} == {False}
    book.change_ledger("p1.ledger", b'{"project": "p1"}', 3)
    assert {one.metered for one in book.limits_of_herd(T0)} == {True}


def test_book_ignores_older_and_unreadable_summaries() -> None:
    """The usage of a deleted summary is dropped, unless the task's ledger has it."""
    book = BudgetState(HerdBudgets())
    book.change_summary("p1.sbx-1", summary(5, turns=4), 1)
    book.change_summary("p1.sbx-1", summary(4, turns=9), 2)
    book.change_summary("p1.sbx-2", b"{}", 3)
    assert [one.used.turns for one in book.uses_of("p1", "t")] == [4]
    assert book.unreadable == {"p1.sbx-2"}
    task = book.task("p1", "t", T0).value
    book.change_ledger(task.key, task.model_dump_json(exclude_defaults=True).encode(), 9)
    book.change_summary("p1.sbx-1", None, 4)
    assert book.uses_of("p1") == []
    assert budget_ledger.usage_of_task(book.task("p1", "t", T0).value).turns == 4
    assert list(book.known_tasks()) == [("p1", "t")]


def test_use_of_a_task_does_not_decrease_if_the_monitor_has_lost_events() -> None:
    """A snapshot could not be read and the stream was purged, so the next summary has less.

    This holds after a restart, too.
    """
    book = BudgetState(HerdBudgets())
    book.change_summary("p1.sbx-1", summary(5, turns=40), 1)
    charged = budget_ledger.with_charges(book.project("p1").value, book.uses_of("p1"), T0)
    book.change_summary("p1.sbx-1", summary(9, turns=3), 2)
    assert budget_ledger.usage_of_task(book.task("p1", "t", T0).value).turns == 40
    restarted = BudgetState(HerdBudgets())
    restarted.change_summary("p1.sbx-1", summary(9, turns=3), 2)
    restarted.change_ledger(charged.key, charged.model_dump_json(exclude_defaults=True).encode(), 3)
    assert budget_ledger.usage_of_task(restarted.task("p1", "t", T0).value).turns == 40


async def test_each_pass_begins_with_what_is_stored_and_with_the_time_of_the_broker() -> None:
    """Another replica has granted more before the time to end the work is over: the sandbox is not ended.

    The clock of this replica is not read: it may be years from that of the broker, which dates the summaries.
    """
    book, sent, stored = BudgetState(HerdBudgets()), [], dict[str, bytes]()
    book.change_summary("p1.sbx-1", summary(5, turns=40, budget=BudgetLimits(turns=10), state="running"), 1)
    known = book.task("p1", "t", T0).value
    mark = ReachedLimit(at=T0, limit=10, used=40, published=True)
    book.change_ledger(
        known.key, known.model_copy(update={"marks": {"total.turns.exceeded": mark}}).model_dump_json().encode(), 2
    )
    passes: list[datetime] = []

    async def publish_command(command: Any) -> None:
        sent.append(type(command.data))

    async def publish(subject: str, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(seq=9)

    async def catch_up() -> datetime:
        for key, document in stored.items():
            book.change_ledger(key, document, 20)
        passes.append(T0 + timedelta(seconds=5 if not passes else 301))
        return passes[-1]

    bus: Any = SimpleNamespace(ids=DerivedIds(b"m"), publish_command=publish_command, publish=publish, connected=True)
    lease: Any = SimpleNamespace(held=True, fence=1, check=lambda: None, wait_held=lambda: asyncio.sleep(0))
    watch: Any = SimpleNamespace(catch_up=catch_up, changed=asyncio.Event())
    meters = Meters(CollectorRegistry())
    enforcement = BudgetEnforcement(bus, lease, book, BudgetMessages(bus, meters, 300), meters)
    running = asyncio.create_task(enforcement.run((watch,), 3600))
    await eventually(lambda: sent == [SendMessage])
    granted = budget_ledger.with_grant(book.tasks[known.key].value, "g1", BudgetLimits(turns=900))
    stored[known.key] = granted.model_dump_json().encode()
    watch.changed.set()
    await eventually(lambda: len(passes) == 2 and not book.tasks[known.key].value.marks)
    await cancel_and_wait([running])
    assert sent == [SendMessage]
    assert book.projects["p1"].value.charged["sbx-1"].used.wall_time == 301


def test_herd_has_used_what_all_projects_have() -> None:
    """The limits of the herd come from its own ledger, else from the settings."""
    book = BudgetState(HerdBudgets.model_validate("herd.day.turns=10"))
    for name, turns in (("p1", 3), ("p2", 4)):
        use = SandboxUse(
            project=name,
            sandbox="sbx-1",
            task="task-1",
            state="finished",
            started_at=T0,
            updated_at=T0,
            sequence=1,
            used=UsedByKind(turns=turns),
        )
        found = budget_ledger.with_charges(ProjectLedger(project=name), [use], T0)
        book.change_ledger(f"{name}.ledger", found.model_dump_json(exclude_defaults=True).encode(), 1)
    assert [(one.used, one.limit) for one in book.limits_of_herd(T0) if one.limit] == [(7, 10)]
