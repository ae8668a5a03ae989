"""What the Conductor does: opens and withdraws findings, informs agents, asks a user, pauses, and reports. Pure.

Every function returns a ledger in which what is to be published is in the outbox.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from monitor.conductor import coherence, texts
from monitor.conductor.evidence import Evidence, EvidenceKey, Scene, evidence_of, is_more_severe
from monitor.conductor.ledger import (
    MAX_FINDINGS,
    MAX_PAIR,
    Finding,
    Ledger,
    Output,
    OutputData,
    Reported,
    finding_of,
    found_event,
    updated,
)
from monitor.conductor.members import Member
from sandherd.contracts.commands import PauseSandbox, SendMessage
from sandherd.contracts.events.monitor import (
    MonitorConductorReported,
    MonitorFindingWithdrawn,
    MonitorNotificationPublished,
)
from sandherd.contracts.names import FLEET, new_uuid_at
from sandherd.contracts.states import NotificationKind
from sandherd.counted import counted

REPORT_EVERY: Final = 60.0
"""Minimum seconds between two reports of a project."""
SENDER: Final = "conductor"
MESSAGE_EXPIRES: Final = 300
"""How long a message waits for its agent, in seconds; later it would no longer relate to what the agent does."""
_SEVERE: Final = frozenset({"lines", "merge"})
_RANK: Final = {"merge": 0, "lines": 1, "file": 2}


def is_severe(finding: Finding) -> bool:
    """Whether a user is asked, or the later sandbox paused, where that is configured."""
    return finding.kind == "duplicate" or finding.severity in _SEVERE


# --- findings --------------------------------------------------------------------------------------------------


def reconciled(ledger: Ledger, touched: Collection[str], scene: Scene, now: datetime) -> Ledger:
    """The ledger with the findings that hold now, for the sandboxes that may have others than before."""
    findings = {one.key: one for one in ledger.findings}
    open_keys = {one.key for one in ledger.findings if one.open}
    found = _evidence(touched, scene, open_keys)
    events: list[Output] = []
    names = frozenset(touched)
    for finding in [one for one in ledger.findings if not names.isdisjoint(one.sandboxes)]:
        if finding.open and finding.key not in found:
            findings[finding.key] = finding.model_copy(update={"open": False})
            events.append(_withdrawal(finding, scene, now))
    left_out = 0
    for evidence in sorted(found.values(), key=lambda one: (_RANK.get(one.severity or "", 1), one.key)):
        before = findings.get(evidence.key)
        if before is None and _is_full(findings.values(), evidence):
            left_out += 1
        elif (after := _after(before, evidence, scene, now)) is not None:
            findings[evidence.key] = after
            events.append(_output(found_event(after), after, now, first=before is None))
    kept = [one for one in findings.values() if one.open or _all_known(one, scene)]
    informed = {name: at for name, at in ledger.informed.items() if scene.member(name) is not None}
    changes = {"findings": tuple(kept), "informed": informed, "outbox": (*ledger.outbox, *events), "left_out": left_out}
    return ledger.model_copy(update=changes)


def _evidence(touched: Iterable[str], scene: Scene, open_keys: Collection[EvidenceKey]) -> dict[EvidenceKey, Evidence]:
    found: dict[EvidenceKey, Evidence] = {}
    for sandbox in touched:
        member = scene.member(sandbox)
        if member is not None:
            found |= evidence_of(member, scene, open_keys)
    return found


def _after(before: Finding | None, evidence: Evidence, scene: Scene, now: datetime) -> Finding | None:
    """The finding that is to be published; None if it was."""
    if before is None:
        names = (evidence.sandbox, evidence.other)
        tasks = {name: member.task for name in names if (member := scene.member(name)) is not None}
        return finding_of(evidence, new_uuid_at(now), tasks, now)
    if not before.open:
        return updated(before, evidence).model_copy(update={"open": True, "since": now})
    return updated(before, evidence) if is_more_severe(evidence.severity, before.severity) else None


def _is_full(findings: Collection[Finding], evidence: Evidence) -> bool:
    if len(findings) >= MAX_FINDINGS:
        return True
    pair = [one for one in findings if (one.kind, one.sandbox, one.other) == evidence.key[:3]]
    return len(pair) >= MAX_PAIR


def _all_known(finding: Finding, scene: Scene) -> bool:
    return all(scene.member(name) is not None for name in finding.sandboxes)


def _withdrawal(finding: Finding, scene: Scene, now: datetime) -> Output:
    members = [scene.member(name) for name in finding.sandboxes]
    reason: Literal["resolved", "finished", "ended"] = "resolved"
    if any(member is None for member in members):
        reason = "ended"
    elif any(member is not None and not member.live for member in members):
        reason = "finished"
    data = MonitorFindingWithdrawn(
        finding_id=finding.id, finding_type=found_event(finding).type, other=finding.other, reason=reason
    )
    return _output(data, finding, now)


def _output(data: OutputData, finding: Finding, now: datetime, *, first: bool = False) -> Output:
    """An event about the finding's sandbox. The first one has the finding's id."""
    return _put(data, finding.sandbox, finding.task, now, finding if first else None)


def _put(data: OutputData, entity: str, task: str | None, now: datetime, named: Finding | None = None) -> Output:
    id = named.id if named is not None else new_uuid_at(now)
    return Output(id=id, type=data.type, entity=entity, task=task, at=now, data=data.model_dump_json())


# --- actions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Notice:
    """Findings about the same sandboxes whose agents are to be informed together."""

    findings: tuple[Finding, ...]

    @property
    def sandboxes(self) -> tuple[str, ...]:
        """The sandboxes whose agents are informed."""
        return self.findings[0].sandboxes


def notices_due(ledger: Ledger, scene: Scene, now: datetime, cooldown: float, *, pauses: bool) -> Iterator[Notice]:
    """Whom to inform now, the most severe first: of each pair both at once, and each at most once per cool-down.

    Of a paused, finished or ending sandbox neither agent is informed before it continues. With `pauses`, those that
    are to be paused are not informed first.
    """
    recent = {name for name, at in ledger.informed.items() if (now - at).total_seconds() < cooldown}
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in sorted(ledger.findings, key=lambda one: (-coherence.weight_of(one), one.key)):
        waits = pauses and is_severe(finding) and finding.paused_at is None
        if finding.open and finding.informed_at is None and not waits:
            groups.setdefault((finding.kind, finding.sandbox, finding.other), []).append(finding)
    for several in groups.values():
        notice = Notice(tuple(several))
        if recent.isdisjoint(notice.sandboxes) and all(_is_active(scene, one) for one in notice.sandboxes):
            recent.update(notice.sandboxes)
            yield notice


def _is_active(scene: Scene, sandbox: str) -> bool:
    member = scene.member(sandbox)
    return member is not None and member.active


def informed(ledger: Ledger, notice: Notice, now: datetime) -> Ledger:
    """The ledger with the messages of a notice."""
    keys = {one.key for one in notice.findings}
    one = notice.findings[0]
    tasks = {one.sandbox: one.task, one.other: one.other_task or ""}
    messages = [
        _put(_message(sandbox, notice.findings, tasks, now), sandbox, tasks[sandbox], now)
        for sandbox in notice.sandboxes
    ]
    findings = tuple(
        finding.model_copy(update={"informed_at": now}) if finding.key in keys else finding
        for finding in ledger.findings
    )
    times = {**ledger.informed, **dict.fromkeys(notice.sandboxes, now)}
    return ledger.model_copy(update={"findings": findings, "informed": times, "outbox": (*ledger.outbox, *messages)})


def _message(sandbox: str, findings: Sequence[Finding], tasks: dict[str, str], now: datetime) -> SendMessage:
    one = findings[0]
    if one.kind == "conflict":
        text = texts.conflict_text(sandbox, findings, tasks)
    elif one.kind == "duplicate":
        text = texts.duplicate_text(sandbox, one, tasks)
    else:
        text = texts.dependency_text(one)
    return SendMessage(
        message=f"msg-{new_uuid_at(now).hex}",
        sandbox=sandbox,
        content=text,
        message_type="guardian_nudge",
        sender_id=SENDER,
        correlation_id=str(one.id),
        expires_seconds=MESSAGE_EXPIRES,
    )


def asked(ledger: Ledger, now: datetime) -> Ledger:
    """The ledger with a notification of each severe finding that has none: one for all files of a pair."""
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in ledger.findings:
        if finding.open and finding.asked_at is None and is_severe(finding):
            groups.setdefault(finding.key[:3], []).append(finding)
    keys = {one.key for several in groups.values() for one in several}
    if not keys:
        return ledger
    notifications = [_output(_question(several), several[0], now) for several in groups.values()]
    findings = tuple(one.model_copy(update={"asked_at": now}) if one.key in keys else one for one in ledger.findings)
    return ledger.model_copy(update={"findings": findings, "outbox": (*ledger.outbox, *notifications)})


def _question(findings: Sequence[Finding]) -> MonitorNotificationPublished:
    one = findings[0]
    return MonitorNotificationPublished(
        kind=NotificationKind.COORDINATION,
        message=texts.question(findings),
        cause_id=one.id,
        cause_type=found_event(one).type,
    )


def to_pause(ledger: Ledger, scene: Scene) -> dict[str, Finding]:
    """The sandboxes that are to be paused, each with the finding: the later ones of severe findings, once per pair."""
    found: dict[str, Finding] = {}
    done = {one.key[:3] for one in ledger.findings if one.paused_at is not None}
    for finding in ledger.findings:
        wanted = finding.open and is_severe(finding) and finding.key[:3] not in done
        if wanted and _is_active(scene, finding.sandbox):
            found.setdefault(finding.sandbox, finding)
    return found


def paused(ledger: Ledger, finding: Finding, now: datetime) -> Ledger:
    """The ledger with the command that pauses the later sandbox of a finding."""
    command = PauseSandbox(
        sandbox=finding.sandbox, reason=f"{texts.question([finding])} ({found_event(finding).type} {finding.id})"
    )
    pair = finding.key[:3]
    findings = tuple(
        one.model_copy(update={"paused_at": now}) if one.open and one.key[:3] == pair else one
        for one in ledger.findings
    )
    output = _put(command, finding.sandbox, finding.task, now)
    return ledger.model_copy(update={"findings": findings, "outbox": (*ledger.outbox, output)})


# --- reports ---------------------------------------------------------------------------------------------------


def assessed(ledger: Ledger, members: Iterable[Member], now: datetime) -> Reported:
    """The coherence of a project now."""
    live = {member.sandbox for member in members if member.live}
    findings = [finding for finding in ledger.findings if finding.open]
    score = coherence.score_of(live, findings)
    reasons = tuple(coherence.reasons_of(findings))
    return Reported(at=now, score=score, status=coherence.status_of(score), sandboxes=len(live), reasons=reasons)


def report_waits(ledger: Ledger, now_reported: Reported) -> float | None:
    """For how many seconds the next report has to wait; None if the last one still holds."""
    last = ledger.reported
    if last is None:
        return 0.0 if now_reported.reasons else None
    if (last.score, last.reasons) == (now_reported.score, now_reported.reasons):
        return None
    return max(0.0, REPORT_EVERY - (now_reported.at - last.at).total_seconds())


def reported(ledger: Ledger, report: Reported) -> Ledger:
    """The ledger with the event of a report."""
    kinds = [finding.kind for finding in ledger.findings if finding.open]
    event = MonitorConductorReported(
        status=report.status,
        coherence_score=report.score,
        sandboxes=report.sandboxes,
        reasons=list(report.reasons),
        recommendations=recommendations(ledger),
        conflicts=kinds.count("conflict"),
        duplicates=kinds.count("duplicate"),
        dependencies=kinds.count("dependency"),
    )
    output = _put(event, FLEET, None, report.at)
    return ledger.model_copy(update={"reported": report, "outbox": (*ledger.outbox, output)})


def recommendations(ledger: Ledger) -> list[str]:
    """What a user can do about open findings, for each kind one line."""
    findings = [finding for finding in ledger.findings if finding.open]
    duplicates = sorted({one.sandbox for one in findings if one.kind == "duplicate"})
    severe = sorted({one.sandbox for one in findings if one.severity in _SEVERE})
    stale = sorted({one.sandbox for one in findings if one.kind == "dependency"})
    lines = [
        (duplicates, "decide whether {} needed, as an earlier one does the same"),
        (severe, "let the earlier one finish before {} continued: `sandherd sandboxes pause`"),
        (stale, "check the results of {}: what it builds on has changed"),
    ]
    return [line.format(_some(names, line)) for names, line in lines if names]


def _some(names: Sequence[str], line: str) -> str:
    shown = ", ".join(names[:3]) + (f" and {counted(len(names) - 3, 'other')}" if len(names) > 3 else "")
    if line.startswith("check"):
        return shown
    return f"{shown} {'is' if len(names) == 1 else 'are'}"
