"""What the monitor does about what it found: an event that says so, and a command to whoever can do it."""

from datetime import datetime
from typing import Final

from monitor.guardian import Nudge
from monitor.rules import Finding, Rule
from monitor.state import Outcome, Seen, Steering, Watched
from sandherd.bus.connection import Bus
from sandherd.bus.publishing import Speaker
from sandherd.contracts.commands import Command, SendMessage, TerminateSandbox
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.monitor import (
    Found,
    MonitorDeadFound,
    MonitorFloodFound,
    MonitorGuardianAnalysed,
    MonitorIdleFound,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
)

SENDER: Final = "guardian"
NUDGE_EXPIRES: Final = 300
"""How long a nudge waits for its agent, in seconds; an older one would come out of the blue."""


class Acting:
    """Says the monitor's decisions. The event comes first: a command that was lost is given again, by it."""

    def __init__(self, bus: Bus, speaker: Speaker) -> None:
        self._bus = bus
        self._speaker = speaker
        self._commands = 0

    async def end(self, state: Watched, finding: Finding, now: datetime) -> Seen:
        """Say what was found, and have the sandbox ended. Returns what was said, to be folded in."""
        said = await self._say(state, _found(state, finding, now), now)
        times = state.found.times + 1 if state.found else 1
        command = TerminateSandbox(sandbox=state.sandbox, reason=finding.rule)
        await self._command(state, command, now, finding.since, finding.rule, times)
        return said

    async def nudge(self, state: Watched, nudge: Nudge, now: datetime) -> Seen:
        """Say what the guardian saw and decided, and send it to the agent. Returns the decision, to be folded in."""
        steering, streak = nudge.steering, nudge.streak
        analysed = MonitorGuardianAnalysed(
            rule=steering.rule,
            needs_steering=True,
            steering_type="nudge",
            summary=f"{streak.tool}: the same call with the same result, {streak.count} times in a row",
            evidence=[str(id) for id in streak.evidence],
        )
        decided = MonitorInterventionDecided(
            rule=steering.rule,
            step="nudge",
            message_id=steering.message,
            correlation_id=steering.correlation,
            intervention_number=steering.number,
            message=steering.text,
        )
        await self._say(state, analysed, now)
        said = await self._say(state, decided, now)
        await self.send(state, steering, now)
        return said

    async def send(self, state: Watched, steering: Steering, now: datetime) -> None:
        """Give the message to the relay, which takes one id once, however often it is given."""
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

    async def tell(self, state: Watched, steering: Steering, outcome: Outcome, now: datetime) -> Seen:
        """Say what came of a steering. Returns what was said, to be folded in."""
        return await self._say(
            state, MonitorInterventionOutcome(correlation_id=steering.correlation, outcome=outcome), now
        )

    async def _say(self, state: Watched, data: EventData, now: datetime) -> Seen:
        event = await self._speaker.say(
            data,
            project=state.project,
            entity=state.sandbox,
            sandboxid=state.sandbox,
            taskid=state.taskid,
            traceparent=state.traceparent,
        )
        return Seen(state.project, state.sandbox, data.type, state.number, now, data, event.id)

    async def _command(self, state: Watched, data: Command, now: datetime, since: datetime, *facts: object) -> None:
        self._commands += 1
        command: Envelope[Command] = wrap(
            data,
            data.type,
            id=self._bus.ids.derive(since, data.type, state.project, state.sandbox, *facts),
            source=self._speaker.source,
            sequence=self._commands,
            project=state.project,
            subject=state.sandbox,
            time=now,
            taskid=state.taskid,
            sandboxid=state.sandbox,
            traceparent=state.traceparent,
        )
        await self._bus.publish_command(command)


def _found(state: Watched, finding: Finding, now: datetime) -> Found:
    """The event that says what was found."""
    age, limit = finding.age(now), finding.limit
    if finding.rule is Rule.FLOODING:
        return MonitorFloodFound(
            rule=finding.rule,
            age_seconds=age,
            limit_seconds=limit,
            said_bytes=state.said_bytes,
            said_messages=state.said_messages,
            said_junk=state.said_junk,
        )
    model = MonitorDeadFound if finding.rule is Rule.DEAD else MonitorIdleFound
    return model(rule=finding.rule, age_seconds=age, limit_seconds=limit)
