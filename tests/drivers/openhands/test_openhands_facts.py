"""Facts for the monitor's rules, from the real OpenHands agent: how calls end, and when it condenses its context."""

import pytest

from tests.drivers.driver_process import DriverProcess
from tests.drivers.openhands.conftest import StartOpenHands, appears, with_terminal
from tests.models.openai import OpenAIModel
from tests.models.openai_answers import Failure, calls, writes
from tests.patience import PATIENCE

pytestmark = pytest.mark.agents

ENDLESS = "touch begun{0}; until test -e enough{0}; do python3 -c 0; done"


async def waiting_call(driver: DriverProcess) -> str:
    """The id of the call that waits for a file: on a busy machine, the terminal's start can time out, too."""

    def found() -> list[str]:
        return [line["tool_use_id"] for line in driver.emitted("agent.tool_use") if "continued" in str(line["input"])]

    await driver.until(found, "the call was not emitted")
    return found()[0]


async def test_facts_of_calls_are_reported(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """An exit status, a time-out, an error of a tool and an interrupt are distinguished."""
    model.script(
        with_terminal(model, calls("terminal", command="sh -c 'exit 3'")),
        calls("file_editor", command="view", path="/missing"),
        calls("terminal", command="while [ ! -e continued ]; do sleep 0.05; done", timeout=1),
        # This waits for the end of the same command: another one would be refused before.
        calls("terminal", command="", is_input=True, timeout=PATIENCE),
        calls("terminal", command=ENDLESS.format(2)),
    )
    driver = await openhands("work")
    call = await waiting_call(driver)
    await driver.received("agent.tool_result", tool_use_id=call, outcome="timed_out")
    (driver.work_dir / "continued").touch()
    await appears(driver.work_dir / "begun2")
    driver.send("interrupt")
    await driver.received("driver.turn", state="idle")
    results = [(line["outcome"], line["exit_code"]) for line in driver.emitted("agent.tool_result")]
    assert [(line["outcome"], line["exit_code"]) for line in driver.emitted("agent.tool_completed")] == results
    results = results[-5:]  # after those of the terminal's start
    assert results[:3] == [("failed", 3), ("failed", None), ("timed_out", None)]
    assert results[4:] == [("cancelled", None)]  # the call before: that of the command, or that it has already ended


async def test_compaction_is_reported(openhands: StartOpenHands, model: OpenAIModel) -> None:
    """When the model's server refuses a context that is too long, the SDK replaces its events by a summary."""
    too_long = Failure(status=400, message="This model's maximum context length is 8192 tokens.")
    model.script(*[calls("think", thought=str(number)) for number in range(12)], too_long, *[writes("done")] * 3)
    driver = await openhands("work")
    compacted = await driver.received("agent.context_compacted")
    assert (compacted["trigger"], compacted["messages_removed"] > 0) == ("automatic", True)
    await driver.received("driver.result", error_type=None)
