"""An ACP agent as a user has it, from the installation of its toolchain on."""

import shutil
from pathlib import Path

import pytest

from spawner.runtimes import bubblewrap
from tests.e2e.line import HOLD, Line

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.agents,
    pytest.mark.timeout(900),
]

WORK = bubblewrap.INSIDE / "work"
AGENT = Path(__file__).parents[1] / "drivers" / "acp" / "scripted_agent.py"


def acp(*options: str) -> list[str]:
    """The words of a user after the task; the agent is written with the toolchain's own library."""
    agent = ["--", str(bubblewrap.INSIDE / "toolchains" / "acp" / "bin" / "python"), "scripted_agent.py"]
    return ["--harness", "acp", "--file", str(AGENT), *options, *agent]


async def test_missing_toolchain_is_reported_with_its_command(line: Line) -> None:
    """The task fails to start and names a command; after it was run unchanged, the same task completes."""
    shutil.rmtree(line.home / "toolchains" / "acp", ignore_errors=True)
    ran = await line("run", "say hello", *acp())
    assert ran.status == 1
    assert "run `sandherd harness install acp`, or for images `sandherd image build --with acp` (start)" in ran.out
    assert "sandherd harness install acp" in (await line("tasks", "get", ran.out.split()[0])).checked_output()
    (await line("harness", "install", "acp")).checked_output()
    listed = (await line("harness", "list", "-o", "json")).document()
    states = {one["harness"]: one["state"] for one in listed}
    assert states["acp"] == "installed"
    assert "absent" not in states.values()
    assert "agent.message            hello" in (await line("run", "say hello", *acp())).checked_output()


async def test_acp_agent_is_approved_messaged_and_ended(line: Line) -> None:
    """Approvals are granted and denied; a write is reported with its diff; a message waits for the turn's end.

    An interrupt stops the turn and keeps the session, and ending the sandbox leaves no process.
    """
    (await line("harness", "install", "acp")).checked_output()
    steps = [
        "may one touch",
        "may two touch",
        f"write {WORK / 'made.txt'} words",
        "tool t1 execute",
        f"sh t1 {HOLD}",
    ]
    options = acp("--ask", "execute", "--linger", "600")
    async with line.given("\n".join(steps), *options) as given:
        for verdict in ("grant", "deny"):
            requested = await given.requested("execute")
            (await line("approvals", verdict, requested["sandbox"], requested["approval_id"])).checked_output()
        await given.event("agent.message", content="[yes]")
        await given.event("agent.message", content="[no]written")
        await given.appears("began")
        edited = (await given.event("agent.file_edited", file_path="made.txt"))["data"]
        assert "+words" in edited["full_diff"]
        assert (await given.send("say Stopped.", "--interrupt"))["state"] == "acknowledged"
        await given.event("agent.completed", final_output="Stopped.")
        assert (await given.send("prompts"))["state"] == "acknowledged"
        await given.event("agent.turn_completed", count=3)
        assert "may one touch" in (await given.events("agent.message"))[-1]["data"]["content"]
        (await line("sandboxes", "terminate", await given.sandbox())).checked_output()
        await given.gone()
