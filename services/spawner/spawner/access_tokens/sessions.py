"""Handles requests about browsers' sessions of the HTTP API: one-time codes, and the start and end of a session."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import CreateCode, CreateSession, EndSession, Request, SignIn, SignInCode, TokenView
from sandherd.service.requests import Answerer, IncomingRequest
from sandherd.settings import Settings
from spawner.access_tokens.request_handlers import remove_all, single_project, valid_tokens
from spawner.access_tokens.token_record import TokenRecord, new_code, new_session, new_user_session
from spawner.live_state import LiveState
from spawner.records.availability import available
from spawner.records.store import StoredRecord

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {CreateCode: 1, CreateSession: 1, EndSession: 1, SignIn: 1}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""
MAX_CODES: Final = 20
"""Maximum one-time codes of a project that are valid at the same time."""
MAX_SESSIONS: Final = 200
"""Maximum sessions of a project."""
MAX_SESSIONS_OF_USER: Final = 20
"""Maximum sessions of one user. A further session ends the oldest one."""
_SIGN_IN_REMEDY: Final = "sign in again, with a valid token or with `sandherd open`"


class SessionRequestHandler:
    """The handlers of requests about sessions. They raise `ContractError`."""

    def __init__(self, live: LiveState, settings: Settings) -> None:
        self._live = live
        self._url = settings.gateway_url
        self._has_provider = settings.oidc_issuer is not None

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {
            CreateCode: self.create_code,
            CreateSession: self.create,
            EndSession: self.end,
            SignIn: self.sign_in,
        }

    async def create_code(self, incoming: IncomingRequest[CreateCode]) -> SignInCode:
        """Store a one-time code, and delete the project's expired tokens, sessions and codes."""
        project, now = single_project(incoming.project), self._live.now()
        with available("tokens"):
            valid = await valid_tokens(self._live, project)
            if sum(one.record.kind == "code" for one in valid) >= MAX_CODES:
                text = f"the project has {MAX_CODES} codes that are not used"
                raise ContractError(Code.REFUSED, text, remedy="retry in a minute")
            held, _ = await self._live.tokens.create(new_code(project, incoming.request, now))
        return SignInCode(expires_at=held.record.expires_at, url=self._url)

    async def create(self, incoming: IncomingRequest[CreateSession]) -> TokenView:
        """Create a session for the holder of a token or code. A code is deleted first: it can be used only once."""
        project, request = single_project(incoming.project), incoming.request
        key = f"{project}.{hashlib.sha256(request.proof.encode()).hexdigest()}"
        with available("tokens"):
            held = await self._live.tokens.load_closed(key)
            proof = valid_proof(held.record if held else None, self._live.now())
            if held and proof.kind == "code" and not await self._live.tokens.remove(held):
                raise _refused("the code was used already")
            created = await self._create(new_session(proof, request.sha256, self._live.now()))
            if proof.kind == "token" and await self._live.tokens.load_closed(key) is None:
                # The token was revoked meanwhile. The revocation may not have seen this session.
                await remove_all(self._live, [created])
                raise _refused("the access token was revoked")
        return created.record.view()

    async def sign_in(self, incoming: IncomingRequest[SignIn]) -> TokenView:
        """Create a session for a user whom the gateway has identified. Refused if no OpenID provider is configured."""
        project = single_project(incoming.project)
        if not self._has_provider:
            text = "there is no OpenID provider"
            raise ContractError(Code.REFUSED, text, remedy="set SANDHERD_OIDC_ISSUER for the spawner, too")
        with available("tokens"):
            created = await self._create(new_user_session(project, incoming.request, self._live.now()))
        return created.record.view()

    async def end(self, incoming: IncomingRequest[EndSession]) -> TokenView:
        """Delete a session."""
        project = single_project(incoming.project)
        with available("tokens"):
            held = await self._live.tokens.load_closed(f"{project}.{incoming.request.sha256}")
            if held is None or held.record.kind != "session":
                raise ContractError(Code.NOT_FOUND, "there is no such session", remedy="it has ended")
            await remove_all(self._live, [held])
        return held.record.view()

    async def _create(self, session: TokenRecord) -> StoredRecord[TokenRecord]:
        valid = await valid_tokens(self._live, session.project)
        await remove_all(self._live, surplus_sessions(session, [one for one in valid if one.record.kind == "session"]))
        held, new = await self._live.tokens.create(session)
        if not new:
            raise _refused("the session exists already")
        return held


def valid_proof(record: TokenRecord | None, now: datetime) -> TokenRecord:
    """The token or code with which a session is requested. Raises `ContractError` unless it is valid now."""
    if record is None or record.kind == "session":
        raise _refused("the token or code is unknown, was used, or was revoked")
    if record.expires_at <= now:
        raise _refused(f"the {record.kind} has expired")
    return record


def surplus_sessions(session: TokenRecord, others: list[StoredRecord[TokenRecord]]) -> list[StoredRecord[TokenRecord]]:
    """The sessions that `session`, a new one, ends: the oldest ones of its user that exceed the maximum.

    `others` are the project's existing sessions. Raises `ContractError` if the project has too many.
    """
    of_user = sorted((one for one in others if one.record.user == session.user), key=lambda one: one.record.created_at)
    surplus = of_user[: max(0, len(of_user) + 1 - MAX_SESSIONS_OF_USER)]
    if len(others) - len(surplus) >= MAX_SESSIONS:
        text = f"the project has {MAX_SESSIONS} sessions, the maximum"
        raise ContractError(Code.REFUSED, text, remedy="revoke a session that is not needed")
    return surplus


def _refused(text: str) -> ContractError:
    return ContractError(Code.REFUSED, text, remedy=_SIGN_IN_REMEDY)
