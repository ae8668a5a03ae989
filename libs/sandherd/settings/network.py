"""The settings of the network of sandboxes of the process runtime."""

from typing import Annotated

from pydantic import BaseModel

from sandherd.contracts.network import Allowed, DeniedNetwork, Endpoint, NetworkMode
from sandherd.settings.fields import Env, Names


class NetworkSettings(BaseModel, defer_build=True):
    """The destinations that sandboxes of the process runtime can reach. Profiles may override them (`network`)."""

    sandbox_network: Annotated[NetworkMode, Env("SANDHERD_SANDBOX_NETWORK")] = "internet"
    """What sandboxes can reach beside the broker and `sandbox_endpoints`: with `internet` public addresses, with
    `allow` only those in `sandbox_allow`, with `none` nothing. With `host` they can reach all that this host can, also
    services on its loopback, and there is a warning for each sandbox."""
    sandbox_allow: Annotated[frozenset[Allowed], Names, Env("SANDHERD_SANDBOX_ALLOW")] = frozenset()
    """The public hosts that `allow` permits: names (`*.example.org` means all below it) or addresses, with or without a
    port, and networks."""
    sandbox_endpoints: Annotated[frozenset[Endpoint], Names, Env("SANDHERD_SANDBOX_ENDPOINTS")] = frozenset()
    """Further endpoints, as `host:port`, that every sandbox can reach, such as a local model, a database or a proxy.
    They may be private or on this host's own loopback."""
    sandbox_deny: Annotated[frozenset[DeniedNetwork], Names, Env("SANDHERD_SANDBOX_DENY")] = frozenset()
    """Public networks that no sandbox can reach, such as those of your own site."""
