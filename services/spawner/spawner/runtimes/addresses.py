"""Where a port of a sandbox is reached from outside. The same at every runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Address:
    """A port of a sandbox, for whoever may reach it. There is no secret in its URL."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What every request has to carry beside what the server itself wants to be shown. A secret, where there is any:
    it is for whoever has asked for it, and for no log, event or error."""
