"""The facts about a tool call that several events report, and their closed lists of values."""

from typing import Final, Literal

from sandherd.contracts.events.agent import AgentAction
from sandherd.contracts.model import Whole

ToolOutcome = Literal["ok", "failed", "timed_out", "outage", "denied", "refused", "cancelled"]
FAILED_OUTCOMES: Final = frozenset[ToolOutcome]({"failed", "timed_out", "outage"})
"""The outcomes of calls that count as errors. A call that was denied, refused or cancelled does not."""
CheckKind = Literal["test", "lint", "types", "build"]


class CallEnd(AgentAction):
    """The end of a tool call. Two events report it with the same facts; one of the two may be missing."""

    outcome: ToolOutcome | None = None
    """How the call ended: `ok`; `failed`, with `exit_code` if the tool is a command whose status is known; `timed_out`:
    it did not end in time, but may go on in the background; `outage`: a network or a provider was unavailable (status
    429 or 5xx, no connection); `denied` by a rule or a permission, and `refused` by a user: it was not executed;
    `cancelled`: it was interrupted, or its turn ended first. Absent if the harness does not report it."""
    exit_code: Whole | None = None
    """The exit status, if the tool is a command; absent if the harness does not report it."""
    check: CheckKind | None = None
    """What the call checks, as in `agent.tool_use`."""
    check_passed: bool | None = None
    """Whether the check passed. Absent if the outcome does not show that: a command in a pipe, or one that others
    follow (`;`), may end with any status, and a check that timed out has neither passed nor failed."""

    @property
    def has_failed(self) -> bool:
        """Whether the call counts as an error. Depends on `outcome`, if the harness reports it."""
        return self.outcome in FAILED_OUTCOMES
