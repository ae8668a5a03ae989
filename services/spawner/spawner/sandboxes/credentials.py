"""Credentials of sandboxes: made for those that live, taken back from those that end."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final, Protocol

from sandherd.bus.service import Asked
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.requests import AskCredential, CredentialGrant
from sandherd.contracts.states import SANDBOX_ENDING
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.sandboxes import decisions
from spawner.sandboxes.record import SandboxRecord, WorkerKey
from spawner.tasks.record import TaskRecord

_log: Final = logs.get("credentials")


class Mint(Protocol):
    """Makes credentials (`sandherd.bus.identity.Minter`)."""

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        """The text of a credentials file."""

    def joiner_key(self, project: str, sandbox: str, serial: int) -> str:
        """The public key of every joiner's credential with this serial number."""

    def mint_worker(self, project: str, sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        """A token, and when it expires."""


class Revoke(Protocol):
    """Takes credentials back (`sandherd.bus.identity.revoking.Revoker`)."""

    async def revoke(self, keys: Mapping[str, datetime], now: datetime) -> None:
        """Refuse these public keys until their tokens expire."""


class Credentials:
    """Answers `spawner.credential`. The subject says which sandbox asks: the broker has checked that."""

    def __init__(self, live: Live, minter: Mint, life: float) -> None:
        self._live = live
        self._minter = minter
        self._life = life

    async def grant(self, asked: Asked[AskCredential]) -> CredentialGrant:
        """A token for the key that asks. Raises `ContractError`.

        It is `refused` if its sandbox is not to speak any more, and `unavailable` while it has too many keys.
        """
        project, sandbox = asked.names["project"], asked.names["sandbox"]
        now = self._live.now()
        # Noted before it is made, with an end that is not before the token's, so that none is ever out unknown.
        noted = WorkerKey(public_key=asked.request.public_key, expires_at=now + timedelta(seconds=self._life + 1))
        refusals: list[ContractError] = []

        def decide(record: SandboxRecord, revision: int) -> SandboxRecord:
            why = refusal(record, record.fence_of(revision), asked.request.fence)
            refusals[:] = [_refused(sandbox, why)] if why else []
            if not why and decisions.has_keys_enough(record, noted.public_key, now):
                refusals.append(_too_many(sandbox))
            return record if refusals else decisions.granted(decisions.fenced(record, revision), noted, now)

        held = await self._live.sandboxes.change(f"{project}.{sandbox}", decide)
        if held is None or refusals:
            raise refusals[0] if refusals else _refused(sandbox, "there is no such sandbox")
        token, expires_at = self._minter.mint_worker(project, sandbox, asked.request.public_key, self._life)
        return CredentialGrant(
            jwt=token,
            expires_at=expires_at,
            may_start=await self._may_start(held.record),
            joiner=self._new_joiner(held.record, now),
        )

    async def _may_start(self, sandbox: SandboxRecord) -> bool:
        """Read after the key was noted: an attempt that is over by then will not be begun with it."""
        task = await self._live.load_task(sandbox)
        return may_start(sandbox, task.record if task else None)

    def _new_joiner(self, sandbox: SandboxRecord, now: datetime) -> str | None:
        """With each answer again, as long as the first may run out too early: an answer may be lost on its way."""
        until = decisions.joiner_end(sandbox.expires_at)
        if until is None or sandbox.joiner_until is None or until <= sandbox.joiner_until:
            return None
        life = (until - now).total_seconds()
        return self._minter.mint_joiner(sandbox.project, sandbox.sandbox, life, sandbox.joiner_serial)


def may_start(sandbox: SandboxRecord, task: TaskRecord | None) -> bool:
    """Whether its agent may be started now: it is wanted, and its task's current attempt is in it and goes on."""
    if sandbox.state in SANDBOX_ENDING:
        return False
    if sandbox.task is None:
        return True
    return task is not None and task.sandbox == sandbox.sandbox and not task.ended


def refusal(record: SandboxRecord, fence: int, asked_with: int) -> str | None:
    """Why this sandbox gets no credential, or None if it does."""
    if record.ended and not record.unsaid:
        return f"the sandbox has ended ({record.reason or record.state})"
    if ErrorType.FLOODING in {record.error_type, record.reason}:
        return f"the sandbox is cut off ({record.error or record.reason})"
    if asked_with != fence:
        return "this is an older attempt"
    return None


def _refused(sandbox: str, why: str) -> ContractError:
    _log.warning("no credential", sandbox=sandbox, why=why)
    return ContractError(Code.REFUSED, f"no credential for {sandbox}: {why}", remedy="nothing: the worker is to end")


def _too_many(sandbox: str) -> ContractError:
    _log.warning("a sandbox asks for credentials for many keys", sandbox=sandbox, most=decisions.MOST_KEYS)
    return ContractError(
        Code.UNAVAILABLE,
        f"sandbox {sandbox} has credentials for {decisions.MOST_KEYS} other keys",
        remedy="ask again when one has expired",
    )
