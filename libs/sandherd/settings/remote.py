"""The settings of the remote runtime: OpenHands' Runtime API, under the names that OpenHands itself reads."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from sandherd.settings.fields import Env, Positive

ApiAddress = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@?#/]+(/[^\s@?#]*)?$")]
"""Without a user, a password or a query: it may stand in a log."""
ApiKey = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$")]
"""What a header can hold."""
FACTORS: Final = (1, 2, 4, 8)
"""The sizes that a runtime can have."""


def _factor(number: int) -> int:
    if number not in FACTORS:
        raise ValueError("it has to be 1, 2, 4 or 8")
    return number


class RemoteSettings(BaseModel):
    """Where the Runtime API is, and how runtimes are made there."""

    remote_api_url: Annotated[ApiAddress | None, Env("SANDBOX_REMOTE_RUNTIME_API_URL")] = None
    """Where the Runtime API is."""
    remote_api_key: Annotated[ApiKey | None, Env("SANDBOX_API_KEY", secret=True)] = Field(None, repr=False)
    """The key of its account, which goes along as X-API-Key."""
    remote_resource_factor: Annotated[int, Env("SANDBOX_REMOTE_RUNTIME_RESOURCE_FACTOR"), AfterValidator(_factor)] = 1
    """The least size of a runtime; one that is asked for more memory becomes larger, up to 8."""
    remote_factor_memory_gb: Annotated[Positive, Env("SANDHERD_REMOTE_FACTOR_MEMORY_GB")] = 4
    """How much memory there is for each step of that size, which the Runtime API does not say."""
    remote_runtime_class: Annotated[Literal["sysbox", "gvisor"] | None, Env("SANDBOX_REMOTE_RUNTIME_CLASS")] = None
    """How a runtime is isolated; nothing: as the Runtime API does by itself."""
    remote_command: Annotated[str, Env("SANDHERD_REMOTE_COMMAND"), Field(min_length=1)] = (
        "/usr/local/bin/openhands-agent-server --port 60000"
    )
    """What starts the OpenHands agent server in the image: through it files and the worker get there."""
    remote_keep_alive: Annotated[bool, Env("SANDBOX_KEEP_RUNTIME_ALIVE")] = True
    """Whether a runtime goes on that is set aside for a person, because its sandbox could not say everything."""
    remote_pause_on_close: Annotated[bool, Env("SANDBOX_PAUSE_CLOSED_RUNTIMES")] = False
    """Whether it is paused instead, where it isn't kept alive; one of the two has to be."""
    remote_init_timeout: Annotated[Positive, Env("SANDBOX_REMOTE_RUNTIME_INIT_TIMEOUT")] = 300
    """How long a runtime may take until its agent server answers."""
    remote_api_timeout: Annotated[Positive, Env("SANDBOX_REMOTE_RUNTIME_API_TIMEOUT")] = 60
    """How long a single answer of the Runtime API or of an agent server may take."""
