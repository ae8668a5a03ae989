"""Turns of the real agent: what it does becomes events, and what is said to it reaches the model."""

import asyncio

import pytest

from tests.drivers.claude.conftest import StartClaude
from tests.models.anthropic import AnthropicModel
from tests.models.anthropic_answers import Answer, Call, Text, Thinking, calls, says

pytestmark = pytest.mark.agents


async def test_every_block_becomes_its_event(claude: StartClaude, model: AnthropicModel) -> None:
    """Thoughts, words, real calls of Write, Edit and Bash with their results; then the outcome, and it waits."""
    model.script(
        Answer(blocks=(Thinking("a file"), Text("I write it"), Call("Write", {"file_path": "a.txt", "content": "1\n"}))),
        calls("Edit", file_path="a.txt", old_string="1", new_string="2"),
        calls("Bash", command="cat a.txt; echo shown >&2"),
        says("done"),
    )
    driver = await claude("make a.txt")
    await driver.heard("driver.turn", state="idle")
    assert (driver.work_dir / "a.txt").read_text() == "2\n"
    assert [line["type"] for line in driver.lines if line["type"] not in {"agent.system_message", "agent.usage"}] == []
