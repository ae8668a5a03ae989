"""The decisions of the Conductor: it opens and withdraws findings, informs agents, notifies a user, and pauses. Pure.

A function that returns a ledger has added the messages to publish to the outbox of that ledger.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from monitor.conductor import coherence, message_texts
from monitor.conductor.conductor_ledger import (
    ConductorLedger,
    FindingRecord,
    FindingSpace,
    OutboxEntry,
    OutputData,
    found_event,
    new_finding,
    output_of,
    with_evidence,
)
from monitor.conductor.evidence import Evidence, EvidenceKey, ProjectData, evidence_of, is_more_severe
from monitor.facts import CONDUCTOR
from sandherd.contracts.commands import PauseSandbox, SendMessage
from sandherd.contracts.events.monitor import (
    MonitorFindingWithdrawn,
    MonitorNotificationPublished,
)
from sandherd.contracts.names import new_uuid_at
from sandherd.contracts.states import NotificationKind

SENDER: Final = CONDUCTOR
MESSAGE_EXPIRES: Final = 300
"""Seconds after which a message that was not delivered expires: its agent may have ended the work it is about."""
SEVERE_CONFLICTS: Final = frozenset({"lines", "merge"})
MAX_EVENTS: Final = 100
"""Maximum number of events of one decision, so that the ledger with its outbox fits into a message of the broker."""
MAX_ANNOUNCEMENTS: Final = 25
"""Maximum number of pairs whose agents one decision informs. The next decision informs the others."""
_SEVERITY_RANK: Final = {"merge": 0, "lines": 1, "file": 2}


def is_severe(finding: FindingRecord) -> bool:
    """Whether a user is notified about a finding, or the later sandbox is paused, if this is configured."""
    return finding.kind == "duplicate" or finding.severity in SEVERE_CONFLICTS


# --- findings --------------------------------------------------------------------------------------------------


def reconcile(ledger: ConductorLedger, changed: Collection[str], scope: ProjectData, now: datetime) -> ConductorLedger:
    """The ledger with the current findings of the `changed` sandboxes. Others have the same findings as before.

    If the outbox then has `MAX_EVENTS` events, call this again after they are published: there may be further events.
    """
    findings = {record.key: record for record in ledger.findings}
    open_keys = {record.key for record in ledger.findings if record.open}
    current = _evidence(changed, scope, open_keys)
    events: list[OutboxEntry] = []
    names = frozenset(changed)
    for finding in [record for record in ledger.findings if not names.isdisjoint(record.sandboxes)]:
        if finding.open and finding.key not in current and len(events) < MAX_EVENTS:
            findings[finding.key] = finding.model_copy(update={"open": False})
            events.append(_withdrawal(finding, scope, now))
    left_out, space = 0, FindingSpace(findings.values())
    for evidence in sorted(current.values(), key=lambda each: (_SEVERITY_RANK.get(each.severity or "", 1), each.key)):
        earlier = findings.get(evidence.key)
        if len(events) >= MAX_EVENTS:
            break
        if earlier is None and space.is_full(evidence):
            left_out += 1
        elif (revised := _revise(earlier, evidence, scope, now)) is not None:
            if earlier is None:
                space.use(revised)
            findings[evidence.key] = revised
            events.append(_event_entry(found_event(revised), revised, now, first=earlier is None))
    remaining = [record for record in findings.values() if record.open or all(map(scope.member, record.sandboxes))]
    informed = {name: at for name, at in ledger.informed.items() if scope.member(name) is not None}
    changes = {
        "findings": tuple(remaining),
        "informed": informed,
        "outbox": (*ledger.outbox, *events),
        "left_out": left_out,
    }
    return ledger.model_copy(update=changes)


def _evidence(changed: Iterable[str], scope: ProjectData, keys: Collection[EvidenceKey]) -> dict[EvidenceKey, Evidence]:
    by_key: dict[EvidenceKey, Evidence] = {}
    for sandbox in changed:
        member = scope.member(sandbox)
        if member is not None:
            by_key |= evidence_of(member, scope, keys)
    return by_key


def _revise(old: FindingRecord | None, evidence: Evidence, scope: ProjectData, now: datetime) -> FindingRecord | None:
    """The finding with this evidence, if it must be published. None if the old finding, as published, is correct."""
    if old is None:
        names = (evidence.sandbox, evidence.other)
        tasks = {name: member.task for name in names if (member := scope.member(name)) is not None}
        return new_finding(evidence, new_uuid_at(now), tasks, now)
    if not old.open:
        return with_evidence(old, evidence).model_copy(update={"open": True, "since": now})
    return with_evidence(old, evidence) if is_more_severe(evidence.severity, old.severity) else None


def _withdrawal(finding: FindingRecord, scope: ProjectData, now: datetime) -> OutboxEntry:
    members = [scope.member(name) for name in finding.sandboxes]
    reason: Literal["resolved", "finished", "ended"] = "resolved"
    if any(member is None for member in members):
        reason = "ended"
    elif any(member is not None and not member.live for member in members):
        reason = "finished"
    data = MonitorFindingWithdrawn(
        finding_id=finding.id, finding_type=found_event(finding).type, other=finding.other, reason=reason
    )
    return _event_entry(data, finding, now)


def _event_entry(data: OutputData, finding: FindingRecord, now: datetime, *, first: bool = False) -> OutboxEntry:
    """An event about the finding's sandbox. The first event of a finding has the finding's id."""
    return output_of(data, finding.sandbox, finding.task, now, id=finding.id if first else None)


# --- actions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announcement:
    """Findings about the same sandboxes. Their agents are informed of all these findings in one message."""

    findings: tuple[FindingRecord, ...]

    @property
    def sandboxes(self) -> tuple[str, ...]:
        """The sandboxes whose agents are informed."""
        return self.findings[0].sandboxes


def announcements_due(
    ledger: ConductorLedger, scope: ProjectData, now: datetime, cooldown: float, *, pauses: bool
) -> Iterator[Announcement]:
    """The announcements that are due now, those with the most severe findings first.

    Both agents of a pair are informed at the same time, and an agent at most once per cool-down. A pair waits while
    either sandbox is paused, finished or ending. With `pauses`, a severe finding waits until its sandbox was paused.
    """
    recent = {name for name, at in ledger.informed.items() if (now - at).total_seconds() < cooldown}
    groups: dict[tuple[str, ...], list[FindingRecord]] = {}
    for finding in sorted(ledger.findings, key=lambda one: (-coherence.weight_of(one), one.key)):
        waits = pauses and is_severe(finding) and finding.paused_at is None
        if finding.open and finding.informed_at is None and not waits:
            groups.setdefault((finding.kind, finding.sandbox, finding.other), []).append(finding)
    count = 0
    for group in groups.values():
        if count >= MAX_ANNOUNCEMENTS:
            return
        announcement = Announcement(tuple(group))
        if recent.isdisjoint(announcement.sandboxes) and all(_is_active(scope, one) for one in announcement.sandboxes):
            recent.update(announcement.sandboxes)
            count += 1
            yield announcement


def _is_active(scope: ProjectData, sandbox: str) -> bool:
    member = scope.member(sandbox)
    return member is not None and member.active


def announce(ledger: ConductorLedger, announcement: Announcement, now: datetime, cooldown: float) -> ConductorLedger:
    """The ledger with the messages of an announcement. A message expires before its agent may get the next one."""
    keys = {finding.key for finding in announcement.findings}
    expires = max(1, min(MESSAGE_EXPIRES, int(cooldown)))
    first = announcement.findings[0]
    tasks = {first.sandbox: first.task, first.other: first.other_task or ""}
    messages = [
        output_of(_message(sandbox, announcement.findings, tasks, now, expires), sandbox, tasks[sandbox], now)
        for sandbox in announcement.sandboxes
    ]
    findings = tuple(
        finding.model_copy(update={"informed_at": now}) if finding.key in keys else finding
        for finding in ledger.findings
    )
    times = {**ledger.informed, **dict.fromkeys(announcement.sandboxes, now)}
    return ledger.model_copy(update={"findings": findings, "informed": times, "outbox": (*ledger.outbox, *messages)})


def _message(
    sandbox: str, findings: Sequence[FindingRecord], tasks: dict[str, str], now: datetime, expires: int
) -> SendMessage:
    return SendMessage(
        message=f"msg-{new_uuid_at(now).hex}",
        sandbox=sandbox,
        content=message_texts.text_for(sandbox, findings, tasks),
        message_type="guardian_nudge",
        sender_id=SENDER,
        correlation_id=str(findings[0].id),
        expires_seconds=expires,
    )


def with_notifications(ledger: ConductorLedger, now: datetime) -> ConductorLedger:
    """The ledger with a notification of each severe finding that had none. Findings of a pair share a notification."""
    groups: dict[tuple[str, str, str], list[FindingRecord]] = {}
    for finding in ledger.findings:
        if finding.open and finding.notified_at is None and is_severe(finding):
            groups.setdefault(finding.key[:3], []).append(finding)
    keys = {finding.key for group in groups.values() for finding in group}
    if not keys:
        return ledger
    notifications = [_event_entry(_notification(group), group[0], now) for group in groups.values()]
    findings = tuple(one.model_copy(update={"notified_at": now}) if one.key in keys else one for one in ledger.findings)
    return ledger.model_copy(update={"findings": findings, "outbox": (*ledger.outbox, *notifications)})


def _notification(findings: Sequence[FindingRecord]) -> MonitorNotificationPublished:
    first = findings[0]
    return MonitorNotificationPublished(
        kind=NotificationKind.COORDINATION,
        message=message_texts.notification_text(findings),
        cause_id=first.id,
        cause_type=found_event(first).type,
    )


def pauses_due(ledger: ConductorLedger, scope: ProjectData) -> dict[str, FindingRecord]:
    """The sandboxes to pause, each with its finding. It is the later sandbox of a severe finding, once per pair."""
    pauses: dict[str, FindingRecord] = {}
    paused_pairs = {record.key[:3] for record in ledger.findings if record.paused_at is not None}
    for finding in ledger.findings:
        needs_pause = finding.open and is_severe(finding) and finding.key[:3] not in paused_pairs
        if needs_pause and _is_active(scope, finding.sandbox):
            pauses.setdefault(finding.sandbox, finding)
    return pauses


def with_pause(ledger: ConductorLedger, finding: FindingRecord, now: datetime) -> ConductorLedger:
    """The ledger with the command that pauses the later sandbox of a finding."""
    reason = f"{message_texts.notification_text([finding])} ({found_event(finding).type} {finding.id})"
    command = PauseSandbox(sandbox=finding.sandbox, reason=reason)
    pair = finding.key[:3]
    findings = tuple(
        record.model_copy(update={"paused_at": now}) if record.open and record.key[:3] == pair else record
        for record in ledger.findings
    )
    output = output_of(command, finding.sandbox, finding.task, now)
    return ledger.model_copy(update={"findings": findings, "outbox": (*ledger.outbox, output)})
