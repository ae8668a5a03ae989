"""What each command leads to: the events to wait for, those that end it, and what makes a repetition harmless."""

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
    """What a command leads to."""

    accepted: Events
    """One of these shows that it was accepted."""
    ends: Events
    """One of these ends what it began; none if it is done when it is accepted."""
    refused: Events
    """One of these, with its `command_id`, shows that it is not carried out."""
    repetition: str
    """What identifies it, so that it may be sent again."""
    unchanged: str
    """If it is accepted and changes nothing, there is no event: what to request instead, and until it shows what."""


_TASK_ENDS: Final[Events] = (TaskCompleted, TaskFailed, TaskCancelled)
_SANDBOX_ENDS: Final[Events] = (SandboxTerminated, SandboxFailed)
_SANDBOX_REFUSED: Final[Events] = (SandboxRefused,)
_MESSAGE_REFUSED: Final[Events] = (MessageRejected, MessageRefused)

OUTCOMES: Final[Mapping[type[Command], CommandOutcome]] = {
    SubmitTask: CommandOutcome(
        (TaskSubmitted,),
        _TASK_ENDS,
        (TaskRejected, TaskRefused),
        "The name of the task: the same `spec` and `submitted_by` are the same task, others are refused (`conflict`).",
        "Sent again: the task, by `spawner.tasks`.",
    ),
    CancelTask: CommandOutcome(
        (TaskCancelled,),
        (),
        (TaskRefused,),
        "The `id`: a second command for a task that has ended is refused.",
        "Sent again: `state` is `cancelled`, by `spawner.tasks`.",
    ),
    RetryTask: CommandOutcome(
        (TaskRetryScheduled,),
        _TASK_ENDS,
        (TaskRefused,),
        "The `id`: a second command for a task that runs again is refused.",
        "Sent again: `state` is none of the ends, by `spawner.tasks`.",
    ),
    CreateSandbox: CommandOutcome(
        (SandboxRequested,),
        _SANDBOX_ENDS,
        _SANDBOX_REFUSED,
        "The name of the sandbox: the same `spec` and `requested_by` are the same sandbox, others are refused.",
        "Sent again: the sandbox, by `spawner.sandboxes`.",
    ),
    TerminateSandbox: CommandOutcome(
        (SandboxStopping,),
        _SANDBOX_ENDS,
        _SANDBOX_REFUSED,
        "The state: an ending sandbox is unchanged. One that has ended is refused, except for the `id` that ended it.",
        "It ends already: wait for the events that end it, or for `state` by `spawner.sandboxes`.",
    ),
    PauseSandbox: CommandOutcome(
        (SandboxPaused,),
        (),
        _SANDBOX_REFUSED,
        "The state: nothing happens to a sandbox that is paused.",
        "It is paused already: `state` is `paused`, by `spawner.sandboxes`.",
    ),
    ResumeSandbox: CommandOutcome(
        (SandboxResumed,),
        (),
        _SANDBOX_REFUSED,
        "The state: nothing happens to a sandbox that is not paused.",
        "It runs, or was about to be paused: `state` is `running`, by `spawner.sandboxes`.",
    ),
    ExtendSandbox: CommandOutcome(
        (SandboxExtended,),
        (),
        _SANDBOX_REFUSED,
        "The time: nothing happens to a sandbox that lives that long already.",
        "It lives that long already: `expires_at` is not before the wanted time, by `spawner.sandboxes`.",
    ),
    SendMessage: CommandOutcome(
        (MessageQueued,),
        (MessageAcknowledged, MessageExpired, MessageRejected),
        _MESSAGE_REFUSED,
        "The name of the message: the same content is the same message, another one is refused (`conflict`).",
        "Sent again: the message's earlier events, by `event-ingest.events`.",
    ),
    AnswerApproval: CommandOutcome(
        (ApprovalGranted, ApprovalDenied),
        (),
        _MESSAGE_REFUSED,
        "The name of the message: the first answer counts. Another content under that name is refused (`conflict`).",
        "Sent again: the approval's `state`, by `event-ingest.approvals`.",
    ),
    RequestApproval: CommandOutcome(
        (ApprovalRequested,),
        (ApprovalGranted, ApprovalDenied, ApprovalExpired),
        (MessageRefused,),
        "The `approval_id`: a second request with it is the same approval.",
        "Sent again: the approval's `state`, by `event-ingest.approvals`.",
    ),
    WithdrawApproval: CommandOutcome(
        (ApprovalExpired,),
        (),
        (MessageRefused,),
        "The state: a decided approval is unchanged.",
        "It is decided already: the approval's `state`, by `event-ingest.approvals`.",
    ),
    MuteRule: CommandOutcome(
        (MonitorRuleMuted,),
        (),
        (MonitorRefused,),
        "The rule: the last command counts.",
        "There is always one.",
    ),
    UnmuteRule: CommandOutcome(
        (MonitorRuleUnmuted,),
        (),
        (MonitorRefused,),
        "The rule: the last command counts.",
        "There is always one.",
    ),
}
