"""Sessions of the real Claude agent: stored, resumed, forked, charged once, and stopped cleanly."""

import asyncio
import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.drivers.claude.conftest import UNTIL_ENOUGH, StartClaude, appears, program
from tests.drivers.driver_process import DriverProcess
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Usage, calls, writes
from tests.patience import PATIENCE

pytestmark = pytest.mark.agents

PRICED = Usage(input_tokens=1000, output_tokens=100, cache_read_input_tokens=10, cache_creation_input_tokens=20)


def stored(driver: DriverProcess, path: Path) -> dict[str, Any]:
    """A copy of the transcript, as the worker stores it, and the options that resume it."""
    transcript_line = driver.emitted("driver.transcript")[-1]
    shutil.copy(transcript_line["path"], path)
    return {"session_id": transcript_line["session_id"], "transcript": str(path), "fork": False}


async def written(driver: DriverProcess, below: Path, text: str) -> None:
    """Wait until the transcript has this text, which the program writes independently of its work."""
    name = f"{driver.emitted('driver.ready')[0]['session_id']}.jsonl"
    async with asyncio.timeout(PATIENCE):
        while not any(text in path.read_text() for path in below.rglob(name)):
            await asyncio.sleep(0.01)


def costs(driver: DriverProcess) -> list[int]:
    return [line["cost_micro_usd"] for line in driver.emitted("agent.usage")]


async def test_each_turn_is_charged_separately(claude: StartClaude, model: AnthropicModel) -> None:
    """The charge is in whole millionths of a dollar, with tokens, per model."""
    model.script(writes("one", usage=PRICED), calls("Bash", command="true", usage=PRICED), writes("two", usage=PRICED))
    driver = await claude("begin")
    await driver.received("driver.turn", state="idle", turn=1)
    driver.message("go on")
    await driver.received("driver.turn", state="idle", turn=2)
    first, second = driver.emitted("agent.usage")
    assert first["cost_micro_usd"] > 0
    assert second["cost_micro_usd"] == 2 * first["cost_micro_usd"]
    assert first["model"] == model.requests[0].body["model"]
    tokens = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    assert [first[name] for name in tokens] == [1000, 100, 10, 20]
    assert [second[name] for name in tokens] == [2000, 200, 20, 40]


@pytest.mark.parametrize("in_order", [True, False], ids=["after its end", "after a turn"])
@pytest.mark.parametrize("fork", [False, True], ids=["resumed", "forked"])
async def test_session_resumes_from_its_transcript(
    claude: StartClaude, model: AnthropicModel, tmp_path: Path, in_order: bool, fork: bool
) -> None:
    """A session resumes in another directory; a fork has a new id, and earlier costs are not charged again."""
    model.script(writes("one", usage=PRICED), writes("two", usage=PRICED), writes("three", usage=PRICED))
    first = await claude("remember the pelican")
    await first.received("driver.turn", state="idle", turn=1)
    first.message("and the heron")
    await first.received("driver.turn", state="idle", turn=2)
    if in_order:
        assert await first.stop() == 0
    resume = stored(first, tmp_path / "kept.jsonl") | {"fork": fork}
    await first.kill()
    second = await claude("which birds?", resume=resume)
    await second.received("driver.turn", state="idle")
    assert "pelican" in model.requests[2].words
    assert "heron" in model.requests[2].words
    assert costs(second) == costs(first)[:1]
    session = second.emitted("driver.result")[0]["session_id"]
    assert (session == resume["session_id"]) is not fork
    assert second.emitted("agent.turn_started")[0]["origin"] == "resume"
    assert second.emitted("driver.ready")[0]["session_id"] == session
    assert second.emitted("driver.transcript")[0]["session_id"] == session
    assert "which birds?" in Path(second.emitted("driver.transcript")[0]["path"]).read_text()


async def test_transcript_is_complete_at_each_turns_end(claude: StartClaude, model: AnthropicModel) -> None:
    """The transcript precedes the outcome, under the session's id, with the last text in it."""
    model.script(writes("the very last words"))
    driver = await claude("begin")
    transcript_line = await driver.received("driver.transcript", keep=True)
    assert "the very last words" in Path(transcript_line["path"]).read_text()
    assert (
        Path(transcript_line["path"]).stem
        == transcript_line["session_id"]
        == driver.emitted("driver.ready")[0]["session_id"]
    )
    await driver.received("driver.result")


async def test_session_of_killed_program_resumes(claude: StartClaude, model: AnthropicModel, tmp_path: Path) -> None:
    """After a kill during a command, the model is informed that the command's result is unknown."""
    model.script(calls("Bash", command=UNTIL_ENOUGH), writes("again, then"))
    first = await claude("remember the pelican")
    await appears(first.work_dir / "begun")
    await written(first, tmp_path, '"tool_use"')
    program(first).kill()
    assert await first.ended() == 0
    second = await claude("go on", resume=stored(first, tmp_path / "kept.jsonl"))
    await second.received("driver.result", error_type=None)
    assert "pelican" in model.requests[1].words
    assert "tool_result" in model.requests[1].words


@pytest.mark.parametrize("name", ["0b7e0f3c-0000-4000-8000-000000000000", "../../escape"])
async def test_missing_session_is_a_start_error(
    claude: StartClaude, model: AnthropicModel, tmp_path: Path, name: str
) -> None:
    """The error names the reason; no request is made to the model."""
    (tmp_path / "empty.jsonl").touch()
    resume = {"session_id": name, "transcript": str(tmp_path / "empty.jsonl"), "fork": False}
    driver = await claude("go on", resume=resume)
    result = await driver.received("driver.result")
    assert result["error_type"] == "start"
    assert name in result["error"]
    assert await driver.ended() == 0
    assert model.requests == []


async def test_stop_during_turn_ends_cleanly(claude: StartClaude, model: AnthropicModel) -> None:
    """The command is killed, the turn charged, no waiting message lost, the transcript complete, the exit status 0."""
    model.script(calls("Bash", command=UNTIL_ENOUGH, usage=PRICED))
    model.script(writes("never ending", gate=asyncio.Event()))
    driver = await claude("work")
    await appears(driver.work_dir / "begun")
    message = driver.message("one more thing")
    assert await driver.stop() == 0
    assert driver.emitted("driver.result")[0]["error_type"] == "stopped"
    assert driver.emitted("agent.stream_error") == []
    assert [line["message"] for line in driver.emitted("driver.refused") + driver.emitted("driver.taken")] == [message]
    assert costs(driver)[0] > 0
    transcript = Path(driver.emitted("driver.transcript")[-1]["path"])
    entries = [json.loads(line) for line in transcript.read_text().splitlines()]
    assert entries[-1]["type"] == "cost-state"


@pytest.mark.parametrize("grace", [None, 2.8], ids=["a SIGTERM", "a word and a SIGTERM"])
async def test_sigterm_during_turn_ends_cleanly(
    claude: StartClaude, model: AnthropicModel, grace: float | None
) -> None:
    """A SIGTERM to the whole group, as the worker sends it, still yields the outcome and the transcript."""
    model.script(calls("Bash", command=UNTIL_ENOUGH, usage=PRICED))
    model.script(writes("never ending", gate=asyncio.Event()))
    driver = await claude("count the herons")
    await appears(driver.work_dir / "begun")
    if grace is not None:
        driver.send("stop", grace=grace)
    os.killpg(driver.process.pid, signal.SIGTERM)
    assert await driver.ended() == 0
    assert len(driver.emitted("driver.result")) == 1
    assert "count the herons" in Path(driver.emitted("driver.transcript")[-1]["path"]).read_text()


async def test_stop_is_obeyed_while_the_agent_starts(claude: StartClaude, model: AnthropicModel) -> None:
    """The driver does not wait for a program that does not start."""
    for _ in range(5):
        driver = await claude("begin")
        begun = await _begun(psutil.Process(driver.process.pid))
        begun.suspend()
        driver.send("stop", grace=0.5)
        try:
            assert await driver.ended() == 0
        finally:
            begun.kill()
        if not driver.emitted("driver.ready"):  # otherwise it would start before it is suspended, as on a busy machine
            return
    pytest.fail("it always comes up before it is suspended")


async def _begun(driver: psutil.Process) -> psutil.Process:
    """The driver's child once it is the program: before that it is a waiting copy of the driver."""
    async with asyncio.timeout(PATIENCE):
        while True:
            for child in driver.children():
                with suppress(psutil.Error):
                    if child.exe() != driver.exe():
                        return child
            await asyncio.sleep(0.001)


async def test_closed_stdin_stops_driver_and_program(claude: StartClaude, model: AnthropicModel) -> None:
    """The driver ends without an error, with its program, when the worker closes its input."""
    model.script(writes("one"))
    driver = await claude("begin")
    await driver.received("driver.turn", state="idle")
    driver.close_input()
    assert await driver.ended() == 0
    assert driver.emitted("agent.stream_error") == []
