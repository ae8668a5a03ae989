"""Membership of the herd: the sandbox's own key, its credential, and the main connection to the broker.

Joining takes three steps: a short connection with the joiner's credentials, a request for a JWT for the sandbox's key,
then the main connection. A warm worker gets its first JWT with its assignment, and begins with the third step. At about
half of the JWT's lifetime a new JWT is requested the same way, and the main connection uses it after a reconnect. If
the broker closes the main connection for good (expired, revoked), all steps are repeated.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import nkeys

from sandherd.backoff import Backoff
from sandherd.bus.connection import Bus, BusError, ConnectionCallbacks, ConnectionIdentity, RefusedError
from sandherd.bus.identity import bearer
from sandherd.bus.replies import read_reply
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, run_until_first
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import CredentialGrant, GetCredential
from sandherd.contracts.subjects import CREDENTIAL
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import now

_KEY: Final = "worker.nk"
_CONNECT_SECONDS: Final = 20.0
"""How long one attempt to connect may take before all steps are repeated."""
_REPLY_SECONDS: Final = 5.0
_ADMISSION_SECONDS: Final = 10.0
"""How long after its issue the credential of an assignment permits to start the agent. Later, the attempt may have
ended meanwhile, for example while the spawner or the broker was stopped."""
_MIN_RENEWAL_SECONDS: Final = 1.0
_BACKOFF: Final = Backoff(base=0.05, cap=10.0)
_log: Final = logs.get("enrollment")

Session = Callable[[Bus], Awaitable[None]]
Granted = Callable[[CredentialGrant], None]


class EnrollmentRefusedError(Exception):
    """The spawner refuses a credential for this sandbox. The text is the spawner's reason."""


def own_key(state_dir: Path) -> nkeys.KeyPair:
    """This sandbox's own NATS user key, created at the first start. Only the file's owner can read the seed."""
    path = state_dir / _KEY
    if not path.exists():
        fresh = path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
        fresh.replace(path)
    return nkeys.from_seed(bytearray(path.read_bytes().strip()))


def renew_joiner(credentials: Path, text: str) -> None:
    """Replace the joiner's credentials atomically with credentials that expire later. Raises `OSError`.

    `private_files.write_file` would wait for a lock of the folder, which an agent can hold: it has the same user.
    """
    fresh = credentials.with_name(f"{credentials.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(credentials)


def delete_key(state_dir: Path) -> None:
    """Delete the key, so that the next connection uses a new one: a lost worker's key may have been revoked."""
    (state_dir / _KEY).unlink(missing_ok=True)


class Enrollment:
    """Keeps a connection to the broker as long as the sandbox may have one."""

    def __init__(self, assignment: Assignment, session: Session, granted: Granted) -> None:
        self._assignment = assignment
        self._session = session
        self._granted = granted
        self._jwt = ""
        self._assigned_grant = assignment.grant

    async def run(self) -> None:
        """Run the session over one connection after another, until cancelled. Raises `EnrollmentRefusedError`."""
        attempt = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._join_once()
            except EnrollmentRefusedError:
                raise
            except (BusError, OSError) as error:
                self._check_not_too_late()
                _log.warning("broker connection failed, retrying", attempt=attempt, error=str(error))
            lasted = asyncio.get_running_loop().time() - began
            attempt = 0 if lasted > _BACKOFF.cap else attempt + 1
            await asyncio.sleep(_BACKOFF.delay(attempt))

    def _check_not_too_late(self) -> None:
        """Raise `EnrollmentRefusedError` if the joiner's credentials have expired, so that no request can succeed."""
        if self._assignment.credentials is None:
            return
        expires_at = bearer(self._assignment.credentials.read_text()).expires_at
        if expires_at is not None and expires_at < now():
            raise EnrollmentRefusedError(f"the sandbox's joiner credential expired at {expires_at.isoformat()}")

    async def _join_once(self) -> None:
        """Join once, and run the session until the main connection ends.

        The joiner's connection is closed while the main one is opened.
        """
        if self._assignment.credentials is None:
            await self._run_session(ConnectionIdentity.anonymous(), None)
            return
        pair = own_key(self._assignment.state_dir)
        closing: asyncio.Task[None] | None = None
        try:
            grant = issued = self._take_issued()
            if grant is None:
                async with AsyncExitStack() as joiner:
                    grant = await self._request_credential(pair.public_key.decode(), joiner)
                    closing = asyncio.create_task(joiner.pop_all().aclose())
            self._jwt = grant.jwt
            identity = ConnectionIdentity.renewing(lambda: self._jwt, pair.seed.decode())
            await self._run_session(identity, grant, admits=issued is not None)
        finally:
            pair.wipe()
            if closing is not None:
                await closing

    def _take_issued(self) -> CredentialGrant | None:
        """The credential in the assignment, if it is still valid. It is used only once, even if it is refused."""
        text, self._assigned_grant = self._assigned_grant, None
        try:
            grant = CredentialGrant.model_validate_json(text) if text else None
            return grant if grant is not None and _permits_start(grant) and grant.expires_at > now() else None
        except ValueError as error:
            _log.warning("credential unreadable, requesting one", cause=type(error).__name__)
            return None

    async def _run_session(
        self, identity: ConnectionIdentity, grant: CredentialGrant | None, *, admits: bool = False
    ) -> None:
        """Open the main connection and run the session, until the connection is closed for good.

        `admits`: the agent may start once it is open. Before that, the broker may refuse the credential as revoked.
        """
        closed = asyncio.Event()
        watch = ConnectionCallbacks()
        watch.closed = closed.set
        async with Bus.open(
            self._assignment.nats_url,
            name=f"worker {self._assignment.sandbox}",
            identity=identity,
            inbox=self._assignment.inbox,
            watch=watch,
            connect_timeout=_CONNECT_SECONDS,
        ) as bus:
            # The uplink resends all unacknowledged messages in order. So the client must not send its buffer before.
            watch.disconnected = bus.drop_unsent
            if admits and grant is not None:
                if not _permits_start(grant):
                    raise BusError("the credential of the assignment is too old to start the agent")
                self._granted(grant)
            _log.info("connected to broker")
            await run_until_first(
                closed.wait(), self._session(bus), self._renew(bus, grant), again_after=SHORT_CLEANUP_SECONDS
            )

    async def _renew(self, bus: Bus, grant: CredentialGrant | None) -> None:
        """Renew the credential at about half of its lifetime, repeatedly. Raises `EnrollmentRefusedError`."""
        if grant is None:
            await asyncio.Event().wait()
            return
        pair = own_key(self._assignment.state_dir)
        key = pair.public_key.decode()
        pair.wipe()
        while True:
            await asyncio.sleep(_until_renewal(grant))
            try:
                async with AsyncExitStack() as joiner:
                    grant = await self._request_credential(key, joiner)
            except (BusError, OSError) as error:
                _log.warning("credential not renewed yet", expires_at=grant.expires_at.isoformat(), error=str(error))
                continue
            self._jwt = grant.jwt
            await bus.client.force_reconnect()
            _log.info("credential renewed", expires_at=grant.expires_at.isoformat())

    async def _request_credential(self, public_key: str, joiner: AsyncExitStack) -> CredentialGrant:
        """Request a credential over a connection of the joiner, which `joiner` closes.

        Raises `EnrollmentRefusedError` and `BusError`.
        """
        credentials = self._assignment.credentials
        if credentials is None:
            raise BusError("there are no credentials to join with")
        self._check_not_too_late()
        subject = CREDENTIAL.fill(project=self._assignment.project, sandbox=self._assignment.sandbox)
        question = GetCredential(public_key=public_key, fence=self._assignment.fence).model_dump_json().encode()
        opening = Bus.open(
            self._assignment.nats_url,
            name=f"joiner {self._assignment.sandbox}",
            identity=ConnectionIdentity.file(credentials),
            inbox=f"{self._assignment.inbox}-join",
            connect_timeout=_CONNECT_SECONDS,
        )
        bus = await joiner.enter_async_context(opening)
        try:
            grant = read_reply(await bus.request(subject, question, timeout=_REPLY_SECONDS), CredentialGrant)
        except RefusedError as error:
            if error.problem.code is Code.REFUSED:
                raise EnrollmentRefusedError(error.problem.message) from error
            raise
        self._granted(grant)
        self._store_joiner(credentials, grant)
        return grant

    def _store_joiner(self, credentials: Path, grant: CredentialGrant) -> None:
        """Replace the joiner's credentials with those of the grant, if it has any. They expire later."""
        if grant.joiner is None:
            return
        try:
            renew_joiner(credentials, grant.joiner)
        except OSError as error:
            _log.error("join credential not stored, old one stays in use", error=str(error))


def _permits_start(grant: CredentialGrant) -> bool:
    """Whether a credential permits to start the agent, and was issued recently. Raises `ValueError`."""
    issued_at = bearer(grant.jwt).issued_at
    return grant.may_start and issued_at is not None and (now() - issued_at).total_seconds() < _ADMISSION_SECONDS


def _until_renewal(grant: CredentialGrant) -> float:
    """Seconds until about half of the remaining lifetime; random, so that sandboxes renew at different times."""
    left = (grant.expires_at - now()).total_seconds()
    return max(_MIN_RENEWAL_SECONDS, left * random.uniform(0.4, 0.6))
