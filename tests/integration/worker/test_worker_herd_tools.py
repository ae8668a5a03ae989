"""A whole worker whose agent uses the herd's tools: real SDKs and programs, and scripted models."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from sandherd.contracts.inbox_messages import ApprovalAnswer
from sandherd.contracts.principals import Principal
from sandherd_worker.worker_exit import ExitCode
from tests.drivers.toolchains import TOOLCHAINS, interpreter
from tests.integration.worker.test_worker_agents import letter
from tests.models import anthropic_answers, openai_answers
from tests.models.anthropic import anthropic_model
from tests.models.openai import openai_model

pytestmark = pytest.mark.agents


@dataclass
class Kind:
    """A kind of agent with its model, and the way in which it calls the herd's tools."""

    kind: str
    model: Any
    answers: Any
    env: dict[str, str]
    prefix: str


@asynccontextmanager
async def of_kind(kind: str) -> AsyncIterator[Kind]:
    if kind == "claude":
        async with anthropic_model() as claude:
            env = {"ANTHROPIC_BASE_URL": claude.url, "ANTHROPIC_API_KEY": "sk-ant-scripted"}
            yield Kind(kind, claude, anthropic_answers, env, "mcp__sandherd__")
    else:
        async with openai_model() as model:
            env = {"LLM_MODEL": "openai/scripted", "LLM_BASE_URL": model.url, "LLM_API_KEY": "sk-scripted"}
            yield Kind(kind, model, openai_answers, env, "")


@pytest.mark.parametrize("kind", ["claude", pytest.param("openhands", marks=pytest.mark.long)])
async def test_agent_messages_another_and_asks_a_user(sandbox: Any, herd: Any, kind: str) -> None:
    """The message to another agent is an event for the relay; the model receives the user's reply to its question."""
    interpreter(kind)
    async with of_kind(kind) as agent:
        calls, writes = agent.answers.calls, agent.answers.writes
        agent.model.script(
            calls(f"{agent.prefix}send_message", recipient="sbx-2", content="binomial.py is mine"),
            calls(f"{agent.prefix}ask_human", question="tabs or spaces?"),
            writes("so be it"),
        )
        spec = {
            "text": "begin",
            "harness": {"kind": kind, "approvals": {"tools": {f"{agent.prefix}send_message": "allow"}}},
            "env": {**agent.env, "DISABLE_TELEMETRY": "1"},
        }
        (sandbox.state / "task.json").write_text(json.dumps(spec))
        sandbox.environment["SANDHERD_TOOLCHAINS"] = str(TOOLCHAINS)
        await sandbox.start()
        requested = (await sandbox.event("approval_requested")).data
        content = ApprovalAnswer(approval_id=requested.approval_id, granted=True, reason="four spaces")
        async with herd.bus(Principal.MESSAGE_RELAY) as relay:
            receipt = await sandbox.deliver(relay, letter("msg-1", content.model_dump_json(), "approval"))
        assert receipt.outcome == "acknowledged"
        assert await sandbox.ended() == ExitCode.DRAINED
        shown = agent.model.requests[-1].words
    sent = (await sandbox.event("message_sent")).data
    assert (sent.recipient, sent.content) == ("sbx-2", "binomial.py is mine")
    assert (requested.tool, requested.reason) == ("ask_human", "tabs or spaces?")
    assert "four spaces" in shown
    assert sent.message_id in shown
    assert [event.type for event in await sandbox.events("completed", "failed")] == ["agent.completed"]
