"""A desk that takes the place of the spawner: it issues credentials for workers, and chunks of artifacts."""

import asyncio
import json
from typing import Any

import nats.js.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.requests import ArtifactPiece, Fetch, GetCredential, Reply
from sandherd.contracts.subjects import ARTIFACT, BY_NAME, CREDENTIAL
from sandherd.stack.broker import Broker

_FETCH = BY_NAME["request.spawner.fetch"]


class Desk:
    """Takes the place of the spawner: it issues credentials to sandboxes that request them, or refuses them."""

    def __init__(self, herd: Broker, bus: Bus) -> None:
        self._herd, self._bus = herd, bus
        self.life = 3600.0
        self.silent = False
        self.may_start = True
        self.joiner: str | None = None
        self.refusal: Problem | None = None
        self.requested: list[GetCredential] = []
        self.fetched: list[Fetch] = []
        self.delay: asyncio.Event | None = None

    @property
    def bus(self) -> Bus:
        """The spawner's connection."""
        return self._bus

    async def open(self) -> None:
        await self._bus.client.subscribe(CREDENTIAL.pattern(), cb=self._answer)
        await self._bus.client.subscribe(_FETCH.pattern(), cb=self._hand_on)

    async def _hand_on(self, request: Msg) -> None:
        """The next chunk of an artifact, as the spawner returns it."""
        names = _FETCH.match(request.subject)
        assert names is not None
        question = Fetch.model_validate_json(request.data)
        self.fetched.append(question)
        if self.delay is not None and question.after:
            await self.delay.wait()
        subject = ARTIFACT.fill(project=names["project"], sandbox=question.owner, artifact=question.artifact)
        reply: Reply[ArtifactPiece]
        try:
            found = await self._bus.js.get_msg("ARTIFACTS", seq=question.after + 1, subject=subject, next=True)
        except nats.js.errors.NotFoundError:
            reply = Reply(error=Problem(code=Code.NOT_FOUND, message="there is no such chunk"))
        else:
            index = int((found.headers or {})["Nats-Msg-Id"].rpartition("-")[2])
            reply = Reply(ok=ArtifactPiece(data=found.data or b"", index=index, after=found.seq or 0))
        await request.respond(reply.model_dump_json(exclude_none=True).encode())

    def refuse(self) -> None:
        self.refusal = Problem(code=Code.REFUSED, message="the sandbox has ended")

    async def _answer(self, request: Msg) -> None:
        names = CREDENTIAL.match(request.subject)
        assert names is not None
        if self.silent:
            return
        question = GetCredential.model_validate_json(request.data)
        self.requested.append(question)
        reply: dict[str, Any]
        if self.refusal is not None:
            reply = {"error": self.refusal.model_dump(mode="json")}
        else:
            jwt, expires = self._herd.minter().mint_worker(
                names["project"], names["sandbox"], question.public_key, self.life
            )
            reply = {"ok": {"jwt": jwt, "expires_at": expires.isoformat(), "may_start": self.may_start}}
            if self.joiner is not None:
                reply["ok"]["joiner"] = self.joiner
        await request.respond(json.dumps(reply).encode())
