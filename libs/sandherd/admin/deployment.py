"""Sets up a deployment: provisions streams, consumers and buckets, and pushes the accounts' JWTs."""

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
from sandherd.bus.auth.setup_permissions import INBOX, PROVISIONER
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.deployment import CREDENTIALS
from sandherd.bus.identity.keys import read_claims
from sandherd.bus.identity.material import CLAIMS_CREDENTIALS, PUSHED_ACCOUNTS, HerdIdentity
from sandherd.bus.identity.minter import Registrar
from sandherd.bus.identity.revocation import RevocationFailedError, push_token, system_connection
from sandherd.bus.provision import Provisioned, ProvisionError, create_missing, provision
from sandherd.client.context import Context, holder
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code
from sandherd.contracts.names import UnsafeNameError

_RETRY_SECONDS: Final = 0.5
_STREAM_UPDATE_SUBJECT: Final = f"{API}.STREAM.UPDATE.EVENTS"
"""Only a credential with permission to change streams may publish to this subject."""
_CONNECTION_REMEDY: Final = (
    "check that the broker runs at NATS_URL with this identity, and that SANDHERD_CREDENTIALS matches"
)


@dataclass(frozen=True)
class ProvisionerAccess:
    """A provisioner's credential, and whether it may change existing streams."""

    identity: ConnectionIdentity
    may_change: bool


async def set_up(
    context: Context, access: ProvisionerAccess, replicas: int | None, patience: float
) -> list[Provisioned]:
    """Create declared streams, consumers and buckets; change existing ones if `access` allows. Raises `HerdError`."""
    api = API if access.may_change else API_FROM_OUTSIDE
    run = provision if access.may_change else create_missing
    try:
        async with Bus.open(
            context.nats_url, name=PROVISIONER, identity=access.identity, inbox=INBOX, connect_timeout=patience, api=api
        ) as bus:
            return await _with_retries(lambda: run(bus.js, replicas), patience)
    except ProvisionError as error:
        raise HerdError.of(Code.REFUSED, str(error)) from None
    except (BusError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(Code.UNAVAILABLE, _error_text(error), remedy=_CONNECTION_REMEDY) from None


async def _with_retries(run: Callable[[], Awaitable[list[Provisioned]]], patience: float) -> list[Provisioned]:
    """The result of `run`. Retries for `patience` seconds, because servers that just started may have no leader."""
    deadline = asyncio.get_running_loop().time() + patience
    while True:
        try:
            return await run()
        except (ServiceUnavailableError, nats.errors.Error, TimeoutError):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(_RETRY_SECONDS)


def access_with_keys(keys: Path) -> ProvisionerAccess:
    """Access for one hour, minted with a herd's root keys and not written to a file. Raises `HerdError`."""
    with reading_keys(keys):
        token, seed = parts_of(Registrar(HerdIdentity(keys)).mint_stream_changer())
    return ProvisionerAccess(ConnectionIdentity.renewing(lambda: token, seed), may_change=True)


def access_of(credentials: Path | None, now: datetime) -> ProvisionerAccess:
    """Access with the provisioner's credentials file.

    Raises `HerdError` if the file is not a provisioner's, has expired, or never expires.
    """
    path = _provisioner_credentials(credentials)
    expires = holder(path).expires_at
    if expires is None or expires <= now:
        problem = (
            f"expired at {expires:%Y-%m-%d %H:%M} UTC" if expires else "never expires: an earlier version created it"
        )
        raise HerdError.of(
            Code.REFUSED,
            f"{path} {problem}",
            field="credentials",
            remedy="run `sandherd identity init DIR`: it creates one that is valid for one hour",
        )
    claims = read_claims(parts_of(path.read_text())[0])
    return ProvisionerAccess(
        ConnectionIdentity.file(path),
        may_change=_STREAM_UPDATE_SUBJECT in claims["nats"].get("pub", {}).get("allow", ()),
    )


def _provisioner_credentials(credentials: Path | None) -> Path:
    if credentials is not None and holder(credentials).name == PROVISIONER:
        return credentials
    problem = f"{credentials} is not the provisioner's credential" if credentials else "no credential given"
    raise HerdError.of(
        Code.REFUSED,
        problem,
        field="credentials",
        remedy=f"set SANDHERD_CREDENTIALS to creds/{PROVISIONER}/{CREDENTIALS}, created by `sandherd identity init`",
    )


@contextmanager
def reading_keys(keys: Path) -> Iterator[None]:
    """A context that raises errors of reading a herd's keys as `HerdError`."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise HerdError.of(
            Code.NOT_FOUND,
            f"the herd's keys in {keys} can't be read ({type(error).__name__})",
            field="identity",
            remedy="name their directory with --identity; `sandherd identity init` and `sandherd up` create one",
        ) from None


@contextmanager
def creating(directory: Path) -> Iterator[None]:
    """A context that raises errors of creating a deployment's folder as `HerdError`."""
    try:
        yield
    except OSError as error:
        raise HerdError.of(
            Code.REFUSED, f"{directory} can't be used: {error}", remedy="name a folder that only you own"
        ) from None
    except UnsafeNameError as error:
        raise HerdError.of(Code.UNSAFE_NAME, str(error), field="project") from None
    except ValueError as error:
        raise HerdError.of(
            Code.REFUSED, f"{directory} has a broken key: {error}", remedy="restore it from its backup"
        ) from None


async def push_accounts(url: str, directory: Path, patience: float) -> list[str]:
    """Push the accounts of an identity to a running broker. Returns their names. Raises `HerdError`."""
    identity = HerdIdentity(directory / "identity")
    try:
        tokens = {name: (identity.broker / f"{name}.jwt").read_text() for name in PUSHED_ACCOUNTS}
        async with system_connection(url, identity.spawner / CLAIMS_CREDENTIALS, patience) as system:
            for token in tokens.values():
                await push_token(system, token)
    except OSError as error:
        raise HerdError.of(
            Code.NOT_FOUND, f"{directory} is not an identity: {error}", remedy="create it with `sandherd identity init`"
        ) from None
    except RevocationFailedError as error:
        raise HerdError.of(Code.REFUSED, str(error)) from None
    except (BusError, nats.errors.Error, TimeoutError) as error:
        raise NotReachedError.of(Code.UNAVAILABLE, _error_text(error), remedy=_CONNECTION_REMEDY) from None
    return list(tokens)


def _error_text(error: Exception) -> str:
    return str(error) or repr(error)
