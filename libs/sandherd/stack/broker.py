"""The broker of one herd in one directory: identity, one nats-server or three, streams, and credentials.

The local stack uses it, and every test that needs a real broker.
"""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats.errors
from nats.js import JetStreamContext

from sandherd.bus.auth.account_names import api_of
from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.auth.setup_permissions import INBOX, PROVISIONER
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity
from sandherd.bus.identity import (
    BrokerTokens,
    HerdIdentity,
    Key,
    KeyKind,
    Minter,
    Registrar,
    SpawnerKeys,
    bearer,
    credentials_text,
    write_secret,
)
from sandherd.bus.identity.capacity import Capacity
from sandherd.bus.identity.credential_files import CredentialFiles
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.provision import ProvisionError, provision
from sandherd.concurrency import run_until_first
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack import cluster
from sandherd.stack.child_process import ChildFailedError, ChildProcess
from sandherd.stack.home import Home
from sandherd.stack.nats import ClusterMember, NatsServer, own_capacity

DEFAULT_PROJECT = "default"


class Broker:
    """One herd's broker in `home`: `identity/`, `creds/` and `nats/`. Use it as an async context manager.

    Of three servers each has its own directory, `nats-1/` and so on, and every stream is replicated to all of them.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int = 0,
        linked: bool = True,
        size: int | None = None,
        ports: Sequence[int] = (),
        capacity: Capacity | None = None,
    ) -> None:
        """`size` is the number of servers, by default that of the existing herd, or one. Raises `SizeError`.

        `capacity` is the number of connections of each server, by default what the limit of open files allows.
        """
        self.home = home
        self.capacity = capacity or own_capacity()
        self.identity = HerdIdentity(Home(home).identity, self.capacity)
        self.size = cluster.size_for(home, size)
        self._directories = cluster.directories(home, self.size)
        self._ports = [*(ports or [port]), *[0] * self.size]
        self._linked = linked
        self.servers: list[NatsServer] = []

    @property
    def nats(self) -> NatsServer:
        """The server, or the first of several. Raises `RuntimeError` before `initialise`."""
        if not self.servers:
            raise RuntimeError("the broker is not initialised")
        return self.servers[0]

    @property
    def child(self) -> ChildProcess:
        """The process of the server, or of the first of several."""
        return self.nats.child

    @property
    def url(self) -> str:
        """The URL for clients: the URLs of all servers, separated by commas."""
        return ",".join(server.url for server in self.servers or [self.nats])

    @property
    def spawner_identity(self) -> Path:
        """The directory of the spawner's signing keys (`SANDHERD_IDENTITY_DIR`)."""
        return self.identity.spawner

    @property
    def watcher(self) -> Path:
        """The file with the credential that may request the health of servers."""
        return Home(self.home).watcher_credentials

    @property
    def probe(self) -> Path:
        """The file with the credential that may publish the probe of `store_guard`."""
        return self.identity.root / cluster.PROBE

    @property
    def probed(self) -> tuple[str, Path, Path]:
        """The arguments of `StoreGuard.run`: the URL and its two credentials."""
        return self.url, self.watcher, self.probe

    def initialise(self) -> None:
        """Create missing keys, tokens and credentials, and replace those without the permissions of this version."""
        self.identity.create(int(time.time()))
        self.write_credentials()
        password = cluster.route_password(self.identity.root / "routes.password") if self.size > 1 else ""
        write_secret(self.watcher, Registrar(self.identity).mint_watcher())
        write_secret(self.probe, Registrar(self.identity).mint_probe())
        server_values = zip(self._directories, cluster.memberships(self.size, password), self._ports, strict=False)
        self.servers = [self._server(directory, membership, port) for directory, membership, port in server_values]

    def write_credentials(self) -> list[Path]:
        """Create the missing credentials of services, operator and client."""
        return [self.credentials(principal) for principal in (*SERVICES, Principal.OPERATOR, Principal.CLIENT)]

    def _server(self, directory: Path, membership: ClusterMember | None, port: int) -> NatsServer:
        log = self.home / "logs" / f"{directory.name}.log"
        return NatsServer(
            directory,
            self._tokens,
            port=port,
            log=log,
            linked=self._linked,
            membership=membership,
            capacity=self.capacity,
        )

    def _tokens(self) -> BrokerTokens:
        sandbox_token, user_token = cluster.newest_tokens(self._directories, self.identity)
        return self.identity.tokens(sandbox_token, int(time.time()), user_token)

    async def start(self) -> None:
        """Start the servers that are not running, and provision them. Raises `ChildFailedError`."""
        if not self.servers:
            self.initialise()
        await cluster.run_all(server.start() for server in self.servers)
        await self.prepare()

    async def prepare(self) -> None:
        """Provision servers that were just started. Raises `ChildFailedError`, also if a server ends meanwhile."""
        try:
            await run_until_first(self.provision(), self._watch_end())
        except (BusError, ProvisionError, nats.errors.Error) as error:
            raise ChildFailedError(f"nats-server runs but can't be provisioned: {error}") from error

    async def _watch_end(self) -> None:
        """Raise `ChildFailedError` as soon as a server ends: otherwise provisioning would wait until its timeout."""
        await run_until_first(*(cluster.raise_on_end(server.child) for server in self.servers))

    async def stop(self) -> None:
        """Stop every server gracefully."""
        await cluster.run_all(server.stop() for server in self.servers)

    async def kill(self) -> None:
        """Kill every server (SIGKILL)."""
        await cluster.run_all(server.kill() for server in self.servers)

    async def restart(self) -> None:
        """Restart every server with the same port and data."""
        await cluster.run_all(server.restart() for server in self.servers)

    async def provision(self) -> None:
        """Create streams, consumers and buckets, or update them to the declarations of this version."""
        async with self.provisioner() as jetstream:
            await cluster.retry_during_election(lambda: provision(jetstream, self.size), self.size)

    @asynccontextmanager
    async def provisioner(self) -> AsyncIterator[JetStreamContext]:
        """A client of the whole JetStream API. Its credential is valid for a minute and is not written to a file."""
        token, seed = parts_of(Registrar(self.identity).mint_stream_admin())
        own = ConnectionIdentity.renewing(lambda: token, seed)
        async with Bus.open(self.url, name=PROVISIONER, identity=own, inbox=INBOX, connect_timeout=20) as bus:
            yield bus.js

    def credentials(
        self, principal: Principal, *, project: str = DEFAULT_PROJECT, sandbox: str = "", life: float = 3600
    ) -> Path:
        """The credentials file of a principal. It is created if it is missing, or has other permissions than declared.

        The credentials of joiners and workers are created at each call. A worker's key is created here as well; in a
        real sandbox the worker creates it.
        """
        if principal in {Principal.WORKER, Principal.JOINER}:
            return self._sandbox_credentials(principal, project, sandbox, life)
        files = CredentialFiles(self.identity, lambda name: self.home / "creds" / f"{name}.creds")
        return files.ensure(principal, project)

    def bus(
        self, principal: Principal, *, project: str = DEFAULT_PROJECT, sandbox: str = "", **options: Any
    ) -> AbstractAsyncContextManager[Bus]:
        """A connection as this principal; `options` are passed to `Bus.open`."""
        path = self.credentials(principal, project=project, sandbox=sandbox)
        holder = bearer(path.read_text())
        if principal in SERVICES:
            options = {"api": api_of(principal)} | options
        return self._open(path, holder.name, holder.inbox, **options)

    def settings(self, principal: Principal, *, project: str = DEFAULT_PROJECT, **values: Any) -> Settings:
        """The settings of a service or a user of this broker. `values` are further settings."""
        broker_values: dict[str, Any] = {
            "nats_url": self.url,
            "home": self.home,
            "project": project,
            "credentials": self.credentials(principal, project=project),
        }
        if principal is Principal.SPAWNER:
            broker_values["identity_dir"] = self.spawner_identity
        return Settings(**(broker_values | values))

    def minter(self) -> Minter:
        """The minter with the spawner's keys."""
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
        options.setdefault("connect_timeout", 20)
        identity = ConnectionIdentity.file(credentials)
        async with Bus.open(self.url, name=name, identity=identity, inbox=inbox, **options) as bus:
            yield bus

    def _sandbox_credentials(self, principal: Principal, project: str, sandbox: str, life: float) -> Path:
        path = self.home / "creds" / f"{sandbox}-{principal}.creds"
        if principal is Principal.JOINER:
            text = self.minter().mint_joiner(project, sandbox, life)
        else:
            key = Key.new(KeyKind.USER)
            token, _ = self.minter().mint_worker(project, sandbox, key.public, life)
            text = credentials_text(token, key.seed)
        write_secret(path, text)
        return path
