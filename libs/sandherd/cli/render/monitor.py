"""Shows the monitor's view of a sandbox. `console.cell` removes control characters from the sandbox's texts."""

from collections.abc import Sequence

from sandherd.cli.render import budgets
from sandherd.cli.render.console import print_table
from sandherd.cli.render.details import show
from sandherd.cli.render.table import Column
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import MonitorView, RuleProgress

_MAX_CITED_EVENTS = 4
"""Maximum number of cited events in a cell; `-o json` has all."""


def show_monitored(view: MonitorView) -> None:
    """Print the state, calls in flight, spending, rules, findings and interventions of a sandbox."""
    show([_state_facts(view), _steering_facts(view)])
    _print_section(
        "Calls in flight", ("TOOL", "SINCE", "WAITS"), [[c.tool, c.since, c.waits or None] for c in view.calls]
    )
    if view.spending is None and view.task is not None:
        write_text("\nSpending is unknown: the ledger of budgets can't be read at present")
    _print_section("Spending", budgets.HEADER, budgets.rows(view.spending or ()))
    rules = [_rule_row(rule) for rule in view.rules]
    _print_section("Rules", ("RULE", "STATE", "COUNT", "NEXT STEP", "AT", Column("SEEN", 1)), rules)
    findings = [[f.rule, f.since, f.count, f.summary, _evidence_text(f.evidence)] for f in view.findings]
    _print_section("Findings", ("RULE", "SINCE", "COUNT", "FOUND", Column("EVIDENCE", 1)), findings)
    interventions = [
        [
            intervention.number,
            intervention.rule,
            intervention.step,
            intervention.decided_at,
            intervention.outcome or "pending",
            intervention.approval_id,
            _evidence_text(intervention.evidence),
        ]
        for intervention in view.interventions
    ]
    header = ("NUMBER", "RULE", "STEP", "DECIDED", "OUTCOME", Column("APPROVAL", 2), Column("EVIDENCE", 1))
    _print_section("Interventions", header, interventions)


def _state_facts(view: MonitorView) -> dict[str, object]:
    return {
        "sandbox": view.sandbox,
        "project": view.project,
        "task": view.task,
        "phase": view.phase,
        "as of": view.as_of,
        "turn": view.turn or None,
        "started": view.started_at,
        "last user message": view.episode_at,
        "last event": view.last_sign_at,
        "last work": view.last_work_at,
        "expires": view.expires_at,
    }


def _steering_facts(view: MonitorView) -> dict[str, object]:
    return {
        "strongest step": view.max_intervention,
        "last intervention": view.steered_at,
        "next one after": view.next_after,
    }


def _rule_row(rule_progress: RuleProgress) -> list[object]:
    muted = f"muted until {rule_progress.muted_until:%Y-%m-%d %H:%M} UTC" if rule_progress.muted_until else "muted"
    state = muted if rule_progress.state == "muted" else rule_progress.state
    count = None if rule_progress.count is None else round(rule_progress.count)
    return [
        rule_progress.rule,
        state,
        count,
        rule_progress.next_step,
        rule_progress.threshold,
        rule_progress.disabled_reason or rule_progress.summary,
    ]


def _evidence_text(evidence: Sequence[str]) -> str:
    more = len(evidence) - _MAX_CITED_EVENTS
    return " ".join(evidence[-_MAX_CITED_EVENTS:]) + (f" and {more} more" if more > 0 else "")


def _print_section(title: str, header: Sequence[str | Column], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        write_text(f"\n{title}")
        print_table(header, rows)
