"""Enforces budgets while the lease `monitor.budgets` is held: charges usage, decides, and acts.

Each step is stored before it is acted upon, and the ids of its messages are derived from the stored data. So a monitor
that is restarted between two steps repeats the messages of the last one, and the broker drops duplicates.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Final, TypeVar

from pydantic import BaseModel

from monitor.bucket_entries import BucketWatch
from monitor.budgets import budget_decisions
from monitor.budgets.amounts import SandboxUse, UsedByKind
from monitor.budgets.budget_decisions import EXCEEDED, BudgetLimit
from monitor.budgets.budget_ledger import BLOCKS_KEY, ProjectLedger, ReachedLimit, TaskLedger, with_charges
from monitor.budgets.budget_messages import BudgetMessages
from monitor.budgets.budget_state import BudgetState, StoredLedger
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError
from sandherd.bus.kv import revision_headers
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.names import FLEET, new_uuid
from sandherd.contracts.records import BudgetBlocks
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

ResultT = TypeVar("ResultT")
_TASK_TTL: Final = "2678400s"
"""How long the ledger of a task stays after its last change: 31 days."""
_log: Final = logs.get("budgets")
_GAUGES: Final = ("sandherd_budgets_exceeded", "sandherd_budget_entries_unreadable")
_MAX_LOGGED_KEYS: Final = 10
_MAX_BLOCKS: Final = 2000
"""Maximum number of projects in the record for the spawner, which has to fit in a message."""


class BudgetEnforcement:
    """Runs passes over all live sandboxes and their projects, one pass at a time."""

    def __init__(self, bus: Bus, lease: Lease, state: BudgetState, messages: BudgetMessages, meters: Meters) -> None:
        self._bus = bus
        self._lease = lease
        self._state = state
        self._messages = messages
        self._meters = meters
        self._is_partial = False
        """Whether the last pass left out a project whose ledger it could not write."""
        self._logged_keys: frozenset[str] = frozenset()
        """Unreadable entries that were logged."""

    async def run(self, watches: tuple[BucketWatch, ...], interval: float) -> None:
        """Run until cancelled."""
        while True:
            if not self._lease.held:
                self._meters.hide(*_GAUGES)
            await self._lease.wait_held()
            try:
                # The writes of the previous holder and of other replicas' requests have to be known. The time is the
                # broker's, as in summaries: with another clock, wall time and the time for an agent's end would differ.
                now = max([await watch.catch_up() for watch in watches])
                await self.work(now)
                self._meters.count("sandherd_budget_passes_total", result="failed" if self._is_partial else "ok")
            except LeaseLostError:
                _log.info("lease lost, budget checks stopped")
            except (BusError, *READ_ERRORS) as error:
                self._meters.count("sandherd_budget_passes_total", result="failed")
                _log.warning("budgets not checked, retrying", error=repr(error))
            for watch in watches:
                watch.changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await watches[0].changed.wait()
                    await asyncio.sleep(min(interval, 0.2))  # several changes are one pass

    async def work(self, now: datetime) -> None:
        """Run one pass. Raises `LeaseLostError`, and `BusError`; the next pass does what this one did not complete.

        A ledger that can't be read is left out, so that the budgets of all others are enforced.
        """
        self._is_partial = False
        self._report_unreadable()
        self._state.drop_old(now)
        names = self._state.project_names()
        exceeded = {name: await self._run_isolated(self._run_project(name, now), name) for name in names}
        herd_exceeded = await self._run_isolated(self._run_herd(now), FLEET)
        tasks = 0
        for project, task in list(self._state.known_tasks()):
            tasks += bool(await self._run_isolated(self._run_task(project, task, now), project))
        await self._write_blocks(herd_exceeded, exceeded)
        projects = sum(map(bool, exceeded.values()))
        for scope, count in (("herd", bool(herd_exceeded)), ("project", projects), ("task", tasks)):
            self._meters.set("sandherd_budgets_exceeded", float(count), scope=scope)

    def _report_unreadable(self) -> None:
        for key in sorted(self._state.unreadable - self._logged_keys)[:_MAX_LOGGED_KEYS]:
            _log.error("entry of budgets unreadable", key=key)
        self._logged_keys = frozenset(self._state.unreadable)
        self._meters.set("sandherd_budget_entries_unreadable", float(len(self._logged_keys)))

    async def _run_isolated(self, work: Awaitable[ResultT], project: str) -> ResultT | None:
        """Run one part of a pass, and return its result.

        If the part fails while the broker responds, the other parts continue. The result is None then, and the next
        pass tries again.
        """
        try:
            return await work
        except LeaseLostError:
            raise
        except (BusError, *READ_ERRORS) as error:
            if not self._bus.connected:
                raise
            self._is_partial = True
            _log.error("budgets of a project not checked, retrying", project=project, error=repr(error))
            return None

    # --- scopes --------------------------------------------------------------------------------------------------

    async def _run_project(self, name: str, now: datetime) -> list[BudgetLimit]:
        """Charge the project's sandboxes, and act on its limits. Returns the limits that are exceeded."""
        current = self._state.project(name)
        if not self._state.is_readable(current.value):
            return []
        ledger = with_charges(current.value, self._state.uses_of(name), now)
        limits = self._state.limits_of_project(ledger, now)
        ledger = _with_marks(ledger, budget_decisions.updated_marks(ledger.marks, limits, now))
        if ledger is not current.value:
            current = await self._store_project(current, ledger)
        await self._publish_project(current, limits)
        await self._stop_agents(current.value.marks, limits, self._state.uses_of(name), now)
        return [limit for limit in limits if limit.reaches(100)]

    async def _run_herd(self, now: datetime) -> list[BudgetLimit]:
        current, limits = self._state.project(FLEET), self._state.limits_of_herd(now)
        if not self._state.is_readable(current.value):
            return []
        ledger = _with_marks(current.value, budget_decisions.updated_marks(current.value.marks, limits, now))
        if ledger is not current.value:
            current = await self._store_project(current, ledger)
        await self._publish_project(current, limits)
        await self._stop_agents(current.value.marks, limits, self._state.uses_of(None), now)
        return [limit for limit in limits if limit.reaches(100)]

    async def _run_task(self, project: str, task: str, now: datetime) -> bool:
        """Act on the limits of a task. Returns whether a limit is exceeded while an agent may still use something."""
        stored = self._state.tasks.get(f"{project}.task.{task}")
        current = self._state.task(project, task, now)
        limits = self._state.limits_of_task(current.value)
        marks = budget_decisions.updated_marks(current.value.marks, limits, now)
        uses = self._state.uses_of(project, task)
        if not any(limit.limit for limit in limits) or not self._state.is_readable(current.value):
            return False
        ledger = current.value.model_copy(update={"marks": dict(marks)})
        if marks is not current.value.marks or _has_ended(stored, uses):
            current = await self._store_task(ledger, current.revision)
        for name, mark in current.value.marks.items():
            if not mark.published:
                self._lease.check()
                await self._messages.publish_reached(_limit(limits, name), name, mark, uses)
                published = {**current.value.marks, name: mark.model_copy(update={"published": True})}
                current = await self._store_task(
                    current.value.model_copy(update={"marks": published}), current.revision
                )
        await self._stop_agents(current.value.marks, limits, uses, now)
        return budget_decisions.exceeded_since(current.value.marks) is not None and any(use.is_live for use in uses)

    async def _publish_project(self, current: StoredLedger[ProjectLedger], limits: list[BudgetLimit]) -> None:
        for name, mark in current.value.marks.items():
            if not mark.published:
                self._lease.check()
                await self._messages.publish_reached(_limit(limits, name), name, mark, ())
                published = {**current.value.marks, name: mark.model_copy(update={"published": True})}
                current = await self._store_project(current, current.value.model_copy(update={"marks": published}))

    async def _stop_agents(
        self, marks: Mapping[str, ReachedLimit], limits: list[BudgetLimit], uses: list[SandboxUse], now: datetime
    ) -> None:
        """Request each live agent to end its work, and after the time for that end its sandbox."""
        name = min((name for name in marks if name.endswith(f".{EXCEEDED}")), key=lambda one: marks[one].at, default="")
        if not name:
            return
        for use in uses:
            if use.is_live:
                self._lease.check()
                await self._messages.stop(use, _limit(limits, name), marks[name], now)

    # --- writes --------------------------------------------------------------------------------------------------

    async def _store_project(
        self, current: StoredLedger[ProjectLedger], ledger: ProjectLedger
    ) -> StoredLedger[ProjectLedger]:
        revision = await self._write(ledger.key, ledger, current.revision)
        stored = self._state.projects[ledger.project] = StoredLedger(ledger, revision)
        return stored

    async def _store_task(self, ledger: TaskLedger, revision: int) -> StoredLedger[TaskLedger]:
        written = await self._write(ledger.key, ledger, revision, ttl=_TASK_TTL)
        stored = self._state.tasks[ledger.key] = StoredLedger(ledger, written)
        return stored

    async def _write_blocks(
        self, herd_exceeded: list[BudgetLimit] | None, exceeded: Mapping[str, list[BudgetLimit] | None]
    ) -> None:
        """Write the record of projects in which no task may begin.

        Limits of None could not be checked: their existing block stays.
        """
        current = self._state.blocks.value
        texts = {name: _block(limits, current.projects.get(name)) for name, limits in exceeded.items()}
        blocked = [(name, text) for name, text in texts.items() if text is not None]
        blocks = BudgetBlocks(herd=_block(herd_exceeded, current.herd), projects=dict(blocked[:_MAX_BLOCKS]))
        if blocks != current:
            revision = await self._write(BLOCKS_KEY, blocks, self._state.blocks.revision)
            self._state.blocks = StoredLedger(blocks, revision)

    async def _write(self, key: str, value: BaseModel, revision: int, ttl: str | None = None) -> int:
        """Replace a revision, and return the new one. Raises `BusError`, also if another write came before."""
        self._lease.check()
        headers = revision_headers(revision, ttl)
        document = value.model_dump_json(exclude_defaults=True).encode()
        return (await self._bus.publish(f"$KV.budgets.{key}", document, msg_id=str(new_uuid()), headers=headers)).seq


def _block(limits: list[BudgetLimit] | None, before: str | None) -> str | None:
    return before if limits is None else budget_decisions.block_of(limits)


def _with_marks(ledger: ProjectLedger, marks: Mapping[str, ReachedLimit]) -> ProjectLedger:
    return ledger if marks is ledger.marks else ledger.model_copy(update={"marks": dict(marks)})


def _has_ended(stored: StoredLedger[TaskLedger] | None, uses: list[SandboxUse]) -> bool:
    """Whether a sandbox has ended before its usage was stored."""
    stored_usage = stored.value.sandboxes if stored else {}
    ended = (use for use in uses if use.state == "ended")
    return any(any(use.used.beyond(stored_usage.get(use.sandbox, _UNKNOWN_USAGE))) for use in ended)


_UNKNOWN_USAGE: Final = UsedByKind(-1, -1, -1, -1)


def _limit(limits: list[BudgetLimit], mark: str) -> BudgetLimit:
    """The limit to which a mark belongs."""
    return next(limit for limit in limits if mark.startswith(f"{limit.name}."))
