"""The settings of the Docker runtime."""

from typing import Annotated

from pydantic import BaseModel, StringConstraints

from sandherd.contracts.patterns import explained
from sandherd.settings.fields import Env

EngineAddress = Annotated[
    str,
    StringConstraints(
        pattern=explained(
            r"^(unix:///[^\x00-\x20\x7f]+|(tcp|http|https)://[^\x00-\x20\x7f/@?#]+:[0-9]{1,5}/?)$",
            "unix:///PATH, or tcp://, http:// or https:// with a host and a port",
        )
    ),
]
"""A Unix socket, or a host with a port."""
DockerName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$")]
"""The name of a network or a volume of an engine."""
Numbers = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}:[0-9]{1,9}$")]


Platform = Annotated[str, StringConstraints(pattern=r"^linux/[a-z0-9]{1,16}(/v[0-9]{1,2})?$")]
"""The operating system, the architecture and, if needed, its variant, as in OCI images."""


class DockerSettings(BaseModel, defer_build=True):
    """The address of the Docker Engine, and how containers are created there."""

    docker_host: Annotated[EngineAddress | None, Env("DOCKER_HOST")] = None
    """The address of the Docker Engine, unix:// or tcp://; if unset, the address that Docker's own programs use."""
    docker_network: Annotated[DockerName, Env("SANDHERD_DOCKER_NETWORK")] = "bridge"
    """The name of the containers' network, which has to reach the broker."""
    docker_user: Annotated[Numbers, Env("SANDHERD_DOCKER_USER")] = "1000:1000"
    """The uid and gid that everything in a container runs as."""
    docker_platform: Annotated[Platform | None, Env("SANDHERD_DOCKER_PLATFORM")] = None
    """The platform of the containers, such as linux/arm64, if images have several; if unset, the engine's own. The
    engine needs an emulator (binfmt) for another architecture than its own."""
    docker_read_only: Annotated[bool, Env("SANDHERD_DOCKER_READ_ONLY")] = True
    """Whether the image's folders are read-only in a container, so that agents write only to the sandbox's folders."""
