"""The settings of the model that assesses soft findings of the monitor. By default there is no such model."""

from typing import Annotated, Final

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.patterns import explained
from sandherd.settings.daytona import Secret
from sandherd.settings.fields import Env

_MODEL: Final = explained(
    r"^(anthropic|openai):[A-Za-z0-9][A-Za-z0-9._:/@-]{0,127}$", "anthropic or openai, a colon, and the model's name"
)
_URL: Final = explained(r"^https?://[^\s\x00-\x1f\x7f@]+$", "a URL of http or https without a credential")


class AssessorSettings(BaseModel, defer_build=True):
    """Which model assesses soft findings, and how much it may use."""

    assessor_model: Annotated[
        Annotated[str, StringConstraints(pattern=_MODEL)] | None, Env("SANDHERD_ASSESSOR_MODEL")
    ] = None
    """The model that confirms or drops soft findings of the guardian: `anthropic:MODEL`, or `openai:MODEL`, also for
    other servers with OpenAI's API. If unset, soft findings are acted upon without confirmation, and the rule `drift`
    is not evaluated."""
    assessor_url: Annotated[Annotated[str, StringConstraints(pattern=_URL)] | None, Env("SANDHERD_ASSESSOR_URL")] = None
    """The URL of the model's API; if unset, the vendor's own."""
    assessor_key: Annotated[Secret | None, Env("SANDHERD_ASSESSOR_KEY", secret=True)] = Field(None, repr=False)
    """The key for the model's API. No sandbox gets it."""
    assessor_tokens: Annotated[int, Env("SANDHERD_ASSESSOR_TOKENS"), Field(ge=0)] = 1_000_000
    """Maximum tokens of input and output within 24 hours. Above it, findings are not assessed."""
