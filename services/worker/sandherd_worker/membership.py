"""Being one of the herd: the sandbox's own key, the credential for it, and the connection that it opens.

The way in is always the same: a short connection with the joiner's credentials, a request for a JWT for our own key,
then the main connection. At half of the JWT's life it is gone again, and the main connection takes the new JWT at a
reconnect. If the broker closes the main connection for good (expired, revoked), the whole way is gone anew.
"""

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import nkeys

from sandherd.bus.connection import Bus, BusError, Identity, RefusedError, Watch, full_jitter, read_reply
from sandherd.bus.identity import bearer
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import AskCredential, CredentialGrant
from sandherd.contracts.subjects import CREDENTIAL
from sandherd.telemetry import logs
from sandherd_worker.assignment import Assignment
from sandherd_worker.emitter import now
from sandherd_worker.tasks import first_of

_KEY: Final = "worker.nk"
_PATIENCE: Final = 20.0
"""How long one attempt to connect may take before the way in is gone anew, in seconds."""
_ANSWER: Final = 5.0
_SOONEST_RENEWAL: Final = 1.0
_LONGEST_WAIT: Final = 10.0
_log: Final = logs.get("membership")

Session = Callable[[Bus], Awaitable[None]]
Granted = Callable[[CredentialGrant], None]


class MembershipRefusedError(Exception):
    """The spawner gives this sandbox no credential any more. The text is its reason."""


def own_key(state_dir: Path) -> nkeys.KeyPair:
    """This sandbox's own user key, made at the first start. The seed is readable by its owner alone."""
    path = state_dir / _KEY
    if not path.exists():
        fresh = path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER))
        fresh.replace(path)
    return nkeys.from_seed(bytearray(path.read_bytes().strip()))


def renew_joiner(credentials: Path, text: str) -> None:
    """Replace the way in by one that is good for longer, whole or not at all. Raises `OSError`."""
    fresh = credentials.with_name(f"{credentials.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(credentials)


def forget_key(state_dir: Path) -> None:
    """Have the next connection made with a new key: the one of a lost worker may have been revoked since."""
    (state_dir / _KEY).unlink(missing_ok=True)


class Membership:
    """Keeps a connection to the broker as long as the sandbox may have one."""

    def __init__(self, assignment: Assignment, session: Session, granted: Granted) -> None:
        self._who = assignment
        self._session = session
        self._granted = granted
        self._jwt = ""

    async def run(self) -> None:
        """Run the session over one connection after the other, until cancelled. Raises `MembershipRefusedError`."""
        attempt = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._once()
            except MembershipRefusedError:
                raise
            except (BusError, OSError) as error:
                self._check_not_too_late()
                _log.warning("not connected; trying again", attempt=attempt, error=str(error))
            lasted = asyncio.get_running_loop().time() - began
            attempt = 0 if lasted > _LONGEST_WAIT else attempt + 1
            await asyncio.sleep(full_jitter(attempt, longest=_LONGEST_WAIT))

    def _check_not_too_late(self) -> None:
        """Raise `MembershipRefusedError` once the way in is gone for good: nobody will ever answer again."""
        if self._who.credentials is None:
            return
        expires_at = bearer(self._who.credentials.read_text()).expires_at
        if expires_at is not None and expires_at < now():
            raise MembershipRefusedError(f"the sandbox's own credential ran out at {expires_at.isoformat()}")

    async def _once(self) -> None:
        """One connection, from the way in to its end."""
        if self._who.credentials is None:
            await self._stay(Identity.anonymous(), None)
            return
        pair = own_key(self._who.state_dir)
        try:
            grant = await self._ask(pair.public_key.decode())
            self._jwt = grant.jwt
            await self._stay(Identity.renewing(lambda: self._jwt, pair.seed.decode()), grant)
        finally:
            pair.wipe()

    async def _stay(self, identity: Identity, grant: CredentialGrant | None) -> None:
        """Open the main connection and run the session, until the connection is closed for good."""
        closed = asyncio.Event()
        watch = Watch()
        watch.closed = closed.set
        async with Bus.open(
            self._who.nats_url,
            name=f"worker {self._who.sandbox}",
            identity=identity,
            inbox=self._who.inbox,
            watch=watch,
            patience=_PATIENCE,
        ) as bus:
            # The uplink repeats what was not acknowledged, in order; nothing may overtake it.
            watch.disconnected = bus.forget_unsent
            _log.info("connected")
            await first_of(closed.wait(), self._session(bus), self._renew(bus, grant))

    async def _renew(self, bus: Bus, grant: CredentialGrant | None) -> None:
        """Get a new credential at half life, again and again. Raises `MembershipRefusedError`."""
        if grant is None:
            await asyncio.Event().wait()
            return
        pair = own_key(self._who.state_dir)
        key = pair.public_key.decode()
        pair.wipe()
        while True:
            await asyncio.sleep(_until_renewal(grant))
            try:
                grant = await self._ask(key)
            except (BusError, OSError) as error:
                _log.warning("credential not renewed yet", expires_at=grant.expires_at.isoformat(), error=str(error))
                continue
            self._jwt = grant.jwt
            await bus.client.force_reconnect()
            _log.info("credential renewed", expires_at=grant.expires_at.isoformat())

    async def _ask(self, public_key: str) -> CredentialGrant:
        """Ask for a credential over a short connection of the joiner. Raises `MembershipRefusedError`, `BusError`."""
        credentials = self._who.credentials
        if credentials is None:
            raise BusError("there are no credentials to join with")
        self._check_not_too_late()
        subject = CREDENTIAL.fill(project=self._who.project, sandbox=self._who.sandbox)
        question = AskCredential(public_key=public_key, fence=self._who.fence).model_dump_json().encode()
        async with Bus.open(
            self._who.nats_url,
            name=f"joiner {self._who.sandbox}",
            identity=Identity.file(credentials),
            inbox=f"{self._who.inbox}-join",
            patience=_PATIENCE,
        ) as bus:
            try:
                grant = read_reply(await bus.request(subject, question, timeout=_ANSWER), CredentialGrant)
                # Told before the connection is left, which takes a moment: an agent may wait for it.
                self._granted(grant)
                self._keep_joiner(credentials, grant)
                return grant
            except RefusedError as error:
                if error.problem.code is Code.REFUSED:
                    raise MembershipRefusedError(error.problem.message) from error
                raise

    def _keep_joiner(self, credentials: Path, grant: CredentialGrant) -> None:
        if grant.joiner is None:
            return
        try:
            renew_joiner(credentials, grant.joiner)
        except OSError as error:
            _log.error("the new way in can't be kept; the old one is used on", error=str(error))


def _until_renewal(grant: CredentialGrant) -> float:
    """About half of what is left of its life: not all of a herd that started together at the same moment."""
    left = (grant.expires_at - now()).total_seconds()
    return max(_SOONEST_RENEWAL, left * random.uniform(0.4, 0.6))
