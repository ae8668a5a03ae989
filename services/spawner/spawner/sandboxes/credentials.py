"""Credentials of sandboxes: issued to live ones, revoked when a sandbox ends."""

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import CredentialGrant, GetCredential
from sandherd.contracts.states import SANDBOX_ENDING, SandboxState
from sandherd.service.service import IncomingRequest
from sandherd.telemetry import logs
from sandherd.telemetry.line_limit import LineLimit
from spawner.live_state import LiveState
from spawner.sandboxes import sandbox_transitions
from spawner.sandboxes.sandbox_record import SandboxRecord, WorkerKey
from spawner.tasks.task_record import TaskRecord

_MIN_GRANT_SECONDS: Final = 10.0
"""The shortest lifetime of a credential that is issued with a warm sandbox's identity, in seconds."""
_refusals: Final = LineLimit()
"""Limits log lines of this process: an agent can repeat a refused request at any rate."""
_log: Final = logs.get("credentials")


class Mint(Protocol):
    """Issues credentials (`sandherd.bus.identity.Minter`)."""

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        """The text of a credentials file."""

    def joiner_key(self, project: str, sandbox: str, serial: int) -> str:
        """The public key of every joiner's credential with this serial number."""

    def mint_worker(self, project: str, sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        """A token, and when it expires."""


class Revoke(Protocol):
    """Revokes credentials (`sandherd.bus.identity.revocation.Revoker`)."""

    async def revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        """Have the broker refuse these public keys until the given times, when their tokens expire."""


class Credentials:
    """Handles requests on `spawner.credential`. Their subject names the sandbox, which the broker has verified."""

    def __init__(self, live: LiveState, minter: Mint, life: float) -> None:
        self._live = live
        self._minter = minter
        self._life = life

    async def grant(self, incoming: IncomingRequest[GetCredential]) -> CredentialGrant:
        """A token for the requesting key. Raises `ContractError`.

        The code is `refused` if the sandbox may no longer publish, and `unavailable` while it has too many keys.
        """
        project, sandbox = incoming.names["project"], incoming.names["sandbox"]
        now = self._live.now()
        # Recorded before it is issued, with an expiry not before the token's, so that every issued token is known.
        recorded_key = WorkerKey(
            public_key=incoming.request.public_key, expires_at=now + timedelta(seconds=self._life + 1)
        )
        refusals: list[ContractError] = []

        def decide(record: SandboxRecord, revision: int) -> SandboxRecord:
            why = refusal(record, record.fence_of(revision), incoming.request.fence)
            refusals[:] = [_refused(sandbox, why)] if why else []
            if not why and sandbox_transitions.has_keys_enough(record, recorded_key.public_key, now):
                refusals.append(_too_many(sandbox))
            return (
                record
                if refusals
                else sandbox_transitions.granted(sandbox_transitions.fenced(record, revision), recorded_key, now)
            )

        held = await self._live.sandboxes.change(f"{project}.{sandbox}", decide)
        if held is None or refusals:
            raise refusals[0] if refusals else _refused(sandbox, "there is no such sandbox")
        life = token_life(recorded_key, self._live.now())
        token, expires_at = self._minter.mint_worker(project, sandbox, recorded_key.public_key, life)
        return CredentialGrant(
            jwt=token,
            expires_at=expires_at,
            may_start=await self._may_start(held.record),
            joiner=self._new_joiner(held.record, now),
        )

    async def _may_start(self, sandbox: SandboxRecord) -> bool:
        """Whether the agent may start. The task is read after the key was recorded: its attempt may have ended."""
        task = await self._live.load_task(sandbox)
        return may_start(sandbox, task.record if task else None)

    def _new_joiner(self, sandbox: SandboxRecord, now: datetime) -> str | None:
        """A joiner's credentials file, if the first one expires too early. Each reply has one: a reply may be lost."""
        until = sandbox_transitions.joiner_end(sandbox.expires_at)
        if until is None or sandbox.joiner_until is None or until <= sandbox.joiner_until:
            return None
        life = (until - now).total_seconds()
        return self._minter.mint_joiner(sandbox.project, sandbox.sandbox, life, sandbox.joiner_serial)


def may_start(sandbox: SandboxRecord, task: TaskRecord | None) -> bool:
    """Whether the agent may start: the sandbox is not ending, and its task's current attempt is in it and not ended."""
    if sandbox.state in SANDBOX_ENDING:
        return False
    if sandbox.task is None:
        return True
    return task is not None and task.sandbox == sandbox.sandbox and not task.ended


def token_life(recorded_key: WorkerKey, now: datetime) -> float:
    """Seconds that a token issued now for a recorded key may last: it must expire before the recorded time."""
    return (recorded_key.expires_at - now).total_seconds() - 1


def first_grant(sandbox: SandboxRecord, task: TaskRecord | None, minter: Mint, now: datetime) -> CredentialGrant | None:
    """A credential for the key of the task's warm sandbox. None if the key is unknown, or if its agent may not start.

    Also None if the credential would expire soon: then the worker requests one, which lasts longer.
    """
    key = next(iter(sandbox.keys), None)
    if sandbox.unit is None or sandbox.state is not SandboxState.REQUESTED or key is None:
        return None
    life = token_life(key, now)
    if life < _MIN_GRANT_SECONDS or not may_start(sandbox, task):
        return None
    token, expires_at = minter.mint_worker(sandbox.project, sandbox.sandbox, key.public_key, life)
    return CredentialGrant(jwt=token, expires_at=expires_at)


def refusal(record: SandboxRecord, fence: int, requested_fence: int) -> str | None:
    """Why this sandbox gets no credential, or None if it does."""
    if record.ended and not record.unsaid:
        return f"the sandbox has ended ({record.reason or record.state})"
    if ErrorType.FLOODING in {record.error_type, record.reason}:
        return f"the sandbox is cut off ({record.error or record.reason})"
    if requested_fence != fence:
        return "this is an older attempt"
    return None


def _refused(sandbox: str, why: str) -> ContractError:
    if times := _refusals.add(f"{sandbox} {why}", time.monotonic()):
        _log.warning("request for credential refused", sandbox=sandbox, why=why, times=times)
    return ContractError(Code.REFUSED, f"no credential for {sandbox}: {why}", remedy="none: the worker must end")


def _too_many(sandbox: str) -> ContractError:
    if times := _refusals.add(sandbox, time.monotonic()):
        _log.warning(
            "sandbox requests credentials for too many keys",
            sandbox=sandbox,
            most=sandbox_transitions.MAX_KEYS,
            times=times,
        )
    return ContractError(
        Code.UNAVAILABLE,
        f"sandbox {sandbox} has credentials for {sandbox_transitions.MAX_KEYS} other keys",
        remedy="retry when one has expired",
    )
