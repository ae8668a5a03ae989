"""The Conductor's record of a project: its findings, the informed agents, and an outbox of unpublished messages. Pure.

Messages are stored before they are published, so that a replica that takes over neither repeats nor omits a message.
`ledger_store` stores the record.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict

from monitor.conductor.evidence import Evidence, EvidenceKey
from sandherd.contracts.commands import PauseSandbox, SendMessage
from sandherd.contracts.events.monitor import (
    ConductorFindingKind,
    ConflictSeverity,
    DependencyCause,
    MonitorConductorReported,
    MonitorConflictFound,
    MonitorDependencyChanged,
    MonitorDuplicateFound,
    MonitorFindingWithdrawn,
    MonitorNotificationPublished,
)
from sandherd.contracts.names import new_uuid_at

MAX_FINDINGS: Final = 500
"""Maximum number of open findings of a project. Further findings are opened after some have ended."""
MAX_FILES_OF_PAIR: Final = 10
"""Maximum number of findings of a pair of sandboxes, one for each file. Further files get no finding."""
MAX_PATH_BYTES: Final = 256 * 1024
"""Maximum size of all paths in the findings of a project, in bytes."""
OutputData = (
    MonitorConflictFound
    | MonitorDuplicateFound
    | MonitorDependencyChanged
    | MonitorFindingWithdrawn
    | MonitorNotificationPublished
    | MonitorConductorReported
    | SendMessage
    | PauseSandbox
)


class _StoredModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class FindingRecord(_StoredModel):
    """A finding: a conflict, a duplicate or a changed dependency.

    It is stored from its discovery until one of its sandboxes has ended.
    """

    id: UUID
    """The id of the first event about the finding."""
    kind: ConductorFindingKind
    sandbox: str
    other: str
    task: str
    other_task: str | None = None
    path: str = ""
    paths: tuple[str, ...] = ()
    severity: ConflictSeverity | None = None
    cause: DependencyCause | None = None
    similarity: float | None = None
    lines: tuple[int, int] | None = None
    other_lines: tuple[int, int] | None = None
    since: AwareDatetime
    open: bool = True
    informed_at: AwareDatetime | None = None
    """When the agents of its sandboxes were informed. They are informed once."""
    notified_at: AwareDatetime | None = None
    """When a user was notified."""
    paused_at: AwareDatetime | None = None
    """When the sandbox was paused because of it."""

    @property
    def key(self) -> EvidenceKey:
        """The key that identifies a finding of a project."""
        return self.kind, self.sandbox, self.other, self.path

    @property
    def sandboxes(self) -> tuple[str, ...]:
        """The sandboxes that the finding is about."""
        return (self.sandbox,) if self.kind == "dependency" else (self.sandbox, self.other)


class OutboxEntry(_StoredModel):
    """An event or a command that is to be published, with its id."""

    id: UUID
    type: str
    entity: str
    task: str | None = None
    at: AwareDatetime
    data: str
    """The content of the event or command, as JSON."""


class LastReport(_StoredModel):
    """The most recent report of a project."""

    at: AwareDatetime
    score: float
    status: str
    sandboxes: int
    reasons: tuple[str, ...] = ()


class ConductorLedger(_StoredModel):
    """All data that the Conductor stores of a project."""

    version: Literal[1] = 1
    findings: tuple[FindingRecord, ...] = ()
    informed: Mapping[str, AwareDatetime] = {}
    """When each sandbox was last sent a message."""
    left_out: int = 0
    """Number of findings that were not opened, because there were too many."""
    reported: LastReport | None = None
    outbox: tuple[OutboxEntry, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether it has no content, so that it may be deleted."""
        return self == ConductorLedger()


def output_of(data: OutputData, entity: str, task: str | None, now: datetime, *, id: UUID | None = None) -> OutboxEntry:
    """An event or command that is to be published, by default with a new id."""
    return OutboxEntry(
        id=id or new_uuid_at(now), type=data.type, entity=entity, task=task, at=now, data=data.model_dump_json()
    )


def new_finding(evidence: Evidence, id: UUID, tasks: Mapping[str, str], now: datetime) -> FindingRecord:
    """A new finding."""
    return FindingRecord(
        id=id,
        kind=evidence.kind,
        sandbox=evidence.sandbox,
        other=evidence.other,
        task=tasks[evidence.sandbox],
        other_task=tasks.get(evidence.other),
        path=evidence.path,
        since=now,
        **_evidence_fields(evidence),
    )


def with_evidence(finding: FindingRecord, evidence: Evidence) -> FindingRecord:
    """The finding with the facts of newer evidence."""
    return finding.model_copy(update=_evidence_fields(evidence))


def _evidence_fields(evidence: Evidence) -> dict[str, Any]:
    total = round(evidence.similarity.total, 3) if evidence.similarity is not None else None
    fields = {name: getattr(evidence, name) for name in ("paths", "severity", "cause", "lines", "other_lines")}
    return {**fields, "similarity": total}


def found_event(finding: FindingRecord) -> OutputData:
    """The event that publishes a finding."""
    if finding.kind == "conflict":
        return MonitorConflictFound(
            other=finding.other,
            file_path=finding.path,
            finding_id=finding.id,
            severity=finding.severity,
            lines=list(finding.lines) if finding.lines else None,
            other_lines=list(finding.other_lines) if finding.other_lines else None,
        )
    if finding.kind == "duplicate":
        return MonitorDuplicateFound(
            other=finding.other,
            similarity=finding.similarity or 0.0,
            finding_id=finding.id,
            other_task=finding.other_task,
        )
    assert finding.cause is not None
    return MonitorDependencyChanged(
        cause=finding.cause, changed=finding.other, paths=list(finding.paths), finding_id=finding.id
    )


class FindingSpace:
    """The used part of the space for findings, in a project and for each pair."""

    def __init__(self, findings: Iterable[FindingRecord]) -> None:
        self._count = 0
        self._bytes = 0
        self._pairs: Counter[tuple[ConductorFindingKind, str, str]] = Counter()
        for finding in findings:
            self.use(finding)

    def use(self, finding: FindingRecord) -> None:
        """Count a finding."""
        self._count += 1
        self._bytes += sum(len(path.encode()) for path in (finding.path, *finding.paths))
        self._pairs[finding.key[:3]] += 1

    def is_full(self, evidence: Evidence) -> bool:
        """Whether there is no space for a new finding of this evidence."""
        is_project_full = self._count >= MAX_FINDINGS or self._bytes >= MAX_PATH_BYTES
        return is_project_full or self._pairs[evidence.key[:3]] >= MAX_FILES_OF_PAIR
