"""The settings of the Docker runtime."""

from typing import Annotated

from pydantic import BaseModel, StringConstraints

from sandherd.settings.fields import Env

EngineAddress = Annotated[
    str,
    StringConstraints(pattern=r"^(unix:///[^\x00-\x20\x7f]+|(tcp|http|https)://[^\x00-\x20\x7f/@?#]+:[0-9]{1,5}/?)$"),
]
"""A socket, or a host with its port."""
DockerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
"""What an engine calls a network or a volume."""
Numbers = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}:[0-9]{1,9}$")]


class DockerSettings(BaseModel):
    """Where the engine is, and how containers are made there."""

    docker_host: Annotated[EngineAddress | None, Env("DOCKER_HOST")] = None
    """Where the Docker Engine is, unix:// or tcp://; nothing: where its own programs look for it."""
    docker_network: Annotated[DockerName, Env("SANDHERD_DOCKER_NETWORK")] = "bridge"
    """The network of a container, by name; it has to reach the broker from there."""
    docker_user: Annotated[Numbers, Env("SANDHERD_DOCKER_USER")] = "1000:1000"
    """The user and the group, by number, that everything in a container runs as."""
    docker_read_only: Annotated[bool, Env("SANDHERD_DOCKER_READ_ONLY")] = True
    """Whether a container may write to its own folders only, and not to its image's."""
