"""Shows the monitor's view of a sandbox. `console.cell` removes control characters from the sandbox's texts."""

from collections.abc import Sequence

from sandherd.cli.render import budgets
from sandherd.cli.render.console import print_table
from sandherd.cli.render.details import show
from sandherd.cli.render.table import Column
from sandherd.client.terminal_text import write_text
from sandherd.contracts.requests import MonitorView, RuleProgress

_CITED = 4
"""Maximum number of cited events in a cell; `-o json` has all."""


def show_monitored(view: MonitorView) -> None:
    """Print the state, calls in flight, spending, rules, findings and interventions of a sandbox."""
    show([_state(view), _steering(view)])
    _section("Calls in flight", ("TOOL", "SINCE", "WAITS"), [[c.tool, c.since, c.waits or None] for c in view.calls])
    if view.spending is None and view.task is not None:
        write_text("\nSpending is unknown: the ledger of budgets can't be read at present")
    _section("Spending", budgets.HEADER, budgets.rows(view.spending or ()))
    rules = [_rule(one) for one in view.rules]
    _section("Rules", ("RULE", "STATE", "COUNT", "NEXT STEP", "AT", Column("SEEN", 1)), rules)
    findings = [[f.rule, f.since, f.count, f.summary, _cited(f.evidence)] for f in view.findings]
    _section("Findings", ("RULE", "SINCE", "COUNT", "FOUND", Column("EVIDENCE", 1)), findings)
    steered = [
        [
            one.number,
            one.rule,
            one.step,
            one.decided_at,
            one.outcome or "pending",
            one.approval_id,
            _cited(one.evidence),
        ]
        for one in view.interventions
    ]
    header = ("NUMBER", "RULE", "STEP", "DECIDED", "OUTCOME", Column("APPROVAL", 2), Column("EVIDENCE", 1))
    _section("Interventions", header, steered)


def _state(view: MonitorView) -> dict[str, object]:
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


def _steering(view: MonitorView) -> dict[str, object]:
    return {
        "strongest step": view.max_intervention,
        "last intervention": view.steered_at,
        "next one after": view.next_after,
    }


def _rule(rule_progress: RuleProgress) -> list[object]:
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


def _cited(evidence: Sequence[str]) -> str:
    more = len(evidence) - _CITED
    return " ".join(evidence[-_CITED:]) + (f" and {more} more" if more > 0 else "")


def _section(title: str, header: Sequence[str | Column], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        write_text(f"\n{title}")
        print_table(header, rows)
