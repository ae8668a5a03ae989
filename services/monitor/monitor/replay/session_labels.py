"""Labels of recorded sessions, and the quality of rules: how well their findings agree with the labels.

tests/recordings/README.md describes the format.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.monitor_rules import RULES
from sandherd.contracts.replay import ReplayedFinding, ReplayQuality, RuleQuality


class SessionLabel(BaseModel):
    """The label of a session: the rules that have to find something in it, and the rules that may."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sandbox: str
    expect: list[str] = []
    """The rules that have to find something. If it is empty, the session is healthy, and other findings are false."""
    may: list[str] = []
    """Rules whose findings are neither required nor false, for example because they find a part of the same problem."""
    from_sequence: Annotated[int, Field(ge=0)] = 0
    """The source sequence of the event with which the problem begins."""


class SessionLabels(BaseModel):
    """A file of labels, by the names of the sessions."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    sessions: dict[str, SessionLabel]


def read_labels(document: bytes, sandboxes: Iterable[str]) -> SessionLabels:
    """The labels of a JSON document. Raises `ContractError` for unknown rules, and sessions that are not replayed."""
    try:
        labels = SessionLabels.model_validate_json(document)
    except ValidationError as error:
        raise ContractError.from_validation(error) from None
    rules = {row.name for row in RULES}
    replayed = set(sandboxes)
    for name, label in labels.sessions.items():
        if unknown := [rule for rule in (*label.expect, *label.may) if rule not in rules]:
            raise _invalid(f"sessions.{name}: there is no rule {unknown[0]}; the rules are {', '.join(sorted(rules))}")
        if label.sandbox not in replayed:
            raise _invalid(f"sessions.{name}: no event of its sandbox {label.sandbox} is replayed")
    return labels


def _invalid(message: str) -> ContractError:
    return ContractError(Code.INVALID_FIELD, message, field="labels")


def quality(labels: SessionLabels, findings: Sequence[ReplayedFinding], onsets: Mapping[str, int]) -> ReplayQuality:
    """Recall, false alarms and delay by rule. `onsets` has the turn in which the problem of each sandbox begins."""
    first_findings: dict[str, dict[str, ReplayedFinding]] = {}
    for finding in findings:
        first_findings.setdefault(finding.sandbox, {}).setdefault(finding.rule, finding)
    healthy = {name: label for name, label in labels.sessions.items() if not label.expect}
    alarms = {
        name: sorted(set(first_findings.get(label.sandbox, {})) - set(label.may)) for name, label in healthy.items()
    }
    labelled_rules = {rule for label in labels.sessions.values() for rule in label.expect}
    measured = [row.name for row in RULES if row.kind == "guardian" or row.name in labelled_rules]
    rules = [_rule_quality(rule, labels, first_findings, onsets=onsets, alarms=alarms) for rule in measured]
    expected_count, found_count = sum(rule.sessions for rule in rules), sum(rule.found for rule in rules)
    false_count = sum(map(len, alarms.values()))
    return ReplayQuality(
        sessions=len(labels.sessions),
        healthy=len(healthy),
        rules=rules,
        recall=found_count / expected_count if expected_count else None,
        false_alarms=false_count,
        false_alarms_per_healthy=false_count / len(healthy) if healthy else None,
        alarmed=[f"{name}: {', '.join(names)}" for name, names in sorted(alarms.items()) if names],
    )


def _rule_quality(
    rule: str,
    labels: SessionLabels,
    first_findings: Mapping[str, Mapping[str, ReplayedFinding]],
    *,
    onsets: Mapping[str, int],
    alarms: Mapping[str, Sequence[str]],
) -> RuleQuality:
    labelled_sandboxes = {name: label.sandbox for name, label in labels.sessions.items() if rule in label.expect}
    hits = {
        name: first_findings[sandbox][rule]
        for name, sandbox in labelled_sandboxes.items()
        if rule in first_findings.get(sandbox, {})
    }
    delays: Any = [max(0, hit.turn - onsets.get(labelled_sandboxes[name], 0)) for name, hit in hits.items()]
    return RuleQuality(
        rule=rule,
        sessions=len(labelled_sandboxes),
        found=len(hits),
        missed=sorted(labelled_sandboxes.keys() - hits.keys()),
        false_alarms=sum(rule in names for names in alarms.values()),
        delay_turns=delays,
        recall=len(hits) / len(labelled_sandboxes) if labelled_sandboxes else None,
    )
