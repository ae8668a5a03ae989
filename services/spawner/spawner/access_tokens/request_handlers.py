"""Handles requests about access tokens of the HTTP API: create, list, revoke."""

from collections.abc import Mapping
from typing import Any, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import CreateToken, ListTokens, Request, RevokeToken, TokenList, TokenView
from sandherd.service.requests import Answerer, IncomingRequest
from spawner.access_tokens.token_record import TokenRecord, new_token
from spawner.live_state import LiveState
from spawner.records.availability import available, unknown
from spawner.records.base_record import StoreUnavailableError
from spawner.records.store import StoredRecord

ANSWERED: Final[Mapping[type[Request[Any]], int]] = {CreateToken: 1, ListTokens: 1, RevokeToken: 1}
"""The requests handled here, and the maximum of each that a replica handles concurrently."""
MAX_TOKENS: Final = 100
"""Maximum access tokens of a project."""


class TokenRequestHandler:
    """The handlers of requests about access tokens. They raise `ContractError`."""

    def __init__(self, live: LiveState) -> None:
        self._live = live

    @property
    def handlers(self) -> dict[type[Request[Any]], Answerer]:
        """The handlers, one for each request in `ANSWERED`."""
        return {CreateToken: self.create, ListTokens: self.tokens, RevokeToken: self.revoke}

    async def create(self, incoming: IncomingRequest[CreateToken]) -> TokenView:
        """Create a token, and delete the project's expired tokens, sessions and codes."""
        project, request = single_project(incoming.project), incoming.request
        now = self._live.now()
        with available("tokens"):
            valid = await valid_tokens(self._live, project)
            earlier = token_of_equal_request(request, [one.record for one in valid if one.record.kind == "token"])
            if earlier is not None:
                return earlier.view()
            held, _ = await self._live.tokens.create(new_token(project, request, now))
        return held.record.view()

    async def tokens(self, incoming: IncomingRequest[ListTokens]) -> TokenList:
        """The tokens and sessions of a project, or of all projects."""
        with available("tokens"):
            stored = await stored_tokens(self._live, None if incoming.project == FLEET else incoming.project)
        views = [one.record.view() for one in stored if one.record.kind != "code"]
        return TokenList(tokens=sorted(views, key=lambda view: (view.project, view.name)))

    async def revoke(self, incoming: IncomingRequest[RevokeToken]) -> TokenView:
        """Delete a token, then its sessions. A deleted token creates no further session (`SessionRequestHandler`)."""
        project, name = single_project(incoming.project), incoming.request.name
        with available("tokens"):
            named = [one for one in await stored_tokens(self._live, project) if one.record.token == name]
            if not named:
                raise unknown("token", project, name)
            await remove_all(self._live, named)
            digests = {one.record.sha256 for one in named}
            stored = await stored_tokens(self._live, project)
            await remove_all(self._live, [one for one in stored if one.record.issued_by in digests])
        return named[0].record.view()


async def stored_tokens(live: LiveState, project: str | None) -> list[StoredRecord[TokenRecord]]:
    """The tokens, sessions and codes of a project, or of all projects. Raises `StoreUnavailableError`."""
    keys = [key for key in await live.tokens.keys() if project in {None, key.partition(".")[0]}]
    loaded = [await live.tokens.load_closed(key) for key in keys]
    return [held for held in loaded if held]


async def valid_tokens(live: LiveState, project: str) -> list[StoredRecord[TokenRecord]]:
    """The valid tokens, sessions and codes of a project. Deletes the expired ones. Raises `StoreUnavailableError`."""
    now = live.now()
    stored = await stored_tokens(live, project)
    for one in stored:
        if one.record.expires_at <= now:
            await live.tokens.remove(one)
    return [one for one in stored if one.record.expires_at > now]


async def remove_all(live: LiveState, stored: list[StoredRecord[TokenRecord]]) -> None:
    """Delete these records. Raises `StoreUnavailableError` if a record can't be deleted."""
    for one in stored:
        if not await live.tokens.remove(one):
            raise StoreUnavailableError(f"{one.record.kind} {one.record.token}: not deleted")


def token_of_equal_request(request: CreateToken, tokens: list[TokenRecord]) -> TokenRecord | None:
    """The token that an earlier, equal request created, or None. `tokens` are the project's valid tokens.

    Raises `ContractError` if the name is used by another token, or the maximum is reached.
    """
    same_name = next((one for one in tokens if one.token == request.name), None)
    if same_name is not None and (same_name.sha256, same_name.role) == (request.sha256, request.role):
        return same_name
    if same_name is not None:
        raise ContractError(
            Code.CONFLICT,
            f"there is a token {request.name} in the project",
            field="name",
            remedy=f"use another name, or revoke token {request.name}",
        )
    if len(tokens) >= MAX_TOKENS:
        raise ContractError(
            Code.REFUSED,
            f"the project has {len(tokens)} tokens; the maximum is {MAX_TOKENS}",
            field="name",
            remedy="revoke a token that is not needed",
        )
    return None


def single_project(project: str) -> str:
    """The project that a request names. Raises `ContractError` if it names all projects."""
    if project == FLEET:
        raise ContractError(
            Code.INVALID_FIELD, "a token belongs to one project", field="project", remedy="name one with --project"
        )
    return project
