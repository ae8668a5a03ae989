"""Facts that the monitor's rules need, from the real OpenHands agent: how calls end, and when it forgets."""

import pytest

from tests.drivers.openhands.conftest import StartOpenHands, appears
from tests.models.openai import OpenAIModel
from tests.models.openai_answers import calls

pytestmark = pytest.mark.agents

ENDLESS = "touch begun{0}; until test -e enough{0}; do python3 -c 0; done"


async def test_facts_of_calls_are_reported(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """An exit status, a time-out, an error of a tool and an interrupt are told apart."""
    model.script(
        calls("terminal", command="sh -c 'exit 3'"),
        calls("file_editor", command="view", path="/missing"),
        calls("terminal", command=ENDLESS.format(1), timeout=1),
        calls("terminal", command="C-c", is_input=True),
        calls("terminal", command=ENDLESS.format(2)),
    )
    driver = await openhands("work")
    await appears(driver.work_dir / "begun2")
    driver.send("interrupt")
    await driver.heard("driver.turn", state="idle")
    results = [(line["outcome"], line["exit_code"]) for line in driver.said("agent.tool_result")]
    assert results[:3] == [("failed", 3), ("failed", None), ("timed_out", None)]
    assert results[4:] == [("cancelled", None)]
    assert [(line["outcome"], line["exit_code"]) for line in driver.said("agent.tool_completed")] == results
