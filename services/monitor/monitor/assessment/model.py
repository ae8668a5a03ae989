"""Queries the configured model. pydantic-ai and the vendors' clients are imported only here, when they are needed."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from monitor.assessment.assessment_request import INSTRUCTIONS, AssessmentCase
from monitor.assessment.model_reply import Assessment, ModelAnswer, validated_assessment
from sandherd.contracts.events.monitor import AssessmentFailure

if TYPE_CHECKING:
    from pydantic_ai.models import Model

TIMEOUT: Final = 30.0
"""Seconds that a model has for its answer."""
MAX_OUTPUT_TOKENS: Final = 300
_TOO_MANY_REQUESTS: Final = 429


class AssessorMissingError(Exception):
    """A model is configured, but its client packages are not installed. The message states how to install them."""


def client_for(name: str, key: SecretStr | None, base_url: str | None) -> "Model[Any]":
    """A client for a model name such as `anthropic:MODEL`. `openai:` also works for compatible servers at `base_url`.

    Raises `AssessorMissingError`.
    """
    provider, _, model = name.partition(":")
    secret = key.get_secret_value() if key is not None else "none"  # compatible servers often want no key
    try:
        if provider == "anthropic":
            from pydantic_ai.models.anthropic import AnthropicModel
            from pydantic_ai.providers.anthropic import AnthropicProvider

            return AnthropicModel(model, provider=AnthropicProvider(api_key=secret, base_url=base_url))
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        return OpenAIChatModel(model, provider=OpenAIProvider(api_key=secret, base_url=base_url))
    except ImportError as error:
        raise AssessorMissingError("the assessor is not installed: install sandherd-monitor[assessor]") from error


async def assessment_of(model: "Model[Any]", case: AssessmentCase) -> Assessment:
    """The model's assessment of a case.

    Any failure results in an assessment without a verdict. It does not prevent an intervention, unless the rule
    requires a verdict.
    """
    from pydantic_ai import Agent, UsageLimits

    agent = Agent(model, output_type=ModelAnswer, instructions=INSTRUCTIONS, retries=1)
    limits = UsageLimits(request_limit=2)
    try:
        async with asyncio.timeout(TIMEOUT), model:  # assessments are rare, so each uses a new connection
            result = await agent.run(
                case.prompt(), usage_limits=limits, model_settings={"max_tokens": MAX_OUTPUT_TOKENS, "temperature": 0.0}
            )
    except Exception as error:  # noqa: BLE001  # the clients of vendors raise errors of many kinds; each means no verdict
        return Assessment(None, failure=failure_of(error))
    return validated_assessment(result.output, case, result.usage.total_tokens)


def failure_of(error: Exception) -> AssessmentFailure:
    """The reason for which there is no reply of the model, by the class of the exception."""
    from pydantic_ai.exceptions import ModelHTTPError, UnexpectedModelBehavior, UsageLimitExceeded

    if isinstance(error, TimeoutError):
        return "timed_out"
    if isinstance(error, UnexpectedModelBehavior | UsageLimitExceeded):
        return "invalid_answer"
    if isinstance(error, ModelHTTPError) and 400 <= error.status_code < 500 and error.status_code != _TOO_MANY_REQUESTS:
        return "refused"
    return "unavailable"
