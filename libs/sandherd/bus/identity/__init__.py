"""Keys, tokens and credentials of a herd, in NATS's operator mode.

The exported names are imported on first use: a client only reads its credential, and needs few of the modules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.bus.identity.credentials import Bearer, bearer, credentials_text, write_secret
    from sandherd.bus.identity.keys import Key, KeyKind
    from sandherd.bus.identity.material import BrokerTokens, HerdIdentity, SpawnerKeys
    from sandherd.bus.identity.minter import Minter, Registrar

__all__ = [
    "Bearer",
    "BrokerTokens",
    "HerdIdentity",
    "Key",
    "KeyKind",
    "Minter",
    "Registrar",
    "SpawnerKeys",
    "bearer",
    "credentials_text",
    "write_secret",
]

_NAMES: Final = {
    "credentials": "Bearer bearer credentials_text write_secret",
    "keys": "Key KeyKind",
    "material": "BrokerTokens HerdIdentity SpawnerKeys",
    "minter": "Minter Registrar",
}
_HOMES: Final = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
