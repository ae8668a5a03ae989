"""Acts on a finding: publishes an event, and a command to the service that carries the action out."""

import re
from collections.abc import Collection
from datetime import datetime
from itertools import count
from typing import Final

from monitor import decision_events, housekeeping_findings, notices
from monitor.assessment.model_reply import Assessment
from monitor.facts import GUARDIAN, ObservedEvent
from monitor.guardian import GuardianDecision, NextCommand
from monitor.herd import Herd
from monitor.notices import Notice
from monitor.rule_set import RuleSet
from monitor.rules.rule import Finding
from monitor.sandbox_state import Outcome, SandboxActivity, Steering
from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.commands import (
    Command,
    PauseSandbox,
    RequestApproval,
    ResumeSandbox,
    SendableMessageType,
    SendMessage,
    TerminateSandbox,
    WithdrawApproval,
)
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.monitor import MonitorFindingAssessed
from sandherd.contracts.states import NotificationKind

SENDER: Final = GUARDIAN
MESSAGE_EXPIRES: Final = 300
"""Seconds after which an undelivered message expires, because it no longer relates to what the agent does."""
_MAX_REASON_LENGTH: Final = 2000
_CONTROL_CHARACTERS: Final = re.compile(r"[\x00-\x1f\x7f]+")


class Actions:
    """Publishes the monitor's decisions: first the event, then the command.

    If the command is lost, the monitor finds the event and publishes the command again. With a lease, publishing raises
    `LeaseLostError` once the lease is lost, also for a message that the broker has not acknowledged yet.
    """

    def __init__(
        self,
        bus: Bus,
        publisher: EventPublisher,
        notifications: Collection[NotificationKind] = (),
        lease: Lease | None = None,
    ) -> None:
        self._bus = bus
        self._notifications = notifications
        self._publisher = publisher.while_held(lease) if lease else publisher
        self._lease = lease
        self._numbers = count(1)

    def while_held(self, lease: Lease) -> "Actions":
        """A copy that publishes only while this lease is held."""
        actions = Actions(self._bus, self._publisher, self._notifications, lease)
        actions._numbers = self._numbers
        return actions

    async def end(
        self, state: SandboxActivity, finding: Finding, now: datetime, rules: RuleSet
    ) -> ObservedEvent | None:
        """Publish the finding, and command the sandbox's end. Returns the published event, to be folded in.

        Returns None if the stream already has this event, which the caller has to read before it acts again. Raises
        `RuleFailedError` before anything is published.
        """
        times = state.found.times + 1 if state.found else 1
        data = housekeeping_findings.event_of(finding, state, now, rules)
        event, is_first = await self._publish(state, data, now, finding.since, finding.rule, times)
        command = TerminateSandbox(sandbox=state.sandbox, reason=finding.rule)
        await self._publish_command(state, command, now, finding.since, finding.rule, times)
        return event if is_first else None

    async def publish_pattern(self, state: SandboxActivity, decision: GuardianDecision, now: datetime) -> ObservedEvent:
        """Publish the guardian's analysis, unless the stream already has it. Returns the event, to be folded in."""
        pattern, step = decision.pattern, decision.step
        number = 0 if decision.steering is None else decision.steering.number
        data = decision_events.analysis_event(decision)
        event, _ = await self._publish(state, data, now, pattern.rule, pattern.key, pattern.began, step, number)
        return event

    async def publish_decision(self, state: SandboxActivity, steering: Steering, now: datetime) -> ObservedEvent | None:
        """Publish the decision to intervene; its commands follow. Returns the event, to be folded in.

        Returns None if the stream already has a decision with this number: the caller has to read it before it decides
        again.
        """
        event, is_first = await self._publish(state, decision_events.decision_event(steering), now, steering.number)
        return event if is_first else None

    async def send(self, state: SandboxActivity, steering: Steering, sending: NextCommand, now: datetime) -> None:
        """Send a command of an intervention.

        A command has one id, so it is carried out once even if it is sent repeatedly.
        """
        command = _command_of(state, steering, sending)
        await self._publish_command(state, command, now, steering.decided_at, steering.correlation, sending.value)

    async def publish_outcome(
        self, state: SandboxActivity, steering: Steering, outcome: Outcome, now: datetime
    ) -> ObservedEvent | None:
        """Publish the outcome of an intervention. Returns the event, to be folded in.

        Returns None if the stream already has the outcome of this intervention.
        """
        data = decision_events.outcome_event(steering, outcome)
        event, is_first = await self._publish(state, data, now, steering.correlation)
        return event if is_first else None

    async def publish_assessment(
        self, state: SandboxActivity, rule: str, model: str, assessment: Assessment, now: datetime
    ) -> ObservedEvent | None:
        """Publish a model's verdict on a soft finding, or that there is none. Returns the event, to be folded in.

        Returns None if the finding was already assessed in this episode.
        """
        data = MonitorFindingAssessed(
            rule=rule,
            verdict=assessment.verdict,
            failure=assessment.failure,
            evidence=[str(id) for id in assessment.evidence],
            model=model,
            tokens=assessment.tokens,
            through=assessment.through,
        )
        event, is_first = await self._publish(state, data, now, rule, state.episode_at)
        return event if is_first else None

    async def notify(self, herd: Herd, now: datetime) -> list[Notice]:
        """Publish the recent notices of `herd` that the settings select, in order, and drop all notices.

        Returns the published ones.
        """
        pending = list(herd.notices.values())
        published = notices.due_notices(pending, self._notifications, now)
        for notice in published:
            sandbox, task = notice.sandbox, notice.task
            await self._publisher.publish(
                notice.event(), project=notice.project, entity=sandbox, sandboxid=sandbox, taskid=task
            )
            herd.notices.pop(notice.cause, None)
        for notice in pending:
            herd.notices.pop(notice.cause, None)
        return published

    async def _publish(
        self, state: SandboxActivity, data: EventData, now: datetime, *id_parts: object
    ) -> tuple[ObservedEvent, bool]:
        """Publish an event. Returns it, and whether it is the first of its type with these `id_parts`.

        Its id is derived from `id_parts`. A process that is suspended after it has checked its lease may publish when
        another process holds the lease. The stream stores only the first of two such events, and the other process
        reads it.
        """
        derived_id = self._bus.ids.derive(state.started_at, data.type, state.project, state.sandbox, *id_parts)
        event = await self._publisher.publish_first(
            data,
            derived_id,
            project=state.project,
            entity=state.sandbox,
            sandboxid=state.sandbox,
            taskid=state.taskid,
            traceparent=state.traceparent,
        )
        id = None if event is None else event.id
        return ObservedEvent(state.project, state.sandbox, data.type, state.number, now, data, id), event is not None

    async def _publish_command(
        self, state: SandboxActivity, data: Command, now: datetime, since: datetime, *id_parts: object
    ) -> None:
        command: Envelope[Command] = wrap(
            data,
            data.type,
            id=self._bus.ids.derive(since, data.type, state.project, state.sandbox, *id_parts),
            source=self._publisher.source,
            sequence=next(self._numbers),
            project=state.project,
            subject=state.sandbox,
            time=now,
            taskid=state.taskid,
            sandboxid=state.sandbox,
            traceparent=state.traceparent,
        )
        await self._bus.publish_command(command, check=self._lease.check if self._lease else None)


def _command_of(state: SandboxActivity, steering: Steering, sending: NextCommand) -> Command:
    sandbox = state.sandbox
    match sending:
        case NextCommand.MESSAGE | NextCommand.INSTRUCTION:
            return _message(sandbox, steering, sending)
        case NextCommand.APPROVAL | NextCommand.WITHDRAWAL:
            return _approval_command(sandbox, steering, sending)
        case NextCommand.PAUSE:
            return PauseSandbox(sandbox=sandbox, reason=f"rule {steering.rule}")
        case NextCommand.RESUME:
            return ResumeSandbox(sandbox=sandbox)
        case NextCommand.TERMINATION:
            return TerminateSandbox(sandbox=sandbox, reason=steering.rule)


def _approval_command(sandbox: str, steering: Steering, sending: NextCommand) -> Command:
    approval_id = steering.approval or ""
    if sending is NextCommand.APPROVAL:
        reason = approval_reason(sandbox, steering)
        return RequestApproval(sandbox=sandbox, approval_id=approval_id, tool="continue", reason=reason)
    withdrawal_reason = "the sandbox was resumed" if steering.received_at is not None else "the agent has ended"
    return WithdrawApproval(sandbox=sandbox, approval_id=approval_id, reason=withdrawal_reason)


def _message(sandbox: str, steering: Steering, sending: NextCommand) -> SendMessage:
    is_instruction = sending is NextCommand.INSTRUCTION
    kind: SendableMessageType = "interrupt" if steering.step == "interrupt" else "guardian_nudge"
    return SendMessage(
        message=steering.instruction_message if is_instruction else steering.message,
        sandbox=sandbox,
        content=(steering.instruction or "") if is_instruction else steering.text,
        message_type="user_message" if is_instruction else kind,
        sender_id=(steering.by or SENDER) if is_instruction else SENDER,
        correlation_id=steering.correlation,
        expires_seconds=MESSAGE_EXPIRES,
    )


def approval_reason(sandbox: str, steering: Steering) -> str:
    """The reason that a user reads in the approval request of a pause. It contains text from the agent."""
    text = _CONTROL_CHARACTERS.sub(" ", steering.text)[:_MAX_REASON_LENGTH]
    return (
        f"sandbox {sandbox} is paused by the rule {steering.rule}. Grant: it continues; grant with a reason: it "
        f"continues with that instruction; deny: it is stopped. Found: {text}"
    )
