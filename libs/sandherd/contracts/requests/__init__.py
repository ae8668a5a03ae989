"""Requests and their replies. A reply is `{"ok": …}` or `{"error": {code, message, field, remedy}}`.

The names are imported on first use, as a program uses few of them. `REQUESTS` has all requests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.contracts.requests.access import (
        INLINE_BYTES,
        MAX_WAIT_SECONDS,
        AgentServerView,
        ArtifactPiece,
        AskAgentServer,
        ChunkStored,
        ExecOutput,
        ExecState,
        FileEntry,
        FileList,
        FileRead,
        FileWritten,
    )
    from sandherd.contracts.requests.approvals import ApprovalList, ApprovalView, AskApprovals
    from sandherd.contracts.requests.archive import (
        ArchivedEvents,
        ArchiveProblem,
        AskHistoryArchives,
        HistoryArchives,
        HistoryRestore,
        RestoreHistory,
    )
    from sandherd.contracts.requests.base import REQUESTS, TIMEOUT_HEADER, Page, Reply, Request
    from sandherd.contracts.requests.branches import (
        BranchList,
        BranchView,
        CheckPullRequests,
        DeleteBranch,
        ListBranches,
        MergeBranch,
        OpenPullRequest,
        PullRequestChecks,
        PushBranch,
    )
    from sandherd.contracts.requests.budgets import BudgetLine, BudgetList, GrantBudget, ListBudgets, SetBudget
    from sandherd.contracts.requests.catalogue import (
        Catalogue,
        ListRuntimes,
        Mount,
        Orphan,
        Profile,
        Prune,
        PruneResult,
        RuntimeView,
    )
    from sandherd.contracts.requests.client import (
        Download,
        DownloadChunk,
        Exec,
        ExecInput,
        ExecKill,
        ExecStatus,
        ListFiles,
        PortRead,
        PortWrite,
        Upload,
        UploadChunk,
    )
    from sandherd.contracts.requests.comparison import (
        AskComparison,
        ComparedFile,
        ComparedSandbox,
        ComparedTool,
        ComparedTurn,
        Comparison,
    )
    from sandherd.contracts.requests.dead_letters import (
        AskDead,
        DeadLetter,
        DeadLetters,
        Requeue,
        RequeueEventIngest,
        RequeueMessageRelay,
        RequeueMonitor,
        RequeueResult,
        RequeueSpawner,
    )
    from sandherd.contracts.requests.diagnostics import (
        BROKER_DATA,
        DATABASE,
        FORGE_CREDENTIALS,
        GIT,
        MIRRORS,
        ConsumerBacklog,
        Examination,
        Examine,
        ExamineEventIngest,
        ExamineGateway,
        ExamineMessageRelay,
        ExamineMonitor,
        ExamineSpawner,
        Part,
        PartKind,
    )
    from sandherd.contracts.requests.file_versions import AskFileVersions, FileVersion, FileVersions
    from sandherd.contracts.requests.history import (
        AskAudit,
        AskEvents,
        AskOutput,
        AskTrajectory,
        Audit,
        EventList,
        Gap,
        HeartbeatSummary,
        Output,
        OutputChunk,
        PastSandboxes,
        PastTasks,
        SourceAudit,
        StoredEvent,
        Trajectory,
    )
    from sandherd.contracts.requests.live import (
        AskCredential,
        CredentialGrant,
        LiveSandboxes,
        LiveTasks,
        SandboxList,
        SandboxView,
        TaskList,
        TaskView,
    )
    from sandherd.contracts.requests.monitor import (
        FindingView,
        InterventionView,
        MonitorView,
        RuleProgress,
        ShowSandbox,
        WatchedCall,
    )
    from sandherd.contracts.requests.monitor_report import (
        AskMonitorReport,
        HindranceView,
        MonitorReport,
        NeedView,
        ProjectReport,
        SteeredView,
    )
    from sandherd.contracts.requests.ports import MAX_PORT_CONNECTIONS, PORT_IDLE_SECONDS, PortData, PortWritten
    from sandherd.contracts.requests.projects import (
        LimitView,
        ListProjects,
        ProjectDefaults,
        ProjectField,
        ProjectLimits,
        ProjectList,
        ProjectView,
        SetProject,
    )
    from sandherd.contracts.requests.retention import (
        ArtifactStoreStatus,
        AskHistoryStatus,
        HistoryDay,
        HistoryHold,
        HistoryStatus,
        HoldHistory,
        HoldReleased,
        ProjectDays,
        ReleaseHistory,
        TypeDays,
    )
    from sandherd.contracts.requests.runtime_logs import MAX_LOG_BYTES, MAX_LOG_LINES, AskRuntimeLogs, RuntimeLog
    from sandherd.contracts.requests.schedules import (
        DeleteSchedule,
        ListSchedules,
        PauseSchedule,
        ScheduleDeleted,
        ScheduleList,
        ScheduleRun,
        ScheduleTriggered,
        ScheduleView,
        SetSchedule,
        TriggerSchedule,
    )
    from sandherd.contracts.requests.search import AskSearch, SearchHit, SearchResult, TextMatch
    from sandherd.contracts.requests.secrets import (
        DeleteSecret,
        ListSecrets,
        SecretDeleted,
        SecretList,
        SecretView,
        SetSecret,
    )
    from sandherd.contracts.requests.statistics import (
        AskOverview,
        AskStatistics,
        GroupStatistics,
        ProjectOverview,
        RateBucket,
        Statistics,
        StatisticsList,
        UserNeed,
    )
    from sandherd.contracts.requests.stored_artifacts import ReadStoredArtifact
    from sandherd.contracts.requests.stream_admin import (
        ConsumerCreated,
        ConsumerDeleted,
        CreateConsumer,
        DeadDeleted,
        DeleteConsumer,
        DeleteDead,
        PurgeArtifacts,
        PurgeEvents,
        PurgeResult,
    )
    from sandherd.contracts.requests.submitted_tasks import AskSubmittedTask, SubmittedTask
    from sandherd.contracts.requests.subscriptions import (
        AskSubscriptions,
        Subscribe,
        Subscription,
        SubscriptionList,
        Unsubscribe,
        UnsubscribeResult,
    )
    from sandherd.contracts.requests.terminal import INPUT_BYTES, InputAccepted, TerminalSize
    from sandherd.contracts.requests.tokens import (
        CreateCode,
        CreateSession,
        CreateToken,
        EndSession,
        ListTokens,
        RevokeToken,
        SignIn,
        SignInCode,
        TokenList,
        TokenView,
    )
    from sandherd.contracts.requests.transcript import AskTranscript, Transcript, TranscriptEntry
    from sandherd.contracts.requests.usage import AskUsage, GroupUsage, Usage, UsageList
    from sandherd.contracts.requests.verification import AskVerification, HistoryDifference, Verification
    from sandherd.contracts.requests.worker import (
        AskPeers,
        Fetch,
        Peer,
        PeerList,
        WorkerDownload,
        WorkerExec,
        WorkerExecInput,
        WorkerExecKill,
        WorkerExecStatus,
        WorkerListFiles,
        WorkerPortRead,
        WorkerPortWrite,
        WorkerUpload,
    )

_NAMES: Final = {
    "access": "INLINE_BYTES MAX_WAIT_SECONDS AgentServerView ArtifactPiece AskAgentServer ChunkStored ExecOutput "
    "ExecState FileEntry FileList FileRead FileWritten",
    "approvals": "ApprovalList ApprovalView AskApprovals",
    "base": "REQUESTS TIMEOUT_HEADER Page Reply Request",
    "branches": "BranchList BranchView CheckPullRequests DeleteBranch ListBranches "
    "MergeBranch OpenPullRequest PullRequestChecks PushBranch",
    "budgets": "BudgetLine BudgetList GrantBudget ListBudgets SetBudget",
    "catalogue": "Catalogue ListRuntimes Mount Orphan Profile Prune PruneResult RuntimeView",
    "client": "Download DownloadChunk Exec ExecInput ExecKill ExecStatus ListFiles PortRead PortWrite Upload "
    "UploadChunk",
    "monitor_report": "AskMonitorReport HindranceView MonitorReport NeedView ProjectReport SteeredView",
    "comparison": "AskComparison ComparedFile ComparedSandbox ComparedTool ComparedTurn Comparison",
    "dead_letters": "AskDead DeadLetter DeadLetters Requeue RequeueEventIngest RequeueMessageRelay RequeueMonitor "
    "RequeueResult "
    "RequeueSpawner",
    "diagnostics": "BROKER_DATA DATABASE FORGE_CREDENTIALS GIT MIRRORS ConsumerBacklog Examination Examine "
    "ExamineEventIngest ExamineGateway ExamineMessageRelay ExamineMonitor ExamineSpawner Part PartKind",
    "file_versions": "AskFileVersions FileVersion FileVersions",
    "history": "AskAudit AskEvents AskOutput AskTrajectory Audit EventList Gap HeartbeatSummary Output OutputChunk "
    "PastSandboxes PastTasks SourceAudit StoredEvent Trajectory",
    "live": "AskCredential CredentialGrant LiveSandboxes LiveTasks SandboxList SandboxView TaskList TaskView",
    "monitor": "FindingView InterventionView MonitorView RuleProgress ShowSandbox WatchedCall",
    "ports": "MAX_PORT_CONNECTIONS PORT_IDLE_SECONDS PortData PortWritten",
    "archive": "ArchiveProblem ArchivedEvents AskHistoryArchives HistoryArchives HistoryRestore RestoreHistory",
    "retention": "ArtifactStoreStatus AskHistoryStatus HistoryDay HistoryHold HistoryStatus HoldHistory "
    "HoldReleased ProjectDays ReleaseHistory TypeDays",
    "runtime_logs": "MAX_LOG_BYTES MAX_LOG_LINES AskRuntimeLogs RuntimeLog",
    "projects": "LimitView ListProjects ProjectDefaults ProjectField ProjectLimits ProjectList ProjectView SetProject",
    "schedules": "DeleteSchedule ListSchedules PauseSchedule ScheduleDeleted ScheduleList ScheduleRun "
    "ScheduleTriggered ScheduleView SetSchedule TriggerSchedule",
    "search": "AskSearch SearchHit SearchResult TextMatch",
    "secrets": "DeleteSecret ListSecrets SecretDeleted SecretList SecretView SetSecret",
    "statistics": "AskOverview AskStatistics GroupStatistics UserNeed ProjectOverview RateBucket Statistics "
    "StatisticsList",
    "stored_artifacts": "ReadStoredArtifact",
    "stream_admin": "ConsumerCreated ConsumerDeleted CreateConsumer DeadDeleted DeleteConsumer DeleteDead "
    "PurgeArtifacts PurgeEvents PurgeResult",
    "submitted_tasks": "AskSubmittedTask SubmittedTask",
    "subscriptions": "AskSubscriptions Subscribe Subscription SubscriptionList Unsubscribe UnsubscribeResult",
    "terminal": "INPUT_BYTES InputAccepted TerminalSize",
    "tokens": "CreateCode CreateSession CreateToken EndSession ListTokens RevokeToken SignIn "
    "SignInCode TokenList TokenView",
    "transcript": "AskTranscript Transcript TranscriptEntry",
    "usage": "AskUsage GroupUsage Usage UsageList",
    "verification": "AskVerification HistoryDifference Verification",
    "webhooks": "MAX_DEAD MAX_WEBHOOKS AskWebhookSecrets AskWebhooks CreateWebhook DeleteWebhook "
    "DeleteWebhookSecrets ReplayWebhook RotateWebhookSecret SendWebhookTest Webhook WebhookDeadLetter WebhookDeleted "
    "WebhookList WebhookSecrets WebhookSecretsDeleted WebhookTested WebhookUrl WebhookWithSecret",
    "worker": "AskPeers Fetch Peer PeerList WorkerDownload WorkerExec WorkerExecInput WorkerExecKill WorkerExecStatus "
    "WorkerListFiles WorkerPortRead WorkerPortWrite WorkerUpload",
}
"""The exported names of each module."""
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = tuple(_HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "REQUESTS":  # it is filled as the modules are imported
        for module in _NAMES:
            import_module(f"{__name__}.{module}")
    found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = found
    return found
