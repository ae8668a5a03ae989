"""What a deployment is set up with, for whoever does it: streams, consumers and buckets, and the accounts' tokens."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import ServiceUnavailableError

from sandherd.bus.connection import Bus, BusError, Identity
from sandherd.bus.identity.deployment import CREDENTIALS
from sandherd.bus.identity.material import CLAIMS_CREDENTIALS
from sandherd.bus.identity.material import Identity as Material
from sandherd.bus.identity.revoking import RevocationFailedError, give_token, system_line
from sandherd.bus.provision import Done, ProvisionError, provision
from sandherd.bus.setting_up import INBOX, PROVISIONER
from sandherd.client.context import Context, holder
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code
from sandherd.contracts.names import UnsafeNameError

PUSHED: Final = ("herd", "people")
"""The sandboxes' account is the spawner's to give: its token says who was revoked."""
_LOOK_AGAIN: Final = 0.5
_REMEDY: Final = "see that the broker runs at NATS_URL, was started with this identity, and SANDHERD_CREDENTIALS fits"


async def set_up(context: Context, replicas: int | None, patience: float) -> list[Done]:
    """Make and change on the broker what is declared. Raises `HerdError`."""
    voice = Identity.file(_provisioners(context.credentials))
    try:
        async with Bus.open(context.nats_url, name=PROVISIONER, identity=voice, inbox=INBOX, patience=patience) as bus:
            return await _patiently(bus, replicas, patience)
    except ProvisionError as error:
        raise HerdError.of(Code.REFUSED, str(error)) from None
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(Code.UNAVAILABLE, _said(error), remedy=_REMEDY) from None


async def _patiently(bus: Bus, replicas: int | None, patience: float) -> list[Done]:
    """Servers that have just been started may have no leader yet."""
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await provision(bus.js, replicas)
        except (ServiceUnavailableError, nats.errors.Error, TimeoutError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_LOOK_AGAIN)


def _provisioners(credentials: Path | None) -> Path:
    if credentials is not None and holder(credentials).name == PROVISIONER:
        return credentials
    told = f"{credentials} is not the provisioner's credential" if credentials else "no credential is given"
    raise HerdError.of(
        Code.REFUSED,
        told,
        field="credentials",
        remedy=f"set SANDHERD_CREDENTIALS to creds/{PROVISIONER}/{CREDENTIALS}, which `sandherd identity init` makes",
    )


@contextmanager
def making(directory: Path) -> Iterator[None]:
    """What may go wrong while a deployment's folder is made, as what a caller expects. Raises `HerdError`."""
    try:
        yield
    except OSError as error:
        raise HerdError.of(
            Code.REFUSED, f"{directory} can't be used: {error}", remedy="name a folder that is yours alone"
        ) from None
    except UnsafeNameError as error:
        raise HerdError.of(Code.UNSAFE_NAME, str(error), field="project") from None
    except ValueError as error:
        raise HerdError.of(
            Code.REFUSED, f"{directory} holds a broken key: {error}", remedy="bring it back from its backup"
        ) from None


async def push_accounts(url: str, directory: Path, patience: float) -> list[str]:
    """Give a running broker the accounts of an identity as they are now. Returns their names. Raises `HerdError`."""
    material = Material(directory / "identity")
    try:
        tokens = {name: (material.broker / f"{name}.jwt").read_text() for name in PUSHED}
        async with system_line(url, material.spawner / CLAIMS_CREDENTIALS, patience) as system:
            for token in tokens.values():
                await give_token(system, token)
    except OSError as error:
        raise HerdError.of(
            Code.NOT_FOUND, f"{directory} is no identity: {error}", remedy="make it with `sandherd identity init`"
        ) from None
    except RevocationFailedError as error:
        raise HerdError.of(Code.REFUSED, str(error)) from None
    except (BusError, nats.errors.Error, TimeoutError) as error:
        raise NotReachedError.of(Code.UNAVAILABLE, _said(error), remedy=_REMEDY) from None
    return list(tokens)


def _said(error: Exception) -> str:
    return str(error) or repr(error)
