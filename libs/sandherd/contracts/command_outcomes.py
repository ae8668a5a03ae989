"""The events that follow each command, and what happens if it is sent again."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sandherd.contracts.commands import (
    AnswerApproval,
    CancelTask,
    Command,
    CreateSandbox,
    ExtendSandbox,
    MuteRule,
    PauseSandbox,
    RequestApproval,
    ResumeSandbox,
    RetryTask,
    SendMessage,
    SubmitTask,
    TerminateSandbox,
    UnmuteRule,
    WithdrawApproval,
)
from sandherd.contracts.events import EventData
from sandherd.contracts.events.message import (
    ApprovalDenied,
    ApprovalExpired,
    ApprovalGranted,
    ApprovalRequested,
    MessageAcknowledged,
    MessageExpired,
    MessageQueued,
    MessageRefused,
    MessageRejected,
)
from sandherd.contracts.events.monitor import MonitorRefused, MonitorRuleMuted, MonitorRuleUnmuted
from sandherd.contracts.events.sandbox import (
    SandboxExtended,
    SandboxFailed,
    SandboxPaused,
    SandboxRefused,
    SandboxRequested,
    SandboxResumed,
    SandboxStopping,
    SandboxTerminated,
)
from sandherd.contracts.events.task import (
    TaskCancelled,
    TaskCompleted,
    TaskFailed,
    TaskRefused,
    TaskRejected,
    TaskRetryScheduled,
    TaskSubmitted,
)

Events = tuple[type[EventData], ...]


@dataclass(frozen=True)
class CommandOutcome:
    """The events that follow a command, and what happens if it is sent again."""

    accepted: Events
    """One of these events shows that the command was accepted."""
    ends: Events
    """One of these events ends the work that the command started. Empty if no work follows the acceptance."""
    refused: Events
    """One of these events, with its `command_id`, shows that the command is not carried out."""
    repetition: str
    """What happens if the command is sent again."""
    unchanged: str
    """What to request if no event is published: a command that is accepted and changes nothing causes none."""


_TASK_ENDS: Final[Events] = (TaskCompleted, TaskFailed, TaskCancelled)
_SANDBOX_ENDS: Final[Events] = (SandboxTerminated, SandboxFailed)
_SANDBOX_REFUSED: Final[Events] = (SandboxRefused,)
_MESSAGE_REFUSED: Final[Events] = (MessageRejected, MessageRefused)

OUTCOMES: Final[Mapping[type[Command], CommandOutcome]] = {
    SubmitTask: CommandOutcome(
        (TaskSubmitted,),
        _TASK_ENDS,
        (TaskRejected, TaskRefused),
        "With the same name, `spec` and `submitted_by`: no change. With another `spec` or user: refused (`conflict`).",
        "The command was sent before: request the task with `spawner.tasks`.",
    ),
    CancelTask: CommandOutcome(
        (TaskCancelled,),
        (),
        (TaskRefused,),
        "With the same `id`: no change. With another `id`: refused, because the task has ended.",
        "The command was sent before: request the task with `spawner.tasks`, until its `state` is `cancelled`.",
    ),
    RetryTask: CommandOutcome(
        (TaskRetryScheduled,),
        _TASK_ENDS,
        (TaskRefused,),
        "With the same `id`: no change. With another `id`: refused, because the task runs again.",
        "The command was sent before: request the task with `spawner.tasks`; its `state` is not final.",
    ),
    CreateSandbox: CommandOutcome(
        (SandboxRequested,),
        _SANDBOX_ENDS,
        _SANDBOX_REFUSED,
        "With the same name, `spec` and `requested_by`: no change. With another `spec` or user: refused.",
        "The command was sent before: request the sandbox with `spawner.sandboxes`.",
    ),
    TerminateSandbox: CommandOutcome(
        (SandboxStopping,),
        _SANDBOX_ENDS,
        _SANDBOX_REFUSED,
        "While the sandbox ends: no change. After it has ended: refused, unless the `id` is the same.",
        "The sandbox already ends: wait for an event of the column *completed*, or request its `state` with "
        "`spawner.sandboxes`.",
    ),
    PauseSandbox: CommandOutcome(
        (SandboxPaused,),
        (),
        _SANDBOX_REFUSED,
        "On a paused sandbox: no change.",
        "The sandbox was paused before: request its `state` with `spawner.sandboxes`, until it is `paused`.",
    ),
    ResumeSandbox: CommandOutcome(
        (SandboxResumed,),
        (),
        _SANDBOX_REFUSED,
        "On a sandbox that is not paused: no change.",
        "The sandbox was not paused: request its `state` with `spawner.sandboxes`, until it is `running`.",
    ),
    ExtendSandbox: CommandOutcome(
        (SandboxExtended,),
        (),
        _SANDBOX_REFUSED,
        "If the sandbox already expires at that time or later: no change.",
        "The sandbox already expires at that time or later: request its `expires_at` with `spawner.sandboxes`.",
    ),
    SendMessage: CommandOutcome(
        (MessageQueued,),
        (MessageAcknowledged, MessageExpired, MessageRejected),
        _MESSAGE_REFUSED,
        "With the same name and content: no change. With other content: refused (`conflict`).",
        "The command was sent before: request the events of the message with `event-ingest.events`.",
    ),
    AnswerApproval: CommandOutcome(
        (ApprovalGranted, ApprovalDenied),
        (),
        _MESSAGE_REFUSED,
        "No change: the first answer counts. With the same name and other content: refused (`conflict`).",
        "The command was sent before: request the approval's `state` with `event-ingest.approvals`.",
    ),
    RequestApproval: CommandOutcome(
        (ApprovalRequested,),
        (ApprovalGranted, ApprovalDenied, ApprovalExpired),
        (MessageRefused,),
        "With the same `approval_id`: no change.",
        "The command was sent before: request the approval's `state` with `event-ingest.approvals`.",
    ),
    WithdrawApproval: CommandOutcome(
        (ApprovalExpired,),
        (),
        (MessageRefused,),
        "If the approval is decided: no change.",
        "The approval was decided before: request its `state` with `event-ingest.approvals`.",
    ),
    MuteRule: CommandOutcome(
        (MonitorRuleMuted,),
        (),
        (MonitorRefused,),
        "The rule is set again: the last command counts.",
        "An event is always published.",
    ),
    UnmuteRule: CommandOutcome(
        (MonitorRuleUnmuted,),
        (),
        (MonitorRefused,),
        "The rule is set again: the last command counts.",
        "An event is always published.",
    ),
}
