"""What an audit means, in words."""

from typing import Final

from sandherd.contracts.requests import Audit

_NAMED: Final = 5
_LOST: Final = "what it had not said by then is lost, or put aside in the herd's `kept` and tried again for a day"


def audit_faults(audit: Audit) -> list[str]:
    """What an audit found that is not as it should be, and what that means; empty if all that was said is kept."""
    later = "; if `unstored` is not 0, ask again when event-ingest has caught up"
    names = ", ".join(audit.unsaid_sandboxes[:_NAMED]) + (", …" if audit.unsaid > _NAMED else "")
    found = [
        (audit.missing, f"{audit.missing} events are missing{later}"),
        (audit.conflicts, f"{audit.conflicts} events bear the number of another event of their source: one is forged"),
        (audit.implausible, f"{audit.implausible} sources say they said over a million events more than are stored"),
        (audit.unsaid, f"{audit.unsaid} sandboxes ended without their agent's last word ({names}): {_LOST}{later}"),
    ]
    return [said for count, said in found if count]
