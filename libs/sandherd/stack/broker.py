"""A whole broker for one herd: identity, nats-server, streams and credentials, in one directory.

The local stack runs on it, and so does every test that needs a real broker.
"""

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats.errors
from nats.js import JetStreamContext

from sandherd.bus.connection import Bus, BusError
from sandherd.bus.connection import Identity as Voice
from sandherd.bus.identity import (
    BrokerTokens,
    Identity,
    Key,
    Kind,
    Minter,
    Registrar,
    SpawnerKeys,
    bearer,
    credentials_text,
    write_secret,
)
from sandherd.bus.identity.holding import Holding
from sandherd.bus.permissions import SERVICES
from sandherd.bus.provision import ProvisionError, provision
from sandherd.bus.setting_up import INBOX, PROVISIONER
from sandherd.bus.together import together
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.child import Child, ChildFailedError
from sandherd.stack.nats import NatsServer, held_token

DEFAULT_PROJECT = "default"


class Broker:
    """One herd's broker in `home`: `identity/`, `creds/` and `nats/`. Use it as an async context manager."""

    def __init__(self, home: Path, *, port: int = 0, linked: bool = True) -> None:
        self.home = home
        self.identity = Identity(home / "identity")
        self._port = port
        self._linked = linked
        self._server: NatsServer | None = None

    @property
    def nats(self) -> NatsServer:
        """The server. Raises `RuntimeError` before `initialise`."""
        if self._server is None:
            raise RuntimeError("the broker is not initialised")
        return self._server

    @property
    def child(self) -> Child:
        """The server's process."""
        return self.nats.child

    @property
    def url(self) -> str:
        """Where clients connect."""
        return self.nats.url

    @property
    def spawner_identity(self) -> Path:
        """The directory of the spawner's signing keys (`SANDHERD_IDENTITY_DIR`)."""
        return self.identity.spawner

    def initialise(self) -> None:
        """Make keys, tokens and credentials that are not there yet, and bring them up to this version's rights."""
        self.identity.create(int(time.time()))
        for service in SERVICES:
            self.credentials(service)
        self.credentials(Principal.OPERATOR)
        self.credentials(Principal.CLIENT)
        self._server = NatsServer(
            self.home / "nats",
            self._tokens,
            port=self._port,
            log=self.home / "logs" / "nats.log",
            linked=self._linked,
        )

    def _tokens(self) -> BrokerTokens:
        held = held_token(self.home / "nats", self.identity.root_key("sandboxes").public)
        return self.identity.tokens(held, int(time.time()))

    async def start(self) -> None:
        """Start the server and provision it. Raises `ChildFailedError`."""
        if self._server is None:
            self.initialise()
        await self.nats.start()
        try:
            await together(self.provision(), self._watch_end())
        except (BusError, ProvisionError, nats.errors.Error) as error:
            raise ChildFailedError(f"nats-server runs but can't be provisioned: {error}") from error

    async def _watch_end(self) -> None:
        """Whoever provisions would wait for a server that has ended until its patience is over."""
        await self.child.gone()
        raise ChildFailedError(f"nats-server ended with status {self.child.status} while it was being provisioned")

    async def stop(self) -> None:
        """End the server in order."""
        await self.nats.stop()

    async def kill(self) -> None:
        """End the server at once (SIGKILL)."""
        await self.nats.kill()

    async def restart(self) -> None:
        """Start the server again on the same port and data."""
        await self.nats.restart()

    async def provision(self) -> None:
        """Make streams, consumers and buckets, or bring them up to this version."""
        async with self.provisioner() as jetstream:
            await provision(jetstream)

    @asynccontextmanager
    async def provisioner(self) -> AsyncIterator[JetStreamContext]:
        """JetStream with every right to it, by a credential that is gone afterwards."""
        path = self.home / "creds" / f"{PROVISIONER}.creds"
        write_secret(path, Registrar(self.identity).mint_provisioner())
        try:
            async with self._open(path, PROVISIONER, INBOX) as bus:
                yield bus.js
        finally:
            path.unlink()

    def credentials(
        self, principal: Principal, *, project: str = DEFAULT_PROJECT, sandbox: str = "", life: float = 3600
    ) -> Path:
        """The credentials file of a principal, minted if there is none, or if it lacks rights of this version.

        A joiner's is minted anew each time. A worker's is minted for a key made here; in a real sandbox the worker
        makes its own.
        """
        if principal in {Principal.WORKER, Principal.JOINER}:
            return self._sandbox_credentials(principal, project, sandbox, life)
        return Holding(self.identity, lambda name: self.home / "creds" / f"{name}.creds").keep(principal, project)

    def bus(
        self, principal: Principal, *, project: str = DEFAULT_PROJECT, sandbox: str = "", **options: Any
    ) -> AbstractAsyncContextManager[Bus]:
        """A connection as this principal; `options` go to `Bus.open`."""
        path = self.credentials(principal, project=project, sandbox=sandbox)
        who = bearer(path.read_text())
        return self._open(path, who.name, who.inbox, **options)

    def settings(self, principal: Principal, *, project: str = DEFAULT_PROJECT, **values: Any) -> Settings:
        """The settings of a service or a person on this broker; `values` are further ones."""
        own: dict[str, Any] = {
            "nats_url": self.url,
            "home": self.home,
            "project": project,
            "credentials": self.credentials(principal, project=project),
        }
        if principal is Principal.SPAWNER:
            own["identity_dir"] = self.spawner_identity
        return Settings(**(own | values))

    def minter(self) -> Minter:
        """What the spawner mints with."""
        return Minter(SpawnerKeys.read(self.spawner_identity))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @asynccontextmanager
    async def _open(self, credentials: Path, name: str, inbox: str, **options: Any) -> AsyncIterator[Bus]:
        async with Bus.open(
            self.url, name=name, identity=Voice.file(credentials), inbox=inbox, **({"patience": 20} | options)
        ) as bus:
            yield bus

    def _sandbox_credentials(self, principal: Principal, project: str, sandbox: str, life: float) -> Path:
        path = self.home / "creds" / f"{sandbox}-{principal}.creds"
        if principal is Principal.JOINER:
            text = self.minter().mint_joiner(project, sandbox, life)
        else:
            key = Key.new(Kind.USER)
            token, _ = self.minter().mint_worker(project, sandbox, key.public, life)
            text = credentials_text(token, key.seed)
        write_secret(path, text)
        return path
