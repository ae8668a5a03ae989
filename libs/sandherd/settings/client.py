"""The settings of a client. A client loads no other settings, unless a settings file has to be validated."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sandherd.contracts.names import SafeName
from sandherd.settings.fields import AnyBrokerAddress, Env


def default_home() -> Path:
    """The default folder of the local stack, by the XDG base directory specification."""
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "sandherd"


class ClientSettings(BaseModel, defer_build=True):
    """The broker, the credential, and the folders of the local stack."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    nats_url: Annotated[AnyBrokerAddress, Env("NATS_URL")] = "nats://127.0.0.1:4222"
    """The URL of the broker; several servers are separated by commas."""
    credentials: Annotated[Path | None, Env("SANDHERD_CREDENTIALS")] = None
    """The file with this component's NATS credential."""
    project: Annotated[SafeName, Env("SANDHERD_PROJECT")] = "default"
    """The project that tasks are submitted to."""
    home: Annotated[Path, Env("SANDHERD_HOME")] = Field(default_factory=default_home)
    """The folder of the local stack and of the process runtime."""
    toolchains: Annotated[Path | None, Env("SANDHERD_TOOLCHAINS")] = None
    """The folder that `sandherd harness install` writes agents' SDKs to; if unset, `toolchains` in the home."""

    @property
    def toolchain_dir(self) -> Path:
        """The folder of agents' SDKs."""
        return (self.toolchains or self.home / "toolchains").resolve()


def variables_of(model: type[BaseModel]) -> dict[str, Env]:
    """The environment variable of each setting in a class of settings."""
    fields = model.model_fields.items()
    return {name: next(item for item in field.metadata if isinstance(item, Env)) for name, field in fields}
