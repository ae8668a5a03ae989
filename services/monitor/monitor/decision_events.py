"""The events that publish the guardian's findings, decisions and outcomes. Pure."""

from typing import Final

from monitor.guardian import MESSAGE_STEPS, GuardianDecision
from monitor.sandbox_state import Outcome, Steering
from sandherd.contracts.events.monitor import (
    MonitorGuardianAnalysed,
    MonitorInterventionDecided,
    MonitorInterventionOutcome,
)

_RECOVERED: Final = "recovered"


def analysis_event(decision: GuardianDecision) -> MonitorGuardianAnalysed:
    """The event of a pattern that the guardian has found."""
    pattern, steering = decision.pattern, decision.steering
    return MonitorGuardianAnalysed(
        rule=pattern.rule,
        needs_steering=steering is not None,
        steering_type=decision.step if steering is None else steering.step,
        summary=pattern.summary,
        evidence=[str(id) for id in pattern.evidence],
        pattern=pattern.key,
        pattern_began=pattern.began,
    )


def decision_event(steering: Steering) -> MonitorInterventionDecided:
    """The event of a decision to intervene."""
    return MonitorInterventionDecided(
        rule=steering.rule,
        step=steering.step,
        message_id=steering.message if steering.step in MESSAGE_STEPS else None,
        correlation_id=steering.correlation,
        intervention_number=steering.number,
        message=steering.text,
        evidence=[str(id) for id in steering.evidence] or None,
        pattern=steering.pattern,
        pattern_rule=None if steering.watched == steering.rule else steering.watched,
        approval_id=steering.approval,
    )


def outcome_event(steering: Steering, outcome: Outcome) -> MonitorInterventionOutcome:
    """The event of an intervention's outcome."""
    return MonitorInterventionOutcome(
        correlation_id=steering.correlation,
        outcome="obeyed" if outcome == _RECOVERED else outcome,
        recovered=outcome == _RECOVERED,
        evidence=[str(id) for id in steering.repeated] or None,
    )
