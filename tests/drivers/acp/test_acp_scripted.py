"""The scripted agent's handwritten messages conform to the protocol's library."""

import asyncio
import json
from pathlib import Path

HOLDING = Path(__file__).parent / "holding_to_models.py"


async def test_scripted_agent_conforms_to_protocol_models(python: Path) -> None:
    """Each kind of message of the scripted agent fits the library's model of it, without unknown fields."""
    holding = await asyncio.create_subprocess_exec(
        python, HOLDING, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, complaints = await holding.communicate()
    assert holding.returncode == 0, complaints.decode()
    updates = {"agent_message_chunk", "agent_thought_chunk", "plan", "tool_call", "tool_call_update", "usage_update"}
    requested = {"session/request_permission", "fs/read_text_file", "fs/write_text_file"}
    answers = {"initialize", "session/new", "session/load", "session/fork", "session/prompt"}
    assert set(json.loads(out)) == {*updates, "user_message_chunk", *requested, *answers}
