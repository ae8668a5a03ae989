"""A whole worker with a real ACP agent: Sandherd's driver, the protocol's library, and an agent."""

import json
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.worker_exit import ExitCode
from tests.drivers.toolchains import TOOLCHAINS, interpreter

AGENT = Path(__file__).parents[2] / "drivers" / "acp" / "scripted_agent.py"

pytestmark = pytest.mark.agents


async def test_acp_agent_is_reported_from_start_to_end(sandbox: Any) -> None:
    """Texts, tool calls and usage are events, in order and without a gap, with one end."""
    python = interpreter("acp")
    task = 'say Hello\ntool t1 execute {"command": "ls"}\ndone t1 a.py\ncost 0.25\ntokens 30 4\nsay Done'
    spec = {"text": task, "harness": {"kind": "acp", "argv": [str(python), str(AGENT)]}}
    (sandbox.state / "task.json").write_text(json.dumps(spec))
    sandbox.environment["SANDHERD_TOOLCHAINS"] = str(TOOLCHAINS)
    assert await sandbox.run() == ExitCode.DRAINED
    events = await sandbox.events()
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    types = [event.type.removeprefix("agent.") for event in events]
    kinds = ["message", "tool_use", "tool_result", "message", "usage", "completed"]
    assert [kind for kind in types if kind in {*kinds, "failed"}] == kinds
    completed = (await sandbox.event("completed")).data
    assert (completed.cost_micro_usd, completed.output_tokens, completed.final_output) == (250_000, 4, "Done")
