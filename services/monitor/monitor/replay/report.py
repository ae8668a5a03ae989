"""Replays lines of events, as `sandherd events -o jsonl` writes them, and reports what the rules find."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from monitor.event_decoder import read
from monitor.facts import ObservedEvent
from monitor.replay.session_labels import SessionLabels, quality, read_labels
from monitor.replay.simulation import Simulation
from monitor.rule_set import RuleSet
from monitor.rule_settings import rule_set_of
from sandherd.contracts.errors import ContractError
from sandherd.contracts.replay import ReplayReport
from sandherd.contracts.subjects import event_subject
from sandherd.settings import Settings

MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""A longer line counts as unreadable. Events are smaller, because the broker limits them."""


def replay(lines: Iterable[bytes], rules: RuleSet, labels: bytes | None = None) -> ReplayReport:
    """Replay events, oldest first: the findings of `rules`, the recorded findings, and with labels the rules' quality.

    Lines that are not events are counted. Raises `ContractError` for invalid labels.
    """
    simulation, unreadable = Simulation(rules), 0
    turns: dict[tuple[str, int], int] = {}  # the agent's turn after each event, by sandbox and source sequence
    for line in lines:
        if not line.strip():
            continue
        event = _event_of(line)
        if event is None:
            unreadable += 1
            continue
        observed, sequence = event
        if observed is not None:
            turns[observed.entity, sequence] = simulation.feed(observed)
    rule_quality = None
    if labels is not None:
        session_labels = read_labels(labels, {sandbox for _, sandbox in simulation.sandboxes})
        rule_quality = quality(session_labels, simulation.findings, _problem_turns(session_labels, turns))
    return ReplayReport(
        events=simulation.count,
        unreadable=unreadable,
        sandboxes=len(simulation.sandboxes),
        findings=simulation.findings,
        interventions=simulation.interventions,
        recorded_findings=simulation.recorded_findings,
        recorded_interventions=simulation.recorded_interventions,
        failed_rules={sandbox: reasons for (_, sandbox), reasons in simulation.failed.items()},
        quality=rule_quality,
    )


def replay_by_settings(lines: Iterable[bytes], settings: Settings, labels: bytes | None) -> ReplayReport:
    """As `replay`, with the rules that the settings select. `sandherd monitor replay` calls this function."""
    return replay(lines, rule_set_of(settings), labels)


def _event_of(line: bytes) -> tuple[ObservedEvent | None, int] | None:
    """The event of a line and its source sequence; None if the line is not an event.

    The event itself is None if the monitor ignores it.
    """
    try:
        document: Any = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
        subject = event_subject(document["project"], document["subject"], document["type"])
        at, sequence = datetime.fromisoformat(document["time"]), int(document["sequence"])
        if at.tzinfo is None:
            return None
    except (ValueError, TypeError, KeyError, RecursionError, ContractError):
        return None
    return read(subject, line.strip(), 0, at), sequence


def _problem_turns(labels: SessionLabels, turns: dict[tuple[str, int], int]) -> dict[str, int]:
    """The turn in which the labelled problem begins, by sandbox."""
    return {label.sandbox: turns.get((label.sandbox, label.from_sequence), 0) for label in labels.sessions.values()}
