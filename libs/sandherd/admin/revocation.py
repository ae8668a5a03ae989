"""Revokes a user's credential with the herd's root keys. The broker has to run; the spawner need not."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import nats.errors
from nats.js.errors import Error as JetStreamError

from sandherd.admin.deployment import reading_keys
from sandherd.bus.api_subjects import API
from sandherd.bus.auth.account_names import Account
from sandherd.bus.auth.inboxes import USER_PRINCIPALS
from sandherd.bus.auth.permissions import Permissions
from sandherd.bus.auth.setup_permissions import INBOX, PROVISIONER
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity
from sandherd.bus.identity.credentials import Bearer, parts_of
from sandherd.bus.identity.keys import Key, read_claims
from sandherd.bus.identity.material import HerdIdentity, SpawnerKeys
from sandherd.bus.identity.minter import Registrar
from sandherd.bus.identity.revocation import (
    BUCKET,
    FOREVER,
    AccountRevoker,
    RevocationFailedError,
    RevocationList,
    RevocationListFullError,
    system_connection,
)
from sandherd.client.context import holder
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code

_REVOCATION_PERMISSIONS: Final = Permissions(
    publish=(f"{API}.DIRECT.GET.KV_{BUCKET}.>", f"{API}.STREAM.MSG.GET.KV_{BUCKET}", f"$KV.{BUCKET}.>"),
    subscribe=(f"{INBOX}.>",),
)
"""The permissions of this command's credential: to read and write the lists of revoked keys."""


def _is_of_this_herd(registrar: Registrar, file: Path, bearer: Bearer) -> bool:
    """Whether the file is a credential of this herd.

    The signature of its token is not verified here, so the file must also have the private key of the token's public
    key. Otherwise anyone could write a file with another user's public key.
    """
    token, seed = parts_of(file.read_text())
    try:
        has_key = Key.from_seed(seed).public == bearer.public_key
    except ValueError:
        return False
    return has_key and registrar.is_signed_for(read_claims(token), Account.PEOPLE)


async def revoke_user(url: str, keys: Path, file: Path, patience: float) -> Bearer:
    """Revoke the credential in a file: its connections are closed, and new ones are refused. Returns its holder.

    `patience` is how long to wait for the broker, in seconds. Raises `HerdError`.
    """
    bearer = holder(file)
    if bearer.principal not in USER_PRINCIPALS:
        raise HerdError.of(
            Code.REFUSED, f"{file} is the credential of a {bearer.principal}, not of a user", field="file"
        )
    identity = HerdIdentity(keys)
    with reading_keys(keys):
        spawner = SpawnerKeys.read(identity.spawner)
        token, seed = parts_of(Registrar(identity).mint_stream_admin(allowed=_REVOCATION_PERMISSIONS))
    if not _is_of_this_herd(Registrar(identity), file, bearer):
        raise HerdError.of(Code.REFUSED, f"{file} is not a credential of this herd", field="file")
    if spawner.people is None:
        raise HerdError.of(
            Code.REFUSED,
            f"the keys in {keys} were created by an earlier version",
            field="identity",
            remedy="run `sandherd identity init`",
        )
    connection_identity = ConnectionIdentity.renewing(lambda: token, seed)
    try:
        async with (
            system_connection(url, spawner.claims_credentials, patience) as system,
            Bus.open(url, name=PROVISIONER, identity=connection_identity, inbox=INBOX, connect_timeout=patience) as bus,
        ):
            revoker = AccountRevoker(system, RevocationList.of_users(bus.js), spawner.people, spawner.operator_signing)
            await revoker.revoke({bearer.public_key: bearer.expires_at or FOREVER}, datetime.now(UTC))
    except RevocationListFullError as error:
        raise HerdError.of(
            Code.REFUSED,
            str(error),
            remedy="repeat the command when the credential of one of them has expired; give new credentials an expiry",
        ) from None
    except (BusError, RevocationFailedError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(
            Code.UNAVAILABLE,
            str(error) or repr(error),
            remedy="check that the broker runs at NATS_URL with this identity, and repeat the command",
        ) from None
    return bearer
