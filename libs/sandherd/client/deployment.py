"""What a deployment is set up with, for whoever does it: streams, consumers and buckets, and the accounts' tokens."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import nats.errors
from nats.js.errors import Error as JetStreamError
from nats.js.errors import ServiceUnavailableError

from sandherd.bus.api_subjects import API, API_FROM_OUTSIDE
from sandherd.bus.connection import Bus, BusError, Identity
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.deployment import CREDENTIALS
from sandherd.bus.identity.keys import read_claims
from sandherd.bus.identity.material import CLAIMS_CREDENTIALS, PUSHED
from sandherd.bus.identity.material import Identity as Material
from sandherd.bus.identity.minting import Registrar
from sandherd.bus.identity.revoking import RevocationFailedError, give_token, system_line
from sandherd.bus.provision import Done, ProvisionError, create_missing, provision
from sandherd.bus.setup_permissions import INBOX, PROVISIONER
from sandherd.client.context import Context, holder
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code
from sandherd.contracts.names import UnsafeNameError

_LOOK_AGAIN: Final = 0.5
_CHANGE: Final = f"{API}.STREAM.UPDATE.EVENTS"
"""Only a credential that may change streams may publish this."""
_REMEDY: Final = "see that the broker runs at NATS_URL, was started with this identity, and SANDHERD_CREDENTIALS fits"


@dataclass(frozen=True)
class Access:
    """A provisioner's credential, and whether it may change what exists."""

    identity: Identity
    changes: bool


async def set_up(context: Context, access: Access, replicas: int | None, patience: float) -> list[Done]:
    """Create on the broker what is declared, and change it where `access` allows that. Raises `HerdError`."""
    api = API if access.changes else API_FROM_OUTSIDE
    run = provision if access.changes else create_missing
    try:
        async with Bus.open(
            context.nats_url, name=PROVISIONER, identity=access.identity, inbox=INBOX, patience=patience, api=api
        ) as bus:
            return await _patiently(lambda: run(bus.js, replicas), patience)
    except ProvisionError as error:
        raise HerdError.of(Code.REFUSED, str(error)) from None
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(Code.UNAVAILABLE, _said(error), remedy=_REMEDY) from None


async def _patiently(run: Callable[[], Awaitable[list[Done]]], patience: float) -> list[Done]:
    """Servers that have just been started may have no leader yet."""
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await run()
        except (ServiceUnavailableError, nats.errors.Error, TimeoutError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_LOOK_AGAIN)


def access_with_keys(keys: Path) -> Access:
    """Access for an hour, minted with a herd's root keys and written to no file. Raises `HerdError`."""
    with reading_keys(keys):
        token, seed = parts_of(Registrar(Material(keys)).mint_stream_changer())
    return Access(Identity.renewing(lambda: token, seed), changes=True)


def access_of(credentials: Path | None, now: datetime) -> Access:
    """Access with the provisioner's credentials file. Raises `HerdError` for another's, and for an expired one."""
    path = _provisioners(credentials)
    expires = holder(path).expires_at
    if expires is None or expires <= now:
        told = f"expired at {expires:%Y-%m-%d %H:%M} UTC" if expires else "never expires: an earlier version made it"
        raise HerdError.of(
            Code.REFUSED,
            f"{path} {told}",
            field="credentials",
            remedy="make another with `sandherd identity init DIR`, which is accepted for an hour",
        )
    claims = read_claims(parts_of(path.read_text())[0])
    return Access(Identity.file(path), changes=_CHANGE in claims["nats"].get("pub", {}).get("allow", ()))


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
def reading_keys(keys: Path) -> Iterator[None]:
    """What may go wrong while the keys of a herd are read. Raises `HerdError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise HerdError.of(
            Code.NOT_FOUND,
            f"the keys of a herd can't be read in {keys} ({type(error).__name__})",
            field="identity",
            remedy="name their directory with --identity; `sandherd identity init` and `sandherd up` make one",
        ) from None


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
