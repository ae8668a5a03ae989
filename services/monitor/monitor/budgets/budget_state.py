"""The input of all budget computations: the usage of each sandbox, and the ledgers, as in their buckets.

Does no I/O.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from monitor.budgets import budget_decisions
from monitor.budgets.amounts import SandboxUse
from monitor.budgets.budget_decisions import BudgetLimit
from monitor.budgets.budget_ledger import (
    BLOCKS_KEY,
    ProjectLedger,
    TaskLedger,
    hourly_totals,
    is_project_key,
    task_key,
    with_usage,
)
from sandherd.contracts.budgets import HerdBudgets
from sandherd.contracts.names import FLEET
from sandherd.contracts.records import BudgetBlocks, SandboxSummary

LedgerT = TypeVar("LedgerT", bound=BaseModel)
_ENDED_FOR: Final = timedelta(days=8)
"""The time after which the summary of an ended sandbox is no longer in its bucket."""


@dataclass(frozen=True, slots=True)
class StoredLedger(Generic[LedgerT]):
    """A ledger and its revision; 0: it is not stored yet."""

    value: LedgerT
    revision: int = 0


class BudgetState:
    """The newest known contents of two buckets: the summaries of sandboxes, and the ledgers."""

    def __init__(self, budgets: HerdBudgets) -> None:
        self._budgets = budgets
        self.uses: dict[str, dict[str, SandboxUse]] = {}
        """The usage of each sandbox, by project and sandbox."""
        self._by_task: dict[str, set[str]] = {}
        self.projects: dict[str, StoredLedger[ProjectLedger]] = {}
        self.tasks: dict[str, StoredLedger[TaskLedger]] = {}
        """The ledgers of tasks, by their keys."""
        self.blocks = StoredLedger(BudgetBlocks())
        self.unreadable: set[str] = set()
        """Keys of entries that can't be read, such as those of a newer version: they are left as they are."""

    # --- changes -------------------------------------------------------------------------------------------------

    def change_summary(self, key: str, value: bytes | None, _revision: int) -> None:
        """Apply a summary that was written or deleted. A summary that is older than the known one is ignored."""
        project, _, sandbox = key.partition(".")
        if value is None:
            self._remove(project, sandbox)
            return
        try:
            use = SandboxUse.of(SandboxSummary.model_validate_json(value))
        except ValidationError:
            self.unreadable.add(key)
            return
        self.unreadable.discard(key)
        previous = self.uses.setdefault(project, {}).get(sandbox)
        if previous is None or use.sequence >= previous.sequence:
            used = use.used.greatest(previous.used) if previous else use.used
            self.uses[project][sandbox] = replace(use, used=used)
            if use.task is not None:
                self._by_task.setdefault(task_key(project, use.task), set()).add(sandbox)

    def change_ledger(self, key: str, value: bytes | None, revision: int) -> None:
        """Apply an entry of the bucket with ledgers that was written or deleted."""
        try:
            # A deleted entry is read as an empty one.
            self._change_ledger(key, value or b"{}", revision, deleted=value is None)
            self.unreadable.discard(key)
        except ValidationError:
            self.unreadable.add(key)
            if key == BLOCKS_KEY:  # it is computed from other entries, so it can be overwritten
                self.blocks = StoredLedger(BudgetBlocks(), revision)

    def _change_ledger(self, key: str, value: bytes, revision: int, *, deleted: bool) -> None:
        project, _, rest = key.partition(".")
        if key == BLOCKS_KEY:
            self.blocks = StoredLedger(BudgetBlocks.model_validate_json(value), revision)
        elif is_project_key(key) and not deleted:
            self.projects[project] = _newer(
                self.projects.get(project), StoredLedger(ProjectLedger.model_validate_json(value), revision)
            )
        elif rest.startswith("task.") and not deleted:
            self.tasks[key] = _newer(self.tasks.get(key), StoredLedger(TaskLedger.model_validate_json(value), revision))
        elif rest.startswith("task."):
            self.tasks.pop(key, None)

    def _remove(self, project: str, sandbox: str) -> None:
        self.unreadable.discard(f"{project}.{sandbox}")
        use = self.uses.get(project, {}).pop(sandbox, None)
        if use is not None and use.task is not None:
            sandboxes = self._by_task.get(task_key(project, use.task), set())
            sandboxes.discard(sandbox)
            if not sandboxes:
                self._by_task.pop(task_key(project, use.task), None)

    def drop_old(self, now: datetime) -> None:
        """Drop the usage of sandboxes that ended long ago. Their summaries expire, which a watch does not report."""
        for project, uses in self.uses.items():
            for use in list(uses.values()):
                if use.state == "ended" and now - use.updated_at > _ENDED_FOR:
                    self._remove(project, use.sandbox)

    # --- queries -------------------------------------------------------------------------------------------------

    def project_names(self) -> list[str]:
        """The projects with a sandbox or a ledger."""
        return sorted({*self.uses, *self.projects} - {FLEET})

    def is_readable(self, ledger: ProjectLedger | TaskLedger) -> bool:
        """Whether this ledger can be read, or is not stored. If it can't be read, the usage is unknown."""
        return ledger.key not in self.unreadable

    def project(self, name: str) -> StoredLedger[ProjectLedger]:
        """The ledger of a project; an empty one if it has none."""
        return self.projects.get(name) or StoredLedger(ProjectLedger(project=name))

    def uses_of(self, project: str | None, task: str | None = None) -> list[SandboxUse]:
        """The usage of each sandbox of the herd, of a project, or of a task."""
        if project is None:
            return [use for uses in self.uses.values() for use in uses.values()]
        uses = self.uses.get(project, {})
        if task is None:
            return list(uses.values())
        return [uses[name] for name in self._by_task.get(task_key(project, task), ()) if name in uses]

    def task(self, project: str, task: str, now: datetime) -> StoredLedger[TaskLedger]:
        """The ledger of a task with the usage of its sandboxes at `now`."""
        stored = self.tasks.get(task_key(project, task)) or StoredLedger(TaskLedger(project=project, task=task))
        charges = self.project(project).value.charged
        return StoredLedger(with_usage(stored.value, self.uses_of(project, task), now, charges), stored.revision)

    def known_tasks(self) -> Iterator[tuple[str, str]]:
        """The tasks with a known sandbox or a ledger, each as project and name."""
        tasks = {task_key(use.project, use.task): (use.project, use.task) for use in self.uses_of(None) if use.task}
        tasks |= {key: (stored.value.project, stored.value.task) for key, stored in self.tasks.items()}
        yield from tasks.values()

    def limits_of_task(self, ledger: TaskLedger) -> list[BudgetLimit]:
        """The limits of a task."""
        uses = self.uses_of(ledger.project, ledger.task)
        limits = budget_decisions.limits_of_task(ledger, uses, self._budgets.task)
        return _with_metering(limits, readable=self.is_readable(ledger))

    def limits_of_project(self, ledger: ProjectLedger, now: datetime) -> list[BudgetLimit]:
        """The limits of a project."""
        by_precedence = (ledger.limits, self._budgets.project)
        uses: Collection[SandboxUse] = self.uses_of(ledger.project)
        limits = budget_decisions.limits_of_windows(ledger.project, ledger.hours, by_precedence, now, uses)
        return _with_metering(limits, readable=self.is_readable(ledger))

    def limits_of_herd(self, now: datetime) -> list[BudgetLimit]:
        """The limits of the herd. Its usage is known only if the ledgers of all projects can be read."""
        by_precedence = (self.project(FLEET).value.limits, self._budgets.herd)
        hours = hourly_totals(stored.value for name, stored in self.projects.items() if name != FLEET)
        limits = budget_decisions.limits_of_windows(None, hours, by_precedence, now, self.uses_of(None))
        return _with_metering(limits, readable=not any(map(is_project_key, self.unreadable)))


def _with_metering(limits: Iterable[BudgetLimit], *, readable: bool) -> list[BudgetLimit]:
    """The limits; unmetered if a ledger can't be read, because the actual usage may exceed the known one."""
    return list(limits) if readable else [replace(limit, metered=False) for limit in limits]


def _newer(known: StoredLedger[LedgerT] | None, update: StoredLedger[LedgerT]) -> StoredLedger[LedgerT]:
    return known if known is not None and known.revision > update.revision else update
