"""The decisions of the Conductor: it opens and withdraws findings, informs agents, asks a user, and pauses. Pure.

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
    finding_of,
    found_event,
    output_of,
    updated,
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
"""Seconds that a message waits for its agent. A later message would be about work that the agent has ended."""
SEVERE: Final = frozenset({"lines", "merge"})
MAX_EVENTS: Final = 100
"""Maximum number of events of one decision, so that the ledger with its outbox fits into a message of the broker."""
MAX_ANNOUNCEMENTS: Final = 25
"""Maximum number of pairs whose agents one decision informs. The next decision informs the others."""
_RANK: Final = {"merge": 0, "lines": 1, "file": 2}


def is_severe(finding: FindingRecord) -> bool:
    """Whether a finding is severe. If this is configured, a user is asked about it, or the later sandbox is paused."""
    return finding.kind == "duplicate" or finding.severity in SEVERE


# --- findings --------------------------------------------------------------------------------------------------


def reconciled(ledger: ConductorLedger, touched: Collection[str], scope: ProjectData, now: datetime) -> ConductorLedger:
    """The ledger with the current findings of the sandboxes whose findings may have changed.

    If the outbox then has `MAX_EVENTS` events, there may be more: call this again when they are published.
    """
    findings = {one.key: one for one in ledger.findings}
    open_keys = {one.key for one in ledger.findings if one.open}
    found = _evidence(touched, scope, open_keys)
    events: list[OutboxEntry] = []
    names = frozenset(touched)
    for finding in [one for one in ledger.findings if not names.isdisjoint(one.sandboxes)]:
        if finding.open and finding.key not in found and len(events) < MAX_EVENTS:
            findings[finding.key] = finding.model_copy(update={"open": False})
            events.append(_withdrawal(finding, scope, now))
    left_out, space = 0, FindingSpace(findings.values())
    for evidence in sorted(found.values(), key=lambda one: (_RANK.get(one.severity or "", 1), one.key)):
        before = findings.get(evidence.key)
        if len(events) >= MAX_EVENTS:
            break
        if before is None and space.is_full(evidence):
            left_out += 1
        elif (after := _after(before, evidence, scope, now)) is not None:
            if before is None:
                space.use(after)
            findings[evidence.key] = after
            events.append(_output(found_event(after), after, now, first=before is None))
    remaining = [one for one in findings.values() if one.open or all(map(scope.member, one.sandboxes))]
    informed = {name: at for name, at in ledger.informed.items() if scope.member(name) is not None}
    changes = {
        "findings": tuple(remaining),
        "informed": informed,
        "outbox": (*ledger.outbox, *events),
        "left_out": left_out,
    }
    return ledger.model_copy(update=changes)


def _evidence(touched: Iterable[str], scope: ProjectData, keys: Collection[EvidenceKey]) -> dict[EvidenceKey, Evidence]:
    found: dict[EvidenceKey, Evidence] = {}
    for sandbox in touched:
        member = scope.member(sandbox)
        if member is not None:
            found |= evidence_of(member, scope, keys)
    return found


def _after(before: FindingRecord | None, evidence: Evidence, scope: ProjectData, now: datetime) -> FindingRecord | None:
    """The finding with this evidence, if it has to be published; None if the published one is still correct."""
    if before is None:
        names = (evidence.sandbox, evidence.other)
        tasks = {name: member.task for name in names if (member := scope.member(name)) is not None}
        return finding_of(evidence, new_uuid_at(now), tasks, now)
    if not before.open:
        return updated(before, evidence).model_copy(update={"open": True, "since": now})
    return updated(before, evidence) if is_more_severe(evidence.severity, before.severity) else None


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
    return _output(data, finding, now)


def _output(data: OutputData, finding: FindingRecord, now: datetime, *, first: bool = False) -> OutboxEntry:
    """An event about the finding's sandbox. The first one has the finding's id."""
    return output_of(data, finding.sandbox, finding.task, now, id=finding.id if first else None)


# --- actions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announcement:
    """Findings about the same sandboxes, about which their agents are to be informed together."""

    findings: tuple[FindingRecord, ...]

    @property
    def sandboxes(self) -> tuple[str, ...]:
        """The sandboxes whose agents are informed."""
        return self.findings[0].sandboxes


def announcements_due(
    ledger: ConductorLedger, scope: ProjectData, now: datetime, cooldown: float, *, pauses: bool
) -> Iterator[Announcement]:
    """The announcements to make now, the most severe findings first.

    Both agents of a pair are informed together, each at most once per cool-down, and none while either sandbox is
    paused, finished or ending. With `pauses`, they are informed after the sandbox of a severe finding was paused.
    """
    recent = {name for name, at in ledger.informed.items() if (now - at).total_seconds() < cooldown}
    groups: dict[tuple[str, ...], list[FindingRecord]] = {}
    for finding in sorted(ledger.findings, key=lambda one: (-coherence.weight_of(one), one.key)):
        waits = pauses and is_severe(finding) and finding.paused_at is None
        if finding.open and finding.informed_at is None and not waits:
            groups.setdefault((finding.kind, finding.sandbox, finding.other), []).append(finding)
    count = 0
    for several in groups.values():
        if count >= MAX_ANNOUNCEMENTS:
            return
        announcement = Announcement(tuple(several))
        if recent.isdisjoint(announcement.sandboxes) and all(_is_active(scope, one) for one in announcement.sandboxes):
            recent.update(announcement.sandboxes)
            count += 1
            yield announcement


def _is_active(scope: ProjectData, sandbox: str) -> bool:
    member = scope.member(sandbox)
    return member is not None and member.active


def informed(ledger: ConductorLedger, announcement: Announcement, now: datetime, cooldown: float) -> ConductorLedger:
    """The ledger with the messages of an announcement. They expire before the same agent may get the next message."""
    keys = {one.key for one in announcement.findings}
    expires = max(1, min(MESSAGE_EXPIRES, int(cooldown)))
    one = announcement.findings[0]
    tasks = {one.sandbox: one.task, one.other: one.other_task or ""}
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


def notified(ledger: ConductorLedger, now: datetime) -> ConductorLedger:
    """The ledger with a notification of each severe finding that has none, one for all files of a pair."""
    groups: dict[tuple[str, str, str], list[FindingRecord]] = {}
    for finding in ledger.findings:
        if finding.open and finding.notified_at is None and is_severe(finding):
            groups.setdefault(finding.key[:3], []).append(finding)
    keys = {one.key for several in groups.values() for one in several}
    if not keys:
        return ledger
    notifications = [_output(_question(several), several[0], now) for several in groups.values()]
    findings = tuple(one.model_copy(update={"notified_at": now}) if one.key in keys else one for one in ledger.findings)
    return ledger.model_copy(update={"findings": findings, "outbox": (*ledger.outbox, *notifications)})


def _question(findings: Sequence[FindingRecord]) -> MonitorNotificationPublished:
    one = findings[0]
    return MonitorNotificationPublished(
        kind=NotificationKind.COORDINATION,
        message=message_texts.question(findings),
        cause_id=one.id,
        cause_type=found_event(one).type,
    )


def to_pause(ledger: ConductorLedger, scope: ProjectData) -> dict[str, FindingRecord]:
    """The sandboxes to pause, each with its finding: the later sandbox of each severe finding, once per pair."""
    found: dict[str, FindingRecord] = {}
    done = {one.key[:3] for one in ledger.findings if one.paused_at is not None}
    for finding in ledger.findings:
        wanted = finding.open and is_severe(finding) and finding.key[:3] not in done
        if wanted and _is_active(scope, finding.sandbox):
            found.setdefault(finding.sandbox, finding)
    return found


def paused(ledger: ConductorLedger, finding: FindingRecord, now: datetime) -> ConductorLedger:
    """The ledger with the command that pauses the later sandbox of a finding."""
    reason = f"{message_texts.question([finding])} ({found_event(finding).type} {finding.id})"
    command = PauseSandbox(sandbox=finding.sandbox, reason=reason)
    pair = finding.key[:3]
    findings = tuple(
        one.model_copy(update={"paused_at": now}) if one.open and one.key[:3] == pair else one
        for one in ledger.findings
    )
    output = output_of(command, finding.sandbox, finding.task, now)
    return ledger.model_copy(update={"findings": findings, "outbox": (*ledger.outbox, output)})
