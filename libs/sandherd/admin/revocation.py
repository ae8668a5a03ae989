"""Revokes a user's credential with the herd's root keys, while its broker runs; no spawner is needed."""

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
    system_line,
)
from sandherd.client.context import holder
from sandherd.client.errors import HerdError, NotReachedError
from sandherd.contracts.errors import Code

_ALLOWED: Final = Permissions(
    publish=(f"{API}.DIRECT.GET.KV_{BUCKET}.>", f"{API}.STREAM.MSG.GET.KV_{BUCKET}", f"$KV.{BUCKET}.>"),
    subscribe=(f"{INBOX}.>",),
)
"""To read and write the lists of revoked keys. The credential is valid for a minute."""


def _is_own(registrar: Registrar, file: Path, who: Bearer) -> bool:
    """Whether the credential is of this herd and has its private key: a public key alone can't be revoked."""
    token, seed = parts_of(file.read_text())
    try:
        has_key = Key.from_seed(seed).public == who.public_key
    except ValueError:
        return False
    return has_key and registrar.vouched(read_claims(token), Account.PEOPLE)


async def revoke_user(url: str, keys: Path, file: Path, patience: float) -> Bearer:
    """Revoke the credential in a file: its connections are closed, and new ones are refused. Raises `HerdError`."""
    who = holder(file)
    if who.principal not in USER_PRINCIPALS:
        raise HerdError.of(Code.REFUSED, f"{file} is the credential of a {who.principal}, not of a user", field="file")
    identity = HerdIdentity(keys)
    with reading_keys(keys):
        spawner = SpawnerKeys.read(identity.spawner)
        token, seed = parts_of(Registrar(identity).mint_stream_admin(allowed=_ALLOWED))
    if not _is_own(Registrar(identity), file, who):
        raise HerdError.of(Code.REFUSED, f"{file} is not a credential of this herd", field="file")
    if spawner.people is None:
        raise HerdError.of(
            Code.REFUSED, f"{keys} is of an earlier version", field="identity", remedy="run `sandherd identity init`"
        )
    own = ConnectionIdentity.renewing(lambda: token, seed)
    try:
        async with (
            system_line(url, spawner.claims_credentials, patience) as system,
            Bus.open(url, name=PROVISIONER, identity=own, inbox=INBOX, patience=patience) as bus,
        ):
            revoker = AccountRevoker(system, RevocationList.of_people(bus.js), spawner.people, spawner.operator_signing)
            await revoker.revoke({who.public_key: who.expires_at or FOREVER}, datetime.now(UTC))
    except (BusError, RevocationFailedError, nats.errors.Error, JetStreamError, TimeoutError) as error:
        raise NotReachedError.of(
            Code.UNAVAILABLE,
            str(error) or repr(error),
            remedy="check that the broker runs at NATS_URL with this identity, and repeat the command",
        ) from None
    return who
