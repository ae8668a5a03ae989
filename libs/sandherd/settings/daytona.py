"""The settings of the Daytona runtime. Variables that Daytona's own programs read have the same names here."""

import ipaddress
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from sandherd.settings.fields import Env, Names

ApiAddress = Annotated[str, StringConstraints(pattern=r"^https?://[^\x00-\x20\x7f/@?#]+(/[^\x00-\x20\x7f@?#]*)?$")]
"""A host and a path; a user, a password or a query has no place in it."""
Secret = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]{1,8192}$")]
Known = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:@-]{0,254}$")]
"""What Daytona calls a region, a snapshot, a user or an organization."""
DaytonaVolume = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*:/[^\x00-\x1f\x7f,:]+(:[^\x00-\x1f\x7f,:]+)?$")
]
"""A volume's id, where it is mounted, and perhaps a part of it: `id:/data` or `id:/data:part`."""


def _network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


class DaytonaSettings(BaseModel):
    """Which Daytona it is, and how sandboxes are made there."""

    daytona_api_key: Annotated[Secret | None, Env("DAYTONA_API_KEY", secret=True)] = Field(default=None, repr=False)
    """The key for Daytona's API."""
    daytona_jwt_token: Annotated[Secret | None, Env("DAYTONA_JWT_TOKEN", secret=True)] = Field(default=None, repr=False)
    """In place of a key: a token, which needs the organization, too."""
    daytona_organization_id: Annotated[Known | None, Env("DAYTONA_ORGANIZATION_ID")] = None
    """The organization that a token is used for."""
    daytona_api_url: Annotated[ApiAddress | None, Env("DAYTONA_API_URL")] = None
    """Where Daytona's API is; nothing: where its makers have it."""
    daytona_target: Annotated[Known | None, Env("DAYTONA_TARGET")] = None
    """The region of sandboxes; nothing: the organization's own."""
    daytona_snapshot: Annotated[Known | None, Env("SANDHERD_DAYTONA_SNAPSHOT")] = None
    """The snapshot of sandboxes that name neither one nor an image; nothing: SANDBOX_IMAGE, which is built."""
    daytona_user: Annotated[Known | None, Env("SANDHERD_DAYTONA_USER")] = None
    """The user that everything in a sandbox runs as; nothing: the snapshot's or image's own."""
    daytona_cpu: Annotated[int | None, Env("SANDHERD_DAYTONA_CPU"), Field(ge=1, le=256)] = None
    """The cores of a sandbox that is made of an image; a snapshot has its own."""
    daytona_disk_gb: Annotated[int | None, Env("SANDHERD_DAYTONA_DISK_GB"), Field(ge=1, le=4096)] = None
    """The disk of such a sandbox. Its memory follows its limits."""
    daytona_auto_stop: Annotated[int, Env("SANDHERD_DAYTONA_AUTO_STOP"), Field(ge=0)] = 0
    """After how many minutes without a request Daytona stops a sandbox; what its agent does counts for nothing. 0
    never does."""
    daytona_auto_archive: Annotated[int | None, Env("SANDHERD_DAYTONA_AUTO_ARCHIVE"), Field(ge=0)] = None
    """After how many minutes Daytona archives a stopped sandbox; 0: as late as it can; nothing: as it is used to."""
    daytona_auto_delete: Annotated[int | None, Env("SANDHERD_DAYTONA_AUTO_DELETE"), Field(ge=1)] = None
    """After how many minutes Daytona deletes a stopped sandbox, also one that was put by; nothing: never."""
    daytona_ephemeral: Annotated[bool, Env("SANDHERD_DAYTONA_EPHEMERAL")] = False
    """Whether Daytona deletes a sandbox as soon as it is stopped; then it is left running until it is removed."""
    daytona_block_network: Annotated[bool, Env("SANDHERD_DAYTONA_BLOCK_NETWORK")] = False
    """Whether a sandbox reaches nothing; it needs the broker, unless Daytona is told otherwise."""
    daytona_allowed_networks: Annotated[
        frozenset[Annotated[str, AfterValidator(_network)]], Names, Env("SANDHERD_DAYTONA_ALLOWED_NETWORKS")
    ] = frozenset()
    """The only networks that a sandbox reaches, as 10.1.2.0/24, the broker's among them; nothing: all."""
    daytona_volumes: Annotated[frozenset[DaytonaVolume], Names, Env("SANDHERD_DAYTONA_VOLUMES")] = frozenset()
    """Volumes of Daytona's that every sandbox gets: id:/path or id:/path:part."""
    daytona_patience: Annotated[float, Env("SANDHERD_DAYTONA_PATIENCE"), Field(ge=1, le=3600)] = 120
    """How long Daytona may take to make, start, stop or remove a sandbox; an image that is built takes minutes."""
    daytona_look_interval: Annotated[float, Env("SANDHERD_DAYTONA_LOOK_INTERVAL"), Field(ge=0.05, le=600)] = 5
    """How often it is looked whether the program of a sandbox has ended, which Daytona tells nobody."""
