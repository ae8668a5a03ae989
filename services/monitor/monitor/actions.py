"""How the monitor acts on a finding: it publishes an event, and a command to the service that can act."""

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Final

from monitor import housekeeping, notices
from monitor.facts import ObservedEvent
from monitor.guardian import Nudge
from monitor.herd import Herd
from monitor.notices import Notice
from monitor.rule_set import RuleSet
from monitor.rules.rule import Finding
from monitor.state import Outcome, SandboxActivity, Steering
from sandherd.bus.connection import Bus
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.commands import Command, SendMessage, TerminateSandbox
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.monitor import (
    MonitorGuardianAnalysed,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
)
from sandherd.contracts.states import NotificationKind

SENDER: Final = "guardian"
NUDGE_EXPIRES: Final = 300
"""How long a nudge waits for its agent, in seconds; an older one would no longer relate to what the agent does."""


class Actions:
    """Publishes the monitor's decisions. The event is published first: by it, a lost command is published again."""

    def __init__(self, bus: Bus, publisher: EventPublisher, notifications: Collection[NotificationKind] = ()) -> None:
        self._bus = bus
        self._notifications = notifications
        self._publisher = publisher
        self._commands = 0

    async def end(self, state: SandboxActivity, finding: Finding, now: datetime, rules: RuleSet) -> ObservedEvent:
        """Publish the finding, and command the sandbox's end. Returns the published event, to be folded in.

        Raises `RuleFailedError`, and then has published nothing.
        """
        event = await self._publish(state, housekeeping.event_of(finding, state, now, rules), now)
        times = state.found.times + 1 if state.found else 1
        command = TerminateSandbox(sandbox=state.sandbox, reason=finding.rule)
        await self._command(state, command, now, finding.since, finding.rule, times)
        return event

    async def nudge(self, state: SandboxActivity, nudge: Nudge, now: datetime) -> ObservedEvent:
        """Publish the guardian's analysis and decision, and nudge the agent. Returns the decision, to be folded in."""
        steering, pattern = nudge.steering, nudge.pattern
        analysed = MonitorGuardianAnalysed(
            rule=steering.rule,
            needs_steering=True,
            steering_type="nudge",
            summary=pattern.summary,
            evidence=[str(id) for id in pattern.evidence],
        )
        decided = MonitorInterventionDecided(
            rule=steering.rule,
            step="nudge",
            message_id=steering.message,
            correlation_id=steering.correlation,
            intervention_number=steering.number,
            message=steering.text,
        )
        await self._publish(state, analysed, now)
        event = await self._publish(state, decided, now)
        await self.send(state, steering, now)
        return event

    async def send(self, state: SandboxActivity, steering: Steering, now: datetime) -> None:
        """Send the message to the relay, which accepts one id once, however often it is sent."""
        command = SendMessage(
            message=steering.message,
            sandbox=state.sandbox,
            content=steering.text,
            message_type="guardian_nudge",
            sender_id=SENDER,
            correlation_id=steering.correlation,
            expires_seconds=NUDGE_EXPIRES,
        )
        await self._command(state, command, now, steering.decided_at, steering.correlation)

    async def publish_outcome(
        self, state: SandboxActivity, steering: Steering, outcome: Outcome, now: datetime
    ) -> ObservedEvent:
        """Publish the outcome of a nudge. Returns the published event, to be folded in."""
        return await self._publish(
            state, MonitorInterventionOutcome(correlation_id=steering.correlation, outcome=outcome), now
        )

    async def notify(self, herd: Herd, now: datetime, check: Callable[[], None]) -> list[Notice]:
        """Publish the notices of `herd` that are wanted and recent, in order, and drop all. Returns those published.

        `check` is called before each, and raises if this may not be done any more.
        """
        pending = list(herd.notices.values())
        published = notices.due(pending, self._notifications, now)
        for notice in published:
            check()
            sandbox, task = notice.sandbox, notice.task
            await self._publisher.publish(
                notice.event(), project=notice.project, entity=sandbox, sandboxid=sandbox, taskid=task
            )
            herd.notices.pop(notice.cause, None)
        for notice in pending:
            herd.notices.pop(notice.cause, None)
        return published

    async def _publish(self, state: SandboxActivity, data: EventData, now: datetime) -> ObservedEvent:
        event = await self._publisher.publish(
            data,
            project=state.project,
            entity=state.sandbox,
            sandboxid=state.sandbox,
            taskid=state.taskid,
            traceparent=state.traceparent,
        )
        return ObservedEvent(state.project, state.sandbox, data.type, state.number, now, data, event.id)

    async def _command(
        self, state: SandboxActivity, data: Command, now: datetime, since: datetime, *facts: object
    ) -> None:
        self._commands += 1
        command: Envelope[Command] = wrap(
            data,
            data.type,
            id=self._bus.ids.derive(since, data.type, state.project, state.sandbox, *facts),
            source=self._publisher.source,
            sequence=self._commands,
            project=state.project,
            subject=state.sandbox,
            time=now,
            taskid=state.taskid,
            sandboxid=state.sandbox,
            traceparent=state.traceparent,
        )
        await self._bus.publish_command(command)
