"""Publishes messages about budgets: events, messages to agents, and commands to end sandboxes.

Their ids and contents are derived from stored data, so that each is the same when it is published again.
"""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from monitor.budgets import budget_decisions
from monitor.budgets.amounts import SandboxUse
from monitor.budgets.budget_decisions import EXCEEDED, BudgetLimit
from monitor.budgets.budget_ledger import ReachedLimit
from monitor.facts import BUDGETS
from sandherd.bus.connection import Bus
from sandherd.contracts.commands import Command, SendMessage, TerminateSandbox
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.monitor import (
    MonitorBudgetExceeded,
    MonitorBudgetGranted,
    MonitorBudgetWarned,
    MonitorEvent,
)
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import GrantBudget
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

SENDER: Final = BUDGETS
_MAX_SENT_COMMANDS: Final = 20_000
_log: Final = logs.get("budgets")


class BudgetMessages:
    """Publishes the messages about budgets. `grace` is the time that an agent has to end its work, in seconds."""

    def __init__(self, bus: Bus, meters: Meters, grace: float) -> None:
        self._bus = bus
        self._meters = meters
        self._grace = grace
        self._sent_commands: dict[UUID, None] = {}
        """The ids of commands that were sent, so that they are not sent again in each pass."""

    async def publish_reached(
        self, limit: BudgetLimit, name: str, mark: ReachedLimit, uses: Collection[SandboxUse]
    ) -> None:
        """Publish that a limit was reached.

        The event is about the latest sandbox of the task, or about the whole project.
        """
        kind = MonitorBudgetExceeded if name.endswith(f".{EXCEEDED}") else MonitorBudgetWarned
        data = kind(
            scope=limit.scope,
            window=limit.window,
            budget=limit.kind,
            limit=mark.limit,
            used=mark.used,
            cost_micro_usd=mark.used if limit.kind == "cost" else None,
        )
        latest = max(uses, key=lambda use: (use.started_at, use.sandbox), default=None)
        entity = latest.sandbox if latest else FLEET
        id = self._bus.ids.derive(mark.at, data.type, limit.scope, limit.project, limit.task, name, mark.limit)
        attributes = {"project": limit.project or FLEET, "subject": entity, "taskid": limit.task}
        await self._publish_event(data, id, mark.at, attributes)
        level = "exceeded" if kind is MonitorBudgetExceeded else "warned"
        self._meters.count("sandherd_budget_crossings_total", scope=limit.scope, level=level)
        _log.info("budget reached", scope=limit.scope, project=limit.project, task=limit.task, limit=name)

    async def publish_granted(self, project: str, entity: str, request: GrantBudget, at: datetime) -> None:
        """Publish a grant."""
        data = MonitorBudgetGranted(grant=request.grant, more=request.more, granted_by=request.granted_by)
        id = self._bus.ids.derive(at, data.type, project, request.task, request.grant)
        await self._publish_event(data, id, at, {"project": project, "subject": entity, "taskid": request.task})

    async def stop(self, use: SandboxUse, limit: BudgetLimit, mark: ReachedLimit, now: datetime) -> None:
        """Request an agent to end its work; after the time for that, command the end of its sandbox."""
        earlier_requests = budget_decisions.previous_stops(use, mark.at, self._grace, now)
        if earlier_requests is not None:
            data = TerminateSandbox(sandbox=use.sandbox, reason=ErrorType.BUDGET_EXCEEDED)
            if await self._publish_command(use, data, mark.at, limit.name, earlier_requests) and earlier_requests == 0:
                self._meters.count("sandherd_budget_stops_total", scope=limit.scope)
                _log.info("budget exceeded, ending sandbox", project=use.project, sandbox=use.sandbox)
            return
        id = self._bus.ids.derive(mark.at, SENDER, use.project, use.sandbox, limit.name, mark.limit)
        message = SendMessage(
            message=f"msg-{id.hex}",
            sandbox=use.sandbox,
            content=budget_decisions.wrap_up_text(limit_at(limit, mark), self._grace),
            message_type="guardian_nudge",
            sender_id=SENDER,
            correlation_id=str(id),
            expires_seconds=max(60, int(self._grace)),
        )
        await self._publish_command(use, message, mark.at, limit.name, mark.limit)

    async def _publish_event(self, data: MonitorEvent, id: UUID, at: datetime, attributes: Mapping[str, Any]) -> None:
        """Publish an event with a separate source, so that a replica that repeats it uses the same sequence."""
        event: Envelope[MonitorEvent] = wrap(
            data,
            data.type,
            id=id,
            source=f"/sandherd/monitor/budgets/{id.hex}",
            sequence=1,
            time=at,
            sandboxid=None if attributes["subject"] == FLEET else attributes["subject"],
            **attributes,
        )
        await self._bus.publish_event(event)

    async def _publish_command(self, use: SandboxUse, data: Command, at: datetime, *id_parts: object) -> bool:
        """Publish a command once. Returns whether it was published now."""
        id = self._bus.ids.derive(at, data.type, use.project, use.sandbox, SENDER, *id_parts)
        if id in self._sent_commands:
            return False
        command: Envelope[Command] = wrap(
            data,
            data.type,
            id=id,
            source=f"/sandherd/monitor/budgets/{id.hex}",
            sequence=1,
            project=use.project,
            subject=use.sandbox,
            time=at,
            taskid=use.task,
            sandboxid=use.sandbox,
        )
        await self._bus.publish_command(command)
        self._sent_commands[id] = None
        while len(self._sent_commands) > _MAX_SENT_COMMANDS:
            del self._sent_commands[next(iter(self._sent_commands))]
        return True


def limit_at(limit: BudgetLimit, mark: ReachedLimit) -> BudgetLimit:
    """The limit as it was when it was reached, because the text of a repeated message has to be the same."""
    return BudgetLimit(limit.scope, limit.project, limit.task, limit.window, limit.kind, mark.limit, mark.used)
