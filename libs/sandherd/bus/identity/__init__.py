"""Who may speak: keys, tokens and credentials of a herd, in NATS's operator mode."""

from sandherd.bus.identity.credentials import Bearer, bearer, credentials_text, write_secret
from sandherd.bus.identity.keys import Key, Kind
from sandherd.bus.identity.material import BrokerTokens, Identity, SpawnerKeys
from sandherd.bus.identity.minting import Minter, Registrar

__all__ = [
    "Bearer",
    "BrokerTokens",
    "Identity",
    "Key",
    "Kind",
    "Minter",
    "Registrar",
    "SpawnerKeys",
    "bearer",
    "credentials_text",
    "write_secret",
]
