"""Requests and their replies. A reply is `{"ok": …}` or `{"error": {code, message, field, remedy}}`.

The names are imported on first use, because a program uses only a few of them. `REQUESTS` has all requests.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.contracts.requests.access import (
        INLINE_BYTES,
        MAX_WAIT_SECONDS,
        AgentServerView,
        ArtifactPiece,
        ChunkStored,
        ExecOutput,
        ExecState,
        FileEntry,
        FileList,
        FileRead,
        FileWritten,
        GetAgentServer,
    )
    from sandherd.contracts.requests.approvals import ApprovalList, ApprovalView, ListApprovals
    from sandherd.contracts.requests.archive import (
        ArchivedEvents,
        ArchiveProblem,
        HistoryArchives,
        HistoryRestore,
        ListHistoryArchives,
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
        ComparedFile,
        ComparedSandbox,
        ComparedTool,
        ComparedTurn,
        Comparison,
        GetComparison,
    )
    from sandherd.contracts.requests.dead_letters import (
        DeadLetter,
        DeadLetters,
        ListDeadLetters,
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
    from sandherd.contracts.requests.file_versions import FileVersion, FileVersions, ListFileVersions
    from sandherd.contracts.requests.history import (
        Audit,
        EventList,
        Gap,
        GetAudit,
        GetOutput,
        GetTrajectory,
        HeartbeatSummary,
        ListEvents,
        ListPastSandboxes,
        ListPastTasks,
        Output,
        OutputChunk,
        SourceAudit,
        StoredEvent,
        Trajectory,
    )
    from sandherd.contracts.requests.live_state import (
        CredentialGrant,
        GetCredential,
        ListLiveSandboxes,
        ListLiveTasks,
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
        GetMonitorReport,
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
        GetHistoryStatus,
        HistoryDay,
        HistoryHold,
        HistoryStatus,
        HoldHistory,
        HoldReleased,
        ProjectDays,
        ReleaseHistory,
        TypeDays,
    )
    from sandherd.contracts.requests.runtime_logs import MAX_LOG_BYTES, MAX_LOG_LINES, GetRuntimeLogs, RuntimeLog
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
    from sandherd.contracts.requests.search import SearchEvents, SearchHit, SearchResult, TextMatch
    from sandherd.contracts.requests.secrets import (
        DeleteSecret,
        ListSecrets,
        SecretDeleted,
        SecretList,
        SecretView,
        SetSecret,
    )
    from sandherd.contracts.requests.statistics import (
        GetOverview,
        GetStatistics,
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
    from sandherd.contracts.requests.submitted_tasks import GetSubmittedTask, SubmittedTask
    from sandherd.contracts.requests.subscriptions import (
        ListSubscriptions,
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
    from sandherd.contracts.requests.transcript import GetTranscript, Transcript, TranscriptEntry
    from sandherd.contracts.requests.usage import GetUsage, GroupUsage, Usage, UsageList
    from sandherd.contracts.requests.verification import HistoryDifference, Verification, VerifyHistory
    from sandherd.contracts.requests.worker import (
        Fetch,
        ListPeers,
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
    "access": "INLINE_BYTES MAX_WAIT_SECONDS AgentServerView ArtifactPiece GetAgentServer ChunkStored ExecOutput "
    "ExecState FileEntry FileList FileRead FileWritten",
    "approvals": "ApprovalList ApprovalView ListApprovals",
    "base": "REQUESTS TIMEOUT_HEADER Page Reply Request",
    "branches": "BranchList BranchView CheckPullRequests DeleteBranch ListBranches "
    "MergeBranch OpenPullRequest PullRequestChecks PushBranch",
    "budgets": "BudgetLine BudgetList GrantBudget ListBudgets SetBudget",
    "catalogue": "Catalogue ListRuntimes Mount Orphan Profile Prune PruneResult RuntimeView",
    "client": "Download DownloadChunk Exec ExecInput ExecKill ExecStatus ListFiles PortRead PortWrite Upload "
    "UploadChunk",
    "monitor_report": "GetMonitorReport HindranceView MonitorReport NeedView ProjectReport SteeredView",
    "comparison": "GetComparison ComparedFile ComparedSandbox ComparedTool ComparedTurn Comparison",
    "dead_letters": "DeadLetter DeadLetters ListDeadLetters Requeue RequeueEventIngest RequeueMessageRelay "
    "RequeueMonitor RequeueResult RequeueSpawner",
    "diagnostics": "BROKER_DATA DATABASE FORGE_CREDENTIALS GIT MIRRORS ConsumerBacklog Examination Examine "
    "ExamineEventIngest ExamineGateway ExamineMessageRelay ExamineMonitor ExamineSpawner Part PartKind",
    "file_versions": "ListFileVersions FileVersion FileVersions",
    "history": "GetAudit ListEvents GetOutput GetTrajectory Audit EventList Gap HeartbeatSummary Output OutputChunk "
    "ListPastSandboxes ListPastTasks SourceAudit StoredEvent Trajectory",
    "live_state": "CredentialGrant GetCredential ListLiveSandboxes ListLiveTasks SandboxList SandboxView TaskList "
    "TaskView",
    "monitor": "FindingView InterventionView MonitorView RuleProgress ShowSandbox WatchedCall",
    "ports": "MAX_PORT_CONNECTIONS PORT_IDLE_SECONDS PortData PortWritten",
    "archive": "ArchiveProblem ArchivedEvents ListHistoryArchives HistoryArchives HistoryRestore RestoreHistory",
    "retention": "ArtifactStoreStatus GetHistoryStatus HistoryDay HistoryHold HistoryStatus HoldHistory "
    "HoldReleased ProjectDays ReleaseHistory TypeDays",
    "runtime_logs": "MAX_LOG_BYTES MAX_LOG_LINES GetRuntimeLogs RuntimeLog",
    "projects": "LimitView ListProjects ProjectDefaults ProjectField ProjectLimits ProjectList ProjectView SetProject",
    "schedules": "DeleteSchedule ListSchedules PauseSchedule ScheduleDeleted ScheduleList ScheduleRun "
    "ScheduleTriggered ScheduleView SetSchedule TriggerSchedule",
    "search": "SearchEvents SearchHit SearchResult TextMatch",
    "secrets": "DeleteSecret ListSecrets SecretDeleted SecretList SecretView SetSecret",
    "statistics": "GetOverview GetStatistics GroupStatistics UserNeed ProjectOverview RateBucket Statistics "
    "StatisticsList",
    "stored_artifacts": "ReadStoredArtifact",
    "stream_admin": "ConsumerCreated ConsumerDeleted CreateConsumer DeadDeleted DeleteConsumer DeleteDead "
    "PurgeArtifacts PurgeEvents PurgeResult",
    "submitted_tasks": "GetSubmittedTask SubmittedTask",
    "subscriptions": "ListSubscriptions Subscribe Subscription SubscriptionList Unsubscribe UnsubscribeResult",
    "terminal": "INPUT_BYTES InputAccepted TerminalSize",
    "tokens": "CreateCode CreateSession CreateToken EndSession ListTokens RevokeToken SignIn "
    "SignInCode TokenList TokenView",
    "transcript": "GetTranscript Transcript TranscriptEntry",
    "usage": "GetUsage GroupUsage Usage UsageList",
    "verification": "VerifyHistory HistoryDifference Verification",
    "webhooks": "MAX_DEAD MAX_WEBHOOKS GetWebhookSecrets ListWebhooks CreateWebhook DeleteWebhook "
    "DeleteWebhookSecrets ReplayWebhook RotateWebhookSecret SendWebhookTest Webhook WebhookDeadLetter WebhookDeleted "
    "WebhookList WebhookSecrets WebhookSecretsDeleted WebhookTested WebhookUrl WebhookWithSecret",
    "worker": "ListPeers Fetch Peer PeerList WorkerDownload WorkerExec WorkerExecInput WorkerExecKill WorkerExecStatus "
    "WorkerListFiles WorkerPortRead WorkerPortWrite WorkerUpload",
}
"""The exported names of each module."""
_MODULE_OF: Final = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = tuple(_MODULE_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "REQUESTS":  # it is filled as the modules are imported
        for module in _NAMES:
            import_module(f"{__name__}.{module}")
    found = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found
