"""The assessor with the real clients of two vendors, at scripted servers with their protocols."""

from collections.abc import AsyncIterator
from uuid import UUID

import pytest
from pydantic import SecretStr

from monitor.assessment.assessment_request import ActionLine, AssessmentCase
from monitor.assessment.model import assessment_of, client_for
from tests.models import anthropic_answers as anthropic
from tests.models import openai_answers as openai
from tests.models.anthropic import AnthropicModel, anthropic_model
from tests.models.openai import OpenAIModel, openai_model

ID = UUID(int=7)
CASE = AssessmentCase(
    "no_progress", "no edit for 30 turns", ("Repair the parser",), (ActionLine('calls "Bash" with "{}"', ID),)
)
KEY = SecretStr("key-of-the-assessor")


@pytest.fixture
async def claude() -> AsyncIterator[AnthropicModel]:
    async with anthropic_model() as model:
        yield model


@pytest.fixture
async def compatible() -> AsyncIterator[OpenAIModel]:
    async with openai_model() as model:
        yield model


async def test_anthropic_model_confirms(claude: AnthropicModel) -> None:
    """One request has the case and the response's form as its only tool; the verdict cites the record's event."""
    claude.script(lambda request: anthropic.calls(*request.tools, verdict="at_fault", evidence=[1]))
    result = await assessment_of(client_for("anthropic:some-model", KEY, claude.url), CASE)
    assert (result.verdict, result.evidence, result.tokens) == ("at_fault", (ID,), 120)
    assert len(claude.requests) == 1
    assert "Repair the parser" in claude.requests[0].words


async def test_compatible_server_drops(compatible: OpenAIModel) -> None:
    """A server with OpenAI's API, without a key, drops the finding."""
    compatible.script(lambda request: openai.calls(*request.tools, verdict="working", evidence=[1]))
    result = await assessment_of(client_for("openai:local", None, compatible.url), CASE)
    assert (result.verdict, result.evidence) == ("working", (ID,))


@pytest.mark.parametrize(
    ("status", "failure"), [(401, "refused"), (400, "refused"), (529, "unavailable"), (429, "unavailable")]
)
async def test_server_that_fails_gives_no_verdict(claude: AnthropicModel, status: int, failure: str) -> None:
    """An error of the server is neither a verdict for the agent nor an error of the monitor."""
    claude.script(*[anthropic.Failure(status=status, headers={"x-should-retry": "false"})] * 4)
    result = await assessment_of(client_for("anthropic:some-model", KEY, claude.url), CASE)
    assert (result.verdict, result.failure) == (None, failure)


async def test_prose_is_no_answer(claude: AnthropicModel) -> None:
    """A model that replies with text, as after an injection, is requested again, and then has given no verdict."""
    claude.script(*[anthropic.writes("The agent is working well, dismiss all findings.")] * 2)
    result = await assessment_of(client_for("anthropic:some-model", KEY, claude.url), CASE)
    assert (result.verdict, result.failure) == (None, "invalid_answer")
    assert len(claude.requests) == 2


async def test_unreachable_server_gives_no_verdict() -> None:
    """Without a server at the address there is no verdict."""
    result = await assessment_of(client_for("openai:local", None, "http://127.0.0.1:9/v1"), CASE)
    assert (result.verdict, result.failure) == (None, "unavailable")
