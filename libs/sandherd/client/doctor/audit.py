"""The faults that an audit has found, and the checks that are based on it."""

from typing import Final

from sandherd.client.doctor.check import Check, CheckState
from sandherd.contracts.requests import Audit
from sandherd.plurals import pluralize

MANY_UNSTORED_EVENTS: Final = 10_000
"""With more events that are not stored yet, the doctor shows a warning."""
_MAX_NAMES: Final = 5
_LOST_EVENTS_TEXT: Final = (
    "events that were not published by then are lost, or in the herd's `kept` folder and retried for a day; after a "
    "restore this is expected of agents that ran during the backup, and there is nothing to do"
)


def audit_faults(audit: Audit) -> list[str]:
    """The faults that an audit found, and what they mean; empty if every event was stored."""
    remedy_text = "; if `unstored` is not 0, run the audit again when event-ingest has caught up"
    names = ", ".join(audit.unsaid_sandboxes[:_MAX_NAMES]) + (", …" if audit.unsaid > _MAX_NAMES else "")
    faults = [
        (audit.missing, pluralize(audit.missing, "event is missing", "events are missing") + remedy_text),
        (
            audit.conflicts,
            pluralize(audit.conflicts, "event has", "events have")
            + " the sequence of another event of their source: one is forged",
        ),
        (
            audit.implausible,
            pluralize(audit.implausible, "source claims", "sources claim")
            + " over a million events more than are stored",
        ),
        (
            audit.unsaid,
            pluralize(audit.unsaid, "sandbox has", "sandboxes have")
            + f" ended without a last event of the agent ({names}): {_LOST_EVENTS_TEXT}{remedy_text}",
        ),
    ]
    return [message for count, message in faults if count]


def check_audit(audit: Audit) -> list[Check]:
    """Whether the history keeps up, has no gaps, and has no dead letters."""
    lag = Check("history lag", CheckState.RIGHT, f"{pluralize(audit.unstored, 'event')} not stored yet")
    if audit.unstored > MANY_UNSTORED_EVENTS:
        lag = Check("history lag", CheckState.WARNING, lag.found, "run another event-ingest, or check Postgres")
    stored = f"{pluralize(audit.event_count, 'event')} of {pluralize(audit.source_count, 'source')}, none missing"
    gaps = Check("history", CheckState.RIGHT, stored)
    faults = audit_faults(audit)
    if faults:
        gaps = Check("history", CheckState.WRONG, "; ".join(faults), "audit the history")
    letters = Check("dead letters", CheckState.RIGHT, "none")
    if audit.dead:
        text = f"{audit.dead} in all projects"
        letters = Check("dead letters", CheckState.WARNING, text, "list the dead letters")
    return [lag, gaps, letters]
