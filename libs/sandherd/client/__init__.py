"""The client for programs and the `sandherd` command: `Herd` for asyncio, and `SyncHerd` without asyncio.

The exported names are imported on first use, so that the command starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.client.access_tokens import NewToken
    from sandherd.client.artifacts import EventArtifact
    from sandherd.client.context import Context
    from sandherd.client.errors import HerdError, NotReachedError, ServiceUnavailableError
    from sandherd.client.events.follower import EventFollower
    from sandherd.client.events.gap_filler import FollowLimits
    from sandherd.client.events.sequencer import Event, MissingRange
    from sandherd.client.file_history import FileContent
    from sandherd.client.herd import Herd, new_sandbox, new_task, task_spec
    from sandherd.client.messages import MessageOutcome
    from sandherd.client.queries import ListPage
    from sandherd.client.repositories.branch_fetch import FetchedBranch
    from sandherd.client.repositories.local import LocalRepository
    from sandherd.client.repositories.source import RepositorySource
    from sandherd.client.sandboxes.execution import Execution, Signal, exit_status
    from sandherd.client.sandboxes.port_forward import PortForward
    from sandherd.client.sandboxes.transfer import OnTransfer
    from sandherd.client.subscriptions import EventStream, ReceivedEvent
    from sandherd.client.sync.event_follower import SyncEventFollower
    from sandherd.client.sync.event_stream import SyncEventStream
    from sandherd.client.sync.execution import SyncExecution
    from sandherd.client.sync.herd import SyncHerd
    from sandherd.client.sync.received_event import SyncReceivedEvent
    from sandherd.client.task_work import LeftOut
    from sandherd.client.tasks.overview import Overview
    from sandherd.client.tasks.progress import TaskOutcome, TaskProgress
    from sandherd.client.tasks.task_watch import OnProgress
    from sandherd.client.work_source import WorkSource
    from sandherd.contracts.commands import SandboxSpec, SendableMessageType, TaskSpec
    from sandherd.contracts.errors import Code, Problem
    from sandherd.contracts.events import ArtifactRef
    from sandherd.contracts.records import AccessRole
    from sandherd.contracts.repositories import Repository
    from sandherd.contracts.requests import (
        AgentServerView,
        ApprovalList,
        ArchivedEvents,
        Audit,
        BranchList,
        BranchView,
        BudgetList,
        Catalogue,
        Comparison,
        DeadLetter,
        DeadLetters,
        ExecOutput,
        ExecState,
        FileList,
        FileRead,
        FileVersion,
        FileWritten,
        HistoryDifference,
        HistoryHold,
        HistoryRestore,
        HistoryStatus,
        MonitorReport,
        MonitorView,
        OutputChunk,
        ProjectField,
        ProjectOverview,
        ProjectView,
        PruneResult,
        RequeueResult,
        SandboxView,
        ScheduleDeleted,
        ScheduleList,
        ScheduleTriggered,
        ScheduleView,
        SearchHit,
        SecretDeleted,
        SecretList,
        SecretView,
        StatisticsList,
        StoredEvent,
        Subscription,
        SubscriptionList,
        TaskView,
        TerminalSize,
        TokenList,
        TokenView,
        Trajectory,
        TranscriptEntry,
        UnsubscribeResult,
        UsageList,
        Verification,
        Webhook,
        WebhookDeleted,
        WebhookList,
        WebhookTested,
        WebhookWithSecret,
    )
    from sandherd.contracts.requests.search import TextKind
    from sandherd.contracts.requests.statistics import StatisticGroup
    from sandherd.contracts.resume import Resume
    from sandherd.contracts.schedules import Overlap
    from sandherd.contracts.states import ApprovalState, BranchState, SandboxState, TaskState

__all__ = [
    "AccessRole",
    "AgentServerView",
    "ApprovalList",
    "ApprovalState",
    "ArchivedEvents",
    "ArtifactRef",
    "Audit",
    "BranchList",
    "BranchState",
    "BranchView",
    "BudgetList",
    "Catalogue",
    "Code",
    "Comparison",
    "Context",
    "DeadLetter",
    "DeadLetters",
    "Event",
    "EventArtifact",
    "EventFollower",
    "EventStream",
    "ExecOutput",
    "ExecState",
    "Execution",
    "FetchedBranch",
    "FileContent",
    "FileList",
    "FileRead",
    "FileVersion",
    "FileWritten",
    "FollowLimits",
    "Herd",
    "HerdError",
    "HistoryDifference",
    "HistoryHold",
    "HistoryRestore",
    "HistoryStatus",
    "LeftOut",
    "ListPage",
    "LocalRepository",
    "MessageOutcome",
    "MissingRange",
    "MonitorReport",
    "MonitorView",
    "NewToken",
    "NotReachedError",
    "OnProgress",
    "OnTransfer",
    "OutputChunk",
    "Overlap",
    "Overview",
    "PortForward",
    "Problem",
    "ProjectField",
    "ProjectOverview",
    "ProjectView",
    "PruneResult",
    "ReceivedEvent",
    "Repository",
    "RepositorySource",
    "RequeueResult",
    "Resume",
    "SandboxSpec",
    "SandboxState",
    "SandboxView",
    "ScheduleDeleted",
    "ScheduleList",
    "ScheduleTriggered",
    "ScheduleView",
    "SearchHit",
    "SecretDeleted",
    "SecretList",
    "SecretView",
    "SendableMessageType",
    "ServiceUnavailableError",
    "Signal",
    "StatisticGroup",
    "StatisticsList",
    "StoredEvent",
    "Subscription",
    "SubscriptionList",
    "SyncEventFollower",
    "SyncEventStream",
    "SyncExecution",
    "SyncHerd",
    "SyncReceivedEvent",
    "TaskOutcome",
    "TaskProgress",
    "TaskSpec",
    "TaskState",
    "TaskView",
    "TerminalSize",
    "TextKind",
    "TokenList",
    "TokenView",
    "Trajectory",
    "TranscriptEntry",
    "UnsubscribeResult",
    "UsageList",
    "Verification",
    "Webhook",
    "WebhookDeleted",
    "WebhookList",
    "WebhookTested",
    "WebhookWithSecret",
    "WorkSource",
    "exit_status",
    "new_sandbox",
    "new_task",
    "task_spec",
]

_NAMES: Final = {
    "sandherd.client.access_tokens": "NewToken",
    "sandherd.client.artifacts": "EventArtifact",
    "sandherd.client.context": "Context",
    "sandherd.client.errors": "HerdError NotReachedError ServiceUnavailableError",
    "sandherd.client.file_history": "FileContent",
    "sandherd.client.events.follower": "EventFollower",
    "sandherd.client.events.gap_filler": "FollowLimits",
    "sandherd.client.events.sequencer": "Event MissingRange",
    "sandherd.client.herd": "Herd new_sandbox new_task task_spec",
    "sandherd.client.messages": "MessageOutcome",
    "sandherd.client.queries": "ListPage",
    "sandherd.client.repositories.branch_fetch": "FetchedBranch",
    "sandherd.client.repositories.local": "LocalRepository",
    "sandherd.client.repositories.source": "RepositorySource",
    "sandherd.client.sandboxes.execution": "Execution Signal exit_status",
    "sandherd.client.sandboxes.port_forward": "PortForward",
    "sandherd.client.sandboxes.transfer": "OnTransfer",
    "sandherd.client.subscriptions": "EventStream ReceivedEvent",
    "sandherd.client.sync.event_follower": "SyncEventFollower",
    "sandherd.client.sync.event_stream": "SyncEventStream",
    "sandherd.client.sync.execution": "SyncExecution",
    "sandherd.client.sync.herd": "SyncHerd",
    "sandherd.client.sync.received_event": "SyncReceivedEvent",
    "sandherd.client.task_work": "LeftOut",
    "sandherd.client.work_source": "WorkSource",
    "sandherd.client.tasks.overview": "Overview",
    "sandherd.client.tasks.progress": "TaskOutcome TaskProgress",
    "sandherd.client.tasks.task_watch": "OnProgress",
    "sandherd.contracts.commands": "SandboxSpec SendableMessageType TaskSpec",
    "sandherd.contracts.errors": "Code Problem",
    "sandherd.contracts.events": "ArtifactRef",
    "sandherd.contracts.records": "AccessRole",
    "sandherd.contracts.requests": "AgentServerView ApprovalList Audit BranchList BranchView BudgetList Catalogue "
    "DeadLetter DeadLetters ExecOutput "
    "ExecState FileList FileRead FileWritten HistoryDifference HistoryHold HistoryRestore HistoryStatus MonitorReport "
    "ArchivedEvents MonitorView "
    "OutputChunk ProjectField ProjectView PruneResult RequeueResult "
    "SandboxView ScheduleDeleted ScheduleList ScheduleTriggered ScheduleView SecretDeleted "
    "SecretList SecretView StoredEvent Subscription SubscriptionList TaskView TerminalSize TokenList TokenView "
    "Comparison FileVersion ProjectOverview SearchHit StatisticsList TranscriptEntry Trajectory UnsubscribeResult "
    "UsageList Verification Webhook WebhookDeleted WebhookList WebhookTested WebhookWithSecret",
    "sandherd.contracts.repositories": "Repository",
    "sandherd.contracts.requests.search": "TextKind",
    "sandherd.contracts.requests.statistics": "StatisticGroup",
    "sandherd.contracts.resume": "Resume",
    "sandherd.contracts.schedules": "Overlap",
    "sandherd.contracts.states": "ApprovalState BranchState SandboxState TaskState",
}
"""The exported names of each module."""
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
