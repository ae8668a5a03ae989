"""The kind `echo`: its options, what its agents can do, and its driver."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from sandherd.contracts.harness_kinds import HarnessCapabilities, HarnessKind


class EchoHarness(BaseModel):
    """An agent that repeats its task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["echo"]
    times: Annotated[int, Field(ge=1, le=100)] = 1
    """How often it publishes its task."""


ECHO: Final = HarnessKind(
    options=EchoHarness,
    capabilities=HarnessCapabilities(
        accepts_messages_mid_turn=False,
        interruptible=False,
        accepts_follow_ups=False,
        stores_session=False,
        requests_approvals=False,
        accepts_tools=False,
    ),
    driver="acme_echo.driver",
)
