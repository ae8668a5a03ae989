"""The Conductor: reads changed summaries, makes the decisions for their projects, stores and publishes these decisions.

Only the holder of the lease `monitor.conductor` runs it. Its work is proportional to the number of changed summaries,
and it reads no events of agents.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Final, get_args

from monitor.conductor import conductor_decisions, project_report
from monitor.conductor.branch_facts import Branches, BranchKey
from monitor.conductor.conductor_ledger import ConductorLedger
from monitor.conductor.evidence import ProjectData
from monitor.conductor.feeds import BranchFeed, SummaryFeed, TaskContexts
from monitor.conductor.herd_index import HerdIndex
from monitor.conductor.ledger_store import LedgerConflictError, LedgerStore, Outbox
from monitor.conductor.members import TaskContext, member_of
from monitor.conductor.policy import ConductorPolicy
from monitor.event_reader import EventReader
from monitor.facts import Key
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.consumers.pull import REBIND_DELAY_SECONDS, ConsumerUnresponsiveError
from sandherd.bus.kv import read_record
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import sleep_aligned
from sandherd.contracts.commands import SendMessage
from sandherd.contracts.events.monitor import ConductorFindingKind
from sandherd.contracts.records import SandboxSummary, SharedSandboxRecord
from sandherd.contracts.states import SandboxState
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

_MAX_PASS_INTERVAL_SECONDS: Final = 1.0
_READ_ERRORS: Final = (*BROKER_ERRORS, ValueError, ConsumerUnresponsiveError)
GAUGES: Final = ("sandherd_conductor_findings", "sandherd_conductor_sandboxes", "sandherd_coherence_lowest_ratio")
_log: Final = logs.get("conductor")


class Conductor:
    """Runs the Conductor while this replica has the lease.

    It reads all summaries and events of branches once, then those that change.
    """

    def __init__(self, bus: Bus, lease: Lease, policy: ConductorPolicy, outbox: Outbox, meters: Meters) -> None:
        self._bus = bus
        self._lease = lease
        self._policy = policy
        self._outbox = outbox
        self._meters = meters
        self._store = LedgerStore(bus)
        self._summaries = SummaryFeed(bus)
        self._branch_feed = BranchFeed(bus)
        self._contexts = TaskContexts(bus)
        self._clock = EventReader(bus)
        self._index = HerdIndex()
        self._branches = Branches()
        self._ledgers: dict[str, ConductorLedger] = {}
        self._changed: dict[str, set[str]] = {}
        """For each project, the sandboxes whose findings may have changed."""
        self._not_indexed: dict[Key, SandboxSummary | None] = {}
        """Summaries that were read and are not in the index yet. None stands for a deleted summary."""
        self._action_may_become_due: set[str] = set()
        """The projects in which an action may become due without a change, for example after a cool-down."""
        self._checked_at = 0.0

    async def run(self) -> None:
        """Work until the lease is lost."""
        try:
            await self._retry(self._start)
            while True:
                await self._retry(self._run_pass)
                await sleep_aligned(min(_MAX_PASS_INTERVAL_SECONDS, self._policy.check_interval))
        except LeaseLostError:
            _log.warning("lease lost, conductor stopped")
        except LedgerConflictError as error:
            _log.warning("conductor record not stored, reading all records again", error=str(error))
            await asyncio.sleep(REBIND_DELAY_SECONDS)
        finally:
            await self._branch_feed.stop()
            self._meters.hide(*GAUGES)

    async def _retry(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`, and retry it while the broker does not respond. What was read before an error is not lost."""
        while True:
            self._lease.check()
            try:
                await work()
            except _READ_ERRORS as error:
                _log.warning("broker not responding, sandboxes not compared", error=repr(error))
                await asyncio.sleep(REBIND_DELAY_SECONDS)
            else:
                return

    async def _start(self) -> None:
        """Read everything, and publish the outboxes: the former holder of the lease may not have published them."""
        self._ledgers = await self._store.restore()
        await self._branch_feed.start()
        await self._read_changes()
        for project, ledger in self._ledgers.items():
            self._mark_changed((project, name) for finding in ledger.findings for name in finding.sandboxes)
            self._action_may_become_due.add(project)
        for project in [name for name, ledger in self._ledgers.items() if ledger.outbox]:
            await self._publish(project, may_be_published=True)

    async def _run_pass(self) -> None:
        await self._read_changes()
        projects = set(self._changed)
        now = asyncio.get_running_loop().time()
        if now - self._checked_at >= self._policy.check_interval:
            self._checked_at, projects = now, projects | self._action_may_become_due
        if not projects:
            return
        # The broker's clock, because summaries and events have its times.
        broker_time = (await self._clock.bounds()).requested_at
        for project in sorted(projects):
            await self._decide(project, broker_time)
        self._measure()

    # --- reading -----------------------------------------------------------------------------------------------

    async def _read_changes(self) -> None:
        await self._update_index()
        while batch := await self._summaries.next_batch():
            for key, summary in batch.items():
                self._not_indexed[key] = summary
            await self._update_index()
            self._meters.count("sandherd_conductor_summaries_total", len(batch))
        while events := await self._branch_feed.next_batch():
            for event in events:
                for branch in self._branches.fold(event.project, event.data, event.at):
                    self._mark_changed(self._affected_by(branch))

    async def _update_index(self) -> None:
        """Move the summaries that were read into the index. Those of ended sandboxes need no context of their task."""
        live = [summary for summary in self._not_indexed.values() if summary is not None and summary.state != "ended"]
        tasks = {(summary.project, summary.task) for summary in live if summary.task is not None}
        contexts = await self._contexts.of(tasks)
        for key, summary in self._not_indexed.items():
            context = contexts.get((key[0], (summary and summary.task) or ""), TaskContext())
            member = member_of(summary, context, self._policy.ignored) if summary is not None else None
            self._mark_changed(self._index.replace(key, member))
        self._not_indexed = {}

    def _mark_changed(self, keys: Iterable[Key]) -> None:
        for project, sandbox in keys:
            self._changed.setdefault(project, set()).add(sandbox)

    def _affected_by(self, branch: BranchKey) -> set[Key]:
        return {member.key for member in (*self._index.on_branch(*branch), *self._index.on_base(*branch))}

    # --- deciding ----------------------------------------------------------------------------------------------

    async def _decide(self, project: str, now: datetime) -> None:
        before = self._ledgers.get(project, ConductorLedger())
        changed = self._changed.get(project, set())
        comparisons_before, scope = self._index.comparison_count, ProjectData(project, self._index, self._branches)
        ledger = conductor_decisions.reconcile(before, changed, scope, now)
        self._meters.count("sandherd_conductor_comparisons_total", self._index.comparison_count - comparisons_before)
        if self._policy.notifies:
            ledger = conductor_decisions.with_notifications(ledger, now)
        ledger = await self._with_actions(ledger, scope, now)
        ledger, report_waits = self._with_report(ledger, project, now)
        self._record_waiting(project, ledger, report_waits=report_waits)
        if ledger != before:
            self._lease.check()
            await self._store.save(project, ledger)
            self._ledgers[project] = ledger
            await self._publish(project, may_be_published=False)
        if len(ledger.outbox) < conductor_decisions.MAX_EVENTS:
            self._changed.pop(project, None)

    async def _with_actions(self, ledger: ConductorLedger, scope: ProjectData, now: datetime) -> ConductorLedger:
        project = scope.project
        if self._policy.pauses:
            for sandbox, finding in conductor_decisions.pauses_due(ledger, scope).items():
                if await self._is_running(project, sandbox):
                    ledger = conductor_decisions.with_pause(ledger, finding, now)
        if self._policy.informs:
            announcements = conductor_decisions.announcements_due(
                ledger, scope, now, self._policy.cooldown, pauses=self._policy.pauses
            )
            for announcement in announcements:
                if all([await self._is_running(project, sandbox) for sandbox in announcement.sandboxes]):
                    ledger = conductor_decisions.announce(ledger, announcement, now, self._policy.cooldown)
        return ledger

    async def _is_running(self, project: str, sandbox: str) -> bool:
        """Whether the sandbox runs, according to the spawner's record, so that its agent can receive a message."""
        record = await read_record(self._bus, SharedSandboxRecord, project, sandbox)
        return record is not None and record.state is SandboxState.RUNNING

    def _with_report(self, ledger: ConductorLedger, project: str, now: datetime) -> tuple[ConductorLedger, bool]:
        """The ledger, with a report if a report is due now; and whether a report becomes due later."""
        report = project_report.assess(ledger, self._index.of_project(project), now)
        wait = project_report.seconds_until_report(ledger, report)
        if wait == 0:
            return project_report.add_report(ledger, report), False
        return ledger, wait is not None

    def _record_waiting(self, project: str, ledger: ConductorLedger, *, report_waits: bool) -> None:
        has_uninformed = any(finding.open and finding.informed_at is None for finding in ledger.findings)
        if report_waits or (self._policy.informs and has_uninformed) or self._policy.pauses:
            self._action_may_become_due.add(project)
        else:
            self._action_may_become_due.discard(project)

    async def _publish(self, project: str, *, may_be_published: bool) -> None:
        """Publish the outbox of a project, and store that it is empty."""
        ledger = self._ledgers[project]
        if not ledger.outbox:
            return
        for output in ledger.outbox:
            self._lease.check()
            await self._outbox.publish(project, output, repeated=may_be_published)
            name = "sandherd_conductor_messages_total" if output.type == SendMessage.type else None
            if name is not None:
                self._meters.count(name)
            else:
                self._meters.count("sandherd_conductor_published_total", type=output.type)
        emptied = ledger.model_copy(update={"outbox": ()})
        await self._store.save(project, emptied)
        self._ledgers[project] = emptied

    def _measure(self) -> None:
        kinds = [finding.kind for ledger in self._ledgers.values() for finding in ledger.findings if finding.open]
        for kind in get_args(ConductorFindingKind):
            self._meters.set("sandherd_conductor_findings", kinds.count(kind), kind=kind)
        scores = [ledger.reported.score for ledger in self._ledgers.values() if ledger.reported is not None]
        self._meters.set("sandherd_coherence_lowest_ratio", min(scores, default=1.0))
        self._meters.set("sandherd_conductor_sandboxes", len(self._index.members))
