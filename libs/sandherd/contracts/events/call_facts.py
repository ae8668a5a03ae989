"""The facts about a tool call that its events have in common, and their closed lists of values."""

from typing import Literal

from sandherd.contracts.events.agent import AgentAction
from sandherd.contracts.model import Whole

ToolOutcome = Literal["ok", "failed", "timed_out", "outage", "denied", "refused", "cancelled"]
CheckKind = Literal["test", "lint", "types", "build"]


class CallEnd(AgentAction):
    """The end of a tool call. Both events of one end have the same facts; either of them may be absent."""

    outcome: ToolOutcome | None = None
    """How the call ended: `ok`; `failed`, with `exit_code` if the tool is a command whose status is known; `timed_out`:
    it did not end in time, but may go on in the background; `outage`: a network or a provider was unavailable (status
    429 or 5xx, no connection); `denied` by a rule or a permission, and `refused` by a user: it was not executed;
    `cancelled`: it was interrupted, or its turn ended first. Absent if the harness does not report it."""
    exit_code: Whole | None = None
    """The exit status of the command, if the tool is one; absent if the harness does not report it."""
    check: CheckKind | None = None
    """As in `agent.tool_use`."""
    check_passed: bool | None = None
    """Whether the check passed. Absent if the outcome does not show that: the output of a command in a pipe, or a check
    that others follow (`;`), may have any status, and a check that timed out has neither passed nor failed."""
