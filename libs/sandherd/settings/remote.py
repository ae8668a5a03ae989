"""The settings of the remote runtime, which uses OpenHands' Runtime API. Most variables have OpenHands' own names."""

from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, Field, StringConstraints, WithJsonSchema

from sandherd.settings.fields import Env, Positive

ApiAddress = Annotated[str, StringConstraints(pattern=r"^https?://[^\s@?#/]+(/[^\s@?#]*)?$")]
"""A URL without user, password or query, so that it may be logged."""
ApiKey = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]+$")]
"""A value that is valid in an HTTP header."""
FACTORS: Final = (1, 2, 4, 8)
"""The sizes that a runtime may have (the API's resource factors)."""


_FACTORS_SCHEMA: Final = WithJsonSchema({"type": "integer", "enum": list(FACTORS)})


def _factor(number: int) -> int:
    if number not in FACTORS:
        raise ValueError("it has to be 1, 2, 4 or 8")
    return number


class RemoteSettings(BaseModel, defer_build=True):
    """The address of the Runtime API, and how runtimes are created there."""

    remote_api_url: Annotated[ApiAddress | None, Env("SANDBOX_REMOTE_RUNTIME_API_URL")] = None
    """The URL of the Runtime API."""
    remote_api_key: Annotated[ApiKey | None, Env("SANDBOX_API_KEY", secret=True)] = Field(None, repr=False)
    """The key of the account at the Runtime API, sent as X-API-Key."""
    remote_resource_factor: Annotated[
        int, Env("SANDBOX_REMOTE_RUNTIME_RESOURCE_FACTOR"), AfterValidator(_factor), _FACTORS_SCHEMA
    ] = 1
    """Minimum size of a runtime. A sandbox with a higher memory limit gets a larger one, up to 8."""
    remote_factor_memory_gb: Annotated[Positive, Env("SANDHERD_REMOTE_FACTOR_MEMORY_GB")] = 4
    """The memory of a runtime of size 1, in GB. The Runtime API does not report it."""
    remote_runtime_class: Annotated[Literal["sysbox", "gvisor"] | None, Env("SANDBOX_REMOTE_RUNTIME_CLASS")] = None
    """How a runtime is isolated; if unset, the Runtime API's default."""
    remote_command: Annotated[str, Env("SANDHERD_REMOTE_COMMAND"), Field(min_length=1)] = (
        "/usr/local/bin/openhands-agent-server --port 60000"
    )
    """The command that starts the OpenHands agent server in the image, by which files and the worker are uploaded."""
    remote_keep_alive: Annotated[bool, Env("SANDBOX_KEEP_RUNTIME_ALIVE")] = True
    """Whether a runtime that is retained because its sandbox ended with undelivered events keeps running."""
    remote_pause_on_close: Annotated[bool, Env("SANDBOX_PAUSE_CLOSED_RUNTIMES")] = False
    """Whether a retained runtime is paused if `remote_keep_alive` is false. One of the two has to be true."""
    remote_init_timeout: Annotated[Positive, Env("SANDBOX_REMOTE_RUNTIME_INIT_TIMEOUT")] = 300
    """How long a runtime may take until its agent server responds."""
    remote_api_timeout: Annotated[Positive, Env("SANDBOX_REMOTE_RUNTIME_API_TIMEOUT")] = 60
    """Timeout of each request to the Runtime API and to agent servers."""
