"""Costs of a Claude session: charged as differences of totals, and read from the transcript."""

import json
from pathlib import Path

import pytest

from sandherd_drivers.claude.transcripts import (
    NoSessionError,
    find_transcript,
    project_name,
    read_totals,
    restore,
    wait_until_written,
)
from sandherd_drivers.claude.usage import SessionUsage


def usage(dollars: float, tokens: int = 0) -> dict[str, float]:
    return {"inputTokens": tokens, "outputTokens": 0, "costUSD": dollars}


def test_totals_become_differences() -> None:
    """The sum of the differences is the last total, in whole millionths: no rounding is lost."""
    session = SessionUsage()
    totals = [0.0000004 * turn for turn in range(1, 1001)]
    charges = [charge for total in totals for charge in session.charge(total, {"m": usage(total, round(total * 1e7))})]
    assert sum(charge["cost_micro_usd"] for charge in charges) == 400
    assert sum(charge["input_tokens"] for charge in charges) == round(totals[-1] * 1e7)
    assert min(charge["cost_micro_usd"] for charge in charges) >= 0


def test_each_model_is_charged_separately() -> None:
    """A model without use in this turn is left out; costs without a model are charged nevertheless."""
    session = SessionUsage()
    session.charge(0.5, {"a": usage(0.3, 3), "b": usage(0.2, 2)})
    (charge,) = session.charge(0.7, {"a": usage(0.3, 3), "b": usage(0.4, 4)})
    assert (charge["model"], charge["cost_micro_usd"], charge["input_tokens"]) == ("b", 200_000, 2)
    assert session.charge(0.75, None) == [{"model": None, "cost_micro_usd": 50_000}]
    (charge,) = session.charge(0.9, {"a": usage(0.4, 4), "b": usage(0.4, 4)})
    assert charge["cost_micro_usd"] == 150_000


def test_restarted_total_is_charged_whole() -> None:
    """If the program no longer has the session's earlier costs, its total is charged completely."""
    session = SessionUsage.resumed(5.0, {"m": usage(5.0, 50)})
    (charge,) = session.charge(0.25, {"m": usage(0.25, 2)})
    assert (charge["cost_micro_usd"], charge["input_tokens"]) == (250_000, 2)
    assert session.charge(None, None) == []


def test_broken_turn_is_charged_tokens_without_price() -> None:
    """The tokens of each reply count once; totals that come later correct the price."""
    session = SessionUsage()
    session.record_response("a1", "m", {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": None})
    session.record_response("a1", "m", {"input_tokens": 100, "output_tokens": 5})
    session.record_response("a2", "m", {"input_tokens": 50})
    session.record_response("a3", "m", None)
    tokens = {"input_tokens": 150, "output_tokens": 5, "cache_read_tokens": 0, "cache_write_tokens": 0}
    assert session.charge_without_totals() == [{"model": "m", **tokens}]
    session.record_response("a4", "m", {"input_tokens": 50})
    session.charge(0.1, {})
    assert session.charge_without_totals() == []


def test_last_cost_state_of_transcript_is_read(tmp_path: Path) -> None:
    """The transcript's last valid cost record counts; lines that only resemble one are ignored."""
    transcript = tmp_path / "t.jsonl"
    lines = [
        json.dumps({"type": "cost-state", "totalCostUSD": 1.0, "modelUsage": {}}),
        json.dumps({"type": "cost-state", "totalCostUSD": 2.5, "modelUsage": {"m": usage(2.5)}}),
        json.dumps({"type": "user", "message": 'I read of "cost-state"'}),
        '{"type":"cost-state","totalCostUSD":',
    ]
    transcript.write_text("\n".join(lines))
    assert read_totals(transcript) == (2.5, {"m": usage(2.5)})
    transcript.write_text("")
    assert read_totals(transcript) == (0.0, {})


def test_transcript_is_placed_under_the_session_id(tmp_path: Path) -> None:
    """A transcript is restored under its session id; an id that is a path is refused."""
    source = tmp_path / "kept"
    source.write_text("{}\n")
    path = restore(str(source), "0b7e-1", tmp_path / "config", "/trees/my.tree")
    assert path.parent.name == project_name("/trees/my.tree") == "-trees-my-tree"
    assert find_transcript(tmp_path / "config", "0b7e-1") == path
    assert find_transcript(tmp_path / "config", "other") is None
    for name in ("", "../x", "-x", "a/b", "a\n"):
        with pytest.raises(NoSessionError):
            restore(str(source), name, tmp_path / "config", "/work")
    with pytest.raises(NoSessionError, match="can't be read"):
        restore(str(tmp_path / "nothing"), "0b7e-1", tmp_path / "config", "/work")


async def test_transcript_is_waited_for_with_a_limit(tmp_path: Path) -> None:
    """The program writes a little later than it reports; if the entry never comes, the present file is stored."""
    transcript = tmp_path / "t.jsonl"
    await wait_until_written(transcript, "entry", 0.05)
    transcript.write_text('{"uuid":"entry"}')
    await wait_until_written(transcript, "entry")
    await wait_until_written(tmp_path, None)
