"""What a session has cost, and where it is kept."""

import json
from pathlib import Path

import pytest

from sandherd_drivers.claude.spending import Spending
from sandherd_drivers.claude.transcripts import NoSessionError, find, lay, project, spent, written


def usage(dollars: float, tokens: int = 0) -> dict[str, float]:
    return {"inputTokens": tokens, "outputTokens": 0, "costUSD": dollars}


def test_totals_become_differences() -> None:
    """Whose sum is the last total, in whole millionths: nothing is lost to rounding."""
    spending = Spending()
    totals = [0.0000004 * turn for turn in range(1, 1001)]
    charges = [charge for total in totals for charge in spending.charge(total, {"m": usage(total, round(total * 1e7))})]
    assert sum(charge["cost_micro_usd"] for charge in charges) == 400
    assert sum(charge["input_tokens"] for charge in charges) == round(totals[-1] * 1e7)
    assert min(charge["cost_micro_usd"] for charge in charges) >= 0


def test_each_model_is_charged_for_itself() -> None:
    """One that did nothing in this turn is left out; what no model is named for is charged all the same."""
    spending = Spending()
    spending.charge(0.5, {"a": usage(0.3, 3), "b": usage(0.2, 2)})
    (charge,) = spending.charge(0.7, {"a": usage(0.3, 3), "b": usage(0.4, 4)})
    assert (charge["model"], charge["cost_micro_usd"], charge["input_tokens"]) == ("b", 200_000, 2)
    assert spending.charge(0.75, None) == [{"model": None, "cost_micro_usd": 50_000}]
    (charge,) = spending.charge(0.9, {"a": usage(0.4, 4), "b": usage(0.4, 4)})
    assert charge["cost_micro_usd"] == 150_000


def test_a_total_that_was_begun_anew_is_charged_whole() -> None:
    """A session whose earlier costs the program has forgotten."""
    spending = Spending.since(5.0, {"m": usage(5.0, 50)})
    (charge,) = spending.charge(0.25, {"m": usage(0.25, 2)})
    assert (charge["cost_micro_usd"], charge["input_tokens"]) == (250_000, 2)
    assert spending.charge(None, None) == []


def test_a_turn_that_broke_off_has_tokens_and_no_price() -> None:
    """Those of each answer once, as far as the answers said; totals that come after all make up for them."""
    spending = Spending()
    spending.answered("a1", "m", {"input_tokens": 100, "output_tokens": 1, "cache_read_input_tokens": None})
    spending.answered("a1", "m", {"input_tokens": 100, "output_tokens": 5})
    spending.answered("a2", "m", {"input_tokens": 50})
    spending.answered("a3", "m", None)
    tokens = {"input_tokens": 150, "output_tokens": 5, "cache_read_tokens": 0, "cache_write_tokens": 0}
    assert spending.without_totals() == [{"model": "m", **tokens}]
    spending.answered("a4", "m", {"input_tokens": 50})
    spending.charge(0.1, {})
    assert spending.without_totals() == []


def test_what_was_charged_before_is_in_the_transcript(tmp_path: Path) -> None:
    """The last that was written down counts; what looks like it and isn't is passed over."""
    transcript = tmp_path / "t.jsonl"
    lines = [
        json.dumps({"type": "cost-state", "totalCostUSD": 1.0, "modelUsage": {}}),
        json.dumps({"type": "cost-state", "totalCostUSD": 2.5, "modelUsage": {"m": usage(2.5)}}),
        json.dumps({"type": "user", "message": 'I read of "cost-state"'}),
        '{"type":"cost-state","totalCostUSD":',
    ]
    transcript.write_text("\n".join(lines))
    assert spent(transcript) == (2.5, {"m": usage(2.5)})
    transcript.write_text("")
    assert spent(transcript) == (0.0, {})


def test_a_transcript_is_laid_where_the_program_looks(tmp_path: Path) -> None:
    """Under the session's name, which is nothing but a name."""
    source = tmp_path / "kept"
    source.write_text("{}\n")
    laid = lay(str(source), "0b7e-1", tmp_path / "config", "/trees/my.tree")
    assert laid.parent.name == project("/trees/my.tree") == "-trees-my-tree"
    assert find(tmp_path / "config", "0b7e-1") == laid
    assert find(tmp_path / "config", "other") is None
    for name in ("", "../x", "-x", "a/b", "a\n"):
        with pytest.raises(NoSessionError):
            lay(str(source), name, tmp_path / "config", "/work")
    with pytest.raises(NoSessionError, match="can't be read"):
        lay(str(tmp_path / "nothing"), "0b7e-1", tmp_path / "config", "/work")


async def test_a_transcript_is_waited_for_but_not_for_long(tmp_path: Path) -> None:
    """The program writes a little later than it speaks; where the entry never comes, what is there is kept."""
    transcript = tmp_path / "t.jsonl"
    await written(transcript, "entry", 0.05)
    transcript.write_text('{"uuid":"entry"}')
    await written(transcript, "entry")
    await written(tmp_path, None)
