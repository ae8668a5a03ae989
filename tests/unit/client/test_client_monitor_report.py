"""The screen of `sandherd monitor report`."""

from typing import Any

import pytest

from sandherd.cli.options import Format
from sandherd.cli.render.monitor import show_monitored
from sandherd.cli.render.monitor_report import show_report
from sandherd.contracts.requests import MonitorReport, MonitorView

SINCE = "2026-11-20T12:00:00Z"
LINE = {"scope": "project", "project": "demo", "window": "day", "budget": "cost"}


class OneReport:
    """A herd whose monitor has this report."""

    def __init__(self, **fields: Any) -> None:
        self.found = MonitorReport.model_validate(fields)

    async def monitor_report(self) -> MonitorReport:
        return self.found


def project(**fields: Any) -> dict[str, Any]:
    return {"project": "demo", "coherence_score": 0.5, "status": "strained", "sandboxes": 2, **fields}


async def shown(herd: OneReport, capsys: pytest.CaptureFixture[str], output: Format = Format.TABLE) -> str:
    assert await show_report(output)(herd) == 0  # type: ignore[arg-type]  # all that it uses of a Herd
    return capsys.readouterr().out


async def test_all_parts_are_shown_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Score with reasons, each finding with what was done about it, interventions, budgets, and who needs a user."""
    finding = {"finding_id": "x", "kind": "conflict", "sandbox": "sbx-2", "task": "task-2", "other": "sbx-1"}
    finding |= {"file_path": "a\x1b[2Jb.py", "severity": "lines", "since": SINCE, "informed_at": SINCE}
    parts = {
        "reasons": ["sbx-2 and sbx-1 edit the same lines"],
        "findings": [finding],
        "finding_count": 1,
        "interventions": [
            {
                "sandbox": "sbx-1",
                "interventions": 1,
                "findings": ["loop"],
                "last": [{"number": 1, "rule": "loop", "step": "nudge", "decided_at": SINCE, "outcome": "ignored"}],
            }
        ],
        "outcomes": {"ignored": 1},
        "budgets": [LINE | {"limit": 100, "used": 80, "share": 0.8, "metered": False}],
        "needs": [{"sandbox": "sbx-2", "reason": "paused", "since": SINCE, "approval_id": "pause-1"}],
    }
    text = await shown(OneReport(mode="inform", projects=[project(**parts)]), capsys)
    for part in (
        "0.50 (strained)",
        "edit the same lines",
        "conflict (lines)",
        "informed",
        "loop",
        "1 ignored",
        "nudge",
        "80%+",
        "pause-1",
    ):
        assert part in text
    assert "budgets are unknown" not in text
    assert "\x1b[2J" not in text


async def test_ledgers_that_are_not_read_are_stated(capsys: pytest.CaptureFixture[str]) -> None:
    """No budgets and unknown budgets look different."""
    herd = OneReport(mode="report", projects=[project(budgets=None)])
    assert "budgets are unknown" in await shown(herd, capsys)


def test_spending_of_a_sandbox_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    """Spending that is not reported is `unmetered`, not zero. A line states if the ledger can't be read."""
    times = dict.fromkeys(("as_of", "started_at", "last_sign_at"), SINCE)
    view = {"project": "demo", "sandbox": "sbx-1", "task": "task-1", "phase": "running", "max_intervention": "nudge"}
    known = MonitorView.model_validate(view | times | {"spending": [LINE | {"metered": False}]})
    show_monitored(known)
    text = capsys.readouterr().out
    assert "unmetered" in text
    assert "0.00" not in text
    show_monitored(known.model_copy(update={"spending": None}))
    assert "Spending is unknown" in capsys.readouterr().out


async def test_a_conductor_that_is_off_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    """The setting that turns it on is named; as JSON it is a field."""
    herd = OneReport(mode="off", projects=[project(coherence_score=1, status="coherent")])
    assert "SANDHERD_CONDUCTOR" in await shown(herd, capsys)
    assert '"mode": "off"' in await shown(herd, capsys, Format.JSON)
