"""Replays events through the rules of the monitor, and shows the report: `sandherd monitor replay`."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import typer

from sandherd.cli.herd_session import run_with_herd
from sandherd.cli.options import Format
from sandherd.cli.parse.times import moment
from sandherd.cli.render import console
from sandherd.cli.render.table import Column
from sandherd.cli.rule_replay import installed_replay, lines_of, lines_of_history, session_labels, settings_with
from sandherd.client.errors import checked_name
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import write_text
from sandherd.contracts.replay import ReplayedFinding, ReplayedIntervention, ReplayQuality, ReplayReport

_FINDINGS_HEADER: Final = ("SANDBOX", "RULE", "STEP", "TURN", Column("COUNT", 2), Column("WHAT", 3, cut=True))
_INTERVENTIONS_HEADER: Final = ("SANDBOX", "RULE", "STEP", "TURN", "OUTCOME")
_RULES_HEADER: Final = ("RULE", "SESSIONS", "FOUND", "FALSE ALARMS", "DELAY", Column("MISSED", 3, cut=True))


def show_replay(
    ctx: typer.Context,
    files: Sequence[Path],
    *,
    sandbox: str | None,
    times: tuple[str | None, str | None],
    rules: tuple[Sequence[str], Any],
    labels: Path | None,
    project: str | None,
    output: Format,
) -> int:
    """Replay the events of files, or of the history, and show the report. Returns 0.

    `times` are the texts of `--since` and `--until`, `rules` the arguments of `settings_with`. Raises `HerdError` and
    `ContractError`.
    """
    run, settings, expected = installed_replay(), settings_with(*rules), session_labels(labels)
    if files:
        _show(run(lines_of(files), settings, expected), output)
        return 0
    now, name = datetime.now(UTC), None if sandbox is None else checked_name(sandbox, "sandbox")
    since, until = moment(times[0], now), moment(times[1], now, "--until")

    async def work(herd: Herd) -> int:
        lines = await lines_of_history(herd, sandbox=name, since=since, until=until)
        _show(await asyncio.to_thread(run, lines, settings, expected), output)
        return 0

    return run_with_herd(ctx, work, project=project, activity="replaying events")


def _show(report: ReplayReport, output: Format) -> None:
    if output.is_json:
        console.print_document(output, report)
        return
    wide = output is Format.WIDE
    console.print_facts({"events": report.events, "unreadable lines": report.unreadable, "sandboxes": report.sandboxes})
    for title, header, rows in (
        ("findings", _FINDINGS_HEADER, _finding_rows(report.findings)),
        ("interventions", _INTERVENTIONS_HEADER, _intervention_rows(report.interventions)),
        ("recorded findings", _FINDINGS_HEADER, _finding_rows(report.recorded_findings)),
        ("recorded interventions", _INTERVENTIONS_HEADER, _intervention_rows(report.recorded_interventions)),
    ):
        write_text(f"\n{title}")
        console.print_table(header, rows, wide=wide)
    for name, failures in report.failed_rules.items():
        write_text(f"rule failed for {name}: {'; '.join(failures)}")
    if report.quality is not None:
        _show_quality(report.quality, wide=wide)


def _finding_rows(replayed_findings: Sequence[ReplayedFinding]) -> list[Sequence[object]]:
    return [
        (finding.sandbox, finding.rule, finding.step, finding.turn, finding.count or None, finding.summary)
        for finding in replayed_findings
    ]


def _intervention_rows(replayed_interventions: Sequence[ReplayedIntervention]) -> list[Sequence[object]]:
    return [
        (intervention.sandbox, intervention.rule, intervention.step, intervention.turn, intervention.outcome)
        for intervention in replayed_interventions
    ]


def _show_quality(quality: ReplayQuality, *, wide: bool) -> None:
    write_text("\nquality")
    rows = [
        (
            rule_quality.rule,
            rule_quality.sessions,
            rule_quality.found,
            rule_quality.false_alarms,
            _delay_text(rule_quality.delay_turns),
            ", ".join(rule_quality.missed),
        )
        for rule_quality in quality.rules
    ]
    console.print_table(_RULES_HEADER, rows, wide=wide)
    recall = None if quality.recall is None else f"{quality.recall:.3f}"
    rate = quality.false_alarms_per_healthy
    console.print_facts(
        {
            "recall": recall,
            "healthy sessions": quality.healthy,
            "false alarms": quality.false_alarms,
            "per healthy session": None if rate is None else f"{rate:.3f}",
            "alarmed": "; ".join(quality.alarmed) or None,
        }
    )


def _delay_text(turns: Sequence[int]) -> str | None:
    return f"{max(turns)} at most" if turns else None
