"""The settings of the network of sandboxes of the process runtime."""

from typing import Annotated

from pydantic import BaseModel

from sandherd.contracts.network import Allowed, DeniedNetwork, Endpoint, NetworkMode
from sandherd.settings.fields import Env, Names


class NetworkSettings(BaseModel):
    """What sandboxes of the process runtime can reach; profiles may override it (`network`)."""

    sandbox_network: Annotated[NetworkMode, Env("SANDHERD_SANDBOX_NETWORK")] = "internet"
    """What sandboxes can reach: `internet`: public addresses; `allow`: only those in `sandbox_allow`; `none`: only
    broker and endpoints; `host`: all that this host can, with its loopback services, and a warning for each sandbox."""
    sandbox_allow: Annotated[frozenset[Allowed], Names, Env("SANDHERD_SANDBOX_ALLOW")] = frozenset()
    """Public hosts for `allow`: names (`*.example.org`: all below it) and addresses, with or without a port, or
    networks."""
    sandbox_endpoints: Annotated[frozenset[Endpoint], Names, Env("SANDHERD_SANDBOX_ENDPOINTS")] = frozenset()
    """Further `host:port` that every sandbox can reach, also private ones and this host's own loopback: a local model,
    a database, a proxy."""
    sandbox_deny: Annotated[frozenset[DeniedNetwork], Names, Env("SANDHERD_SANDBOX_DENY")] = frozenset()
    """Public networks that no sandbox can reach, such as those of your own site."""
