"""The settings of the Daytona runtime. Variables that Daytona's own programs read, too, have the names used there."""

import ipaddress
import re
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from sandherd.settings.fields import DISK, NETWORK, Alias, Env, Names, rounded_up, schema_of, within

ApiAddress = Annotated[str, StringConstraints(pattern=r"^https?://[^\x00-\x20\x7f/@?#]+(/[^\x00-\x20\x7f@?#]*)?$")]
"""A URL with host and path, without user, password or query."""
Secret = Annotated[str, StringConstraints(max_length=8192, pattern=r"^[\x21-\x7e]+$")]  # {1,8192} takes 1 MiB
_IDENTIFIER: Final = r"^[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}$"
Identifier = Annotated[str, StringConstraints(pattern=_IDENTIFIER)]
"""The name or id of a region, a snapshot, a user or an organization at Daytona."""
DaytonaVolume = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*:/[^\x00-\x1f\x7f,:]+(:[^\x00-\x1f\x7f,:]+)?$")
]
"""A volume's id, its mount path, and optionally a folder of the volume: `id:/data` or `id:/data:part`."""


def _network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


def _snapshot(text: str) -> str:
    """The text if it may be the name of a snapshot at Daytona, else an empty text: the variable has other uses."""
    return text if re.fullmatch(_IDENTIFIER, text) else ""


_SNAPSHOT: Final = Env("SANDHERD_DAYTONA_SNAPSHOT", aliases=(Alias("SANDBOX_SNAPSHOT", _snapshot),))
_DISK_GB: Final = (1, 4096)
_DISK: Final = Env("SANDHERD_DAYTONA_DISK_GB", aliases=(Alias(DISK, lambda text: within(*_DISK_GB)(rounded_up(text))),))


class DaytonaSettings(BaseModel, defer_build=True):
    """The address and the credential of Daytona, and how sandboxes are created there."""

    daytona_api_key: Annotated[Secret | None, Env("DAYTONA_API_KEY", secret=True)] = Field(default=None, repr=False)
    """The key for Daytona's API."""
    daytona_jwt_token: Annotated[Secret | None, Env("DAYTONA_JWT_TOKEN", secret=True)] = Field(default=None, repr=False)
    """A token in place of a key; `daytona_organization_id` has to be set, too."""
    daytona_organization_id: Annotated[Identifier | None, Env("DAYTONA_ORGANIZATION_ID")] = None
    """The organization that the token is used for."""
    daytona_api_url: Annotated[ApiAddress | None, Env("DAYTONA_API_URL")] = None
    """The URL of Daytona's API; if unset, the URL of Daytona's own service."""
    daytona_target: Annotated[Identifier | None, Env("DAYTONA_TARGET")] = None
    """The region of sandboxes; if unset, the organization's default."""
    daytona_snapshot: Annotated[Identifier | None, _SNAPSHOT] = None
    """The snapshot of sandboxes that name neither a snapshot nor an image; if unset, one is built of SANDBOX_IMAGE."""
    daytona_user: Annotated[Identifier | None, Env("SANDHERD_DAYTONA_USER")] = None
    """The user that everything in a sandbox runs as; if unset, the user of the snapshot or image."""
    daytona_cpu: Annotated[int | None, Env("SANDHERD_DAYTONA_CPU"), Field(ge=1, le=256)] = None
    """The number of cores of a sandbox that is created from an image. A snapshot has its own number."""
    daytona_disk_gb: Annotated[int | None, _DISK, Field(ge=_DISK_GB[0], le=_DISK_GB[1])] = None
    """The disk size of a sandbox that is created from an image, in GB. Its memory is set by its limits."""
    daytona_auto_stop: Annotated[int, Env("SANDHERD_DAYTONA_AUTO_STOP"), Field(ge=0)] = 0
    """After how many minutes without a request to it Daytona stops a sandbox, even if its agent is active. 0: never."""
    daytona_auto_archive: Annotated[int | None, Env("SANDHERD_DAYTONA_AUTO_ARCHIVE"), Field(ge=0)] = None
    """After how many minutes Daytona archives a stopped sandbox; 0: as late as possible; if unset, its default."""
    daytona_auto_delete: Annotated[int | None, Env("SANDHERD_DAYTONA_AUTO_DELETE"), Field(ge=1)] = None
    """After how many minutes Daytona deletes a stopped sandbox, even a retained one; if unset, never."""
    daytona_ephemeral: Annotated[bool, Env("SANDHERD_DAYTONA_EPHEMERAL")] = False
    """Whether Daytona deletes a sandbox as soon as it is stopped. If so, Sandherd ends only the program in a sandbox,
    and stops the sandbox only if that fails."""
    daytona_block_network: Annotated[bool, Env("SANDHERD_DAYTONA_BLOCK_NETWORK")] = False
    """Whether sandboxes have no network. They need the broker, so Daytona has to be configured to allow that."""
    daytona_allowed_networks: Annotated[
        frozenset[Annotated[str, AfterValidator(_network), schema_of(NETWORK)]],
        Names,
        Env("SANDHERD_DAYTONA_ALLOWED_NETWORKS"),
    ] = frozenset()
    """The only networks that a sandbox can reach, such as 10.1.2.0/24, including that of the broker; if unset, all."""
    daytona_volumes: Annotated[frozenset[DaytonaVolume], Names, Env("SANDHERD_DAYTONA_VOLUMES")] = frozenset()
    """Daytona volumes that are mounted in every sandbox: `id:/path`, or `id:/path:folder` to mount only this folder of
    the volume."""
    daytona_patience: Annotated[float, Env("SANDHERD_DAYTONA_PATIENCE"), Field(ge=1, le=3600)] = 120
    """How long Daytona may take to create, start, stop or remove a sandbox. Building an image takes minutes."""
    daytona_look_interval: Annotated[float, Env("SANDHERD_DAYTONA_LOOK_INTERVAL"), Field(ge=0.05, le=600)] = 5
    """The interval of the checks whether a sandbox's program has ended, because Daytona does not report it."""
