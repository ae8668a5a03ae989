"""Revokes users' credentials that repeatedly open too many connections, and publishes that."""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.bus.connection_list import BrokerConnection
from sandherd.bus.connection_users import ConnectionUser
from sandherd.bus.identity.revocation import FOREVER, AccountRevoker
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.credential import CredentialRevoked
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters
from spawner.sandboxes.flood_limits import USER_PRINCIPALS, CredentialAbuse

_PUBLISH_TIMEOUT_SECONDS: Final = 2.0
"""Timeout of publishing events, in seconds. The next check publishes the others."""
_log: Final = logs.get("abused_credentials")


class AbusedCredentials:
    """Revokes credentials of the users' account. Does nothing if `revoker` is None: the spawner's keys can't sign."""

    def __init__(self, bus: Bus, meters: Meters, revoker: AccountRevoker | None, limit: int) -> None:
        self._bus = bus
        self._meters = meters
        self._revoker = revoker
        self._limit = limit
        self._unpublished: list[Envelope[Any]] = []

    def check_keys(self) -> None:
        """Log an error if users' credentials can't be revoked with the spawner's keys."""
        if self._revoker is None:
            _log.error("users' credentials can not be revoked: run `sandherd identity init` again")

    async def enforce(
        self, abuses: Iterable[CredentialAbuse], connections: Iterable[BrokerConnection], now: datetime
    ) -> None:
        """Revoke the credentials of `abuses`, and again each revoked credential that has an open connection.

        A revoked credential can have one after `sandherd identity push`, which pushes the account's JWT without its
        list of revocations.
        Raises `RevocationFailedError`, `BusError`, and the errors of the bucket; then call it again.
        """
        if self._revoker is None:
            return
        revoked_keys = await self._revoker.revoked()
        new = {abuse.user: abuse for abuse in abuses if abuse.user.public_key not in revoked_keys}
        users = {*new, *_connected_users(connections, revoked_keys)}
        if users:
            await self._revoker.revoke({user.public_key: _token_end(user) for user in users}, now)
        for abuse in new.values():
            self._report(abuse, now)
        await self._publish()

    def _report(self, abuse: CredentialAbuse, now: datetime) -> None:
        user = abuse.user
        _log.error(
            "credential of a user revoked",
            credential=user.name,
            project=user.project,
            connections=abuse.connections,
        )
        self._meters.count("sandherd_credentials_revoked_total", role=user.principal)
        if user.project:  # an operator has none
            self._unpublished.append(_event(abuse, self._limit, now))

    async def _publish(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_PUBLISH_TIMEOUT_SECONDS):
                while self._unpublished:
                    await self._bus.publish_event(self._unpublished[0])
                    del self._unpublished[0]


def _connected_users(connections: Iterable[BrokerConnection], revoked_keys: Collection[str]) -> set[ConnectionUser]:
    return {
        row.user
        for row in connections
        if row.open and row.user.principal in USER_PRINCIPALS and row.user.public_key in revoked_keys
    }


def _event(abuse: CredentialAbuse, limit: int, now: datetime) -> Envelope[Any]:
    user = abuse.user
    data = CredentialRevoked(
        public_key=user.public_key,
        role=user.principal,
        reason="connections",
        connections=abuse.connections,
        limit=limit,
    )
    source = f"/sandherd/spawner/{user.name}/{user.public_key}"
    return wrap(data, data.type, source=source, sequence=1, project=user.project, subject=user.name, time=now)


def _token_end(user: ConnectionUser) -> datetime:
    return FOREVER if user.expires is None else datetime.fromtimestamp(user.expires, UTC)
