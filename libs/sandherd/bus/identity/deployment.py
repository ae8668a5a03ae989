"""What a deployment needs and nothing else, made in one folder, as often as one likes.

    identity/root       keys of the operator and the accounts: they stay with whoever sets up
    identity/broker     the accounts' tokens, nothing secret
    identity/spawner    the spawner's signing keys
    creds/<name>        `nats.creds` of a service, of the provisioner, of the operator, of a project's client
    creds/store-guard   `nats.creds` to write the probe, `watcher.creds` to ask for a server's health
    nats                what a nats-server is started with, nothing secret
    database            a password for a Postgres that is set up with it

Each part of a deployment is given its own folders, and no other's.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sandherd.bus.identity.credential_files import CredentialFiles
from sandherd.bus.identity.credentials import write_secret
from sandherd.bus.identity.material import BrokerTokens, Identity
from sandherd.bus.identity.serving import LIMITS, keeping, operator_mode
from sandherd.bus.permissions import SERVICES
from sandherd.bus.setup_permissions import Did
from sandherd.contracts.subjects import Principal
from sandherd.private_files import make_directory, write_file

CREDENTIALS: Final = "nats.creds"
_DATABASE: Final = "sandherd"
_CLIENT: Final = "client-"
_READABLE: Final = 0o644
_READABLE_DIRECTORY: Final = 0o755


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the server listens, for NATS, for NATS over websockets, and for those who look after it."""

    nats: int = 4222
    websocket: int = 8080
    monitor: int = 8222


class Deployment:
    """The folder of one deployment. `data` is where its nats-server keeps its files."""

    def __init__(self, directory: Path, *, data: str = "/data", ports: Ports | None = None) -> None:
        self.directory = directory
        self.identity = Identity(directory / "identity")
        self._data = data
        self._ports = ports or Ports()

    def make(self, projects: Iterable[str], now: int, *, changes: bool = False) -> dict[str, Did]:
        """Make what is not there, and bring rights up to this version's. `now` is the Unix second.

        The provisioner's credential is accepted for an hour; with `changes` it may change streams that exist.
        Returns what was done, by folder. Raises `OSError`, `UnsafeNameError`, and `ValueError` for a key that is none.
        """
        before = self._content()
        make_directory(self.directory)
        self.identity.create(now)
        self._make_credentials(projects, now, changes=changes)
        self._make_nats(self.identity.tokens(None, now))
        self._make_password()
        return compared(before, self._content())

    def _make_credentials(self, projects: Iterable[str], now: int, *, changes: bool) -> None:
        files = CredentialFiles(
            self.identity,
            lambda name: self.directory / "creds" / name / CREDENTIALS,
            lambda: datetime.fromtimestamp(now, UTC),
        )
        for principal in (*SERVICES, Principal.OPERATOR):
            files.keep(principal, "")
        known = {folder.name.removeprefix(_CLIENT) for folder in (self.directory / "creds").glob(f"{_CLIENT}*")}
        for project in sorted(known | set(projects)):
            files.keep(Principal.CLIENT, project)
        files.keep_provisioner(changes=changes)
        files.keep_store_guard()

    def _make_nats(self, tokens: BrokerTokens) -> None:
        folder = self.directory / "nats"
        _publish(folder / "accounts.json", operator_mode(tokens))
        config = {
            "server_name": "sandherd",
            "port": self._ports.nats,
            # It tells everybody who asks of every connection and its subjects: no business of a sandbox beside it.
            "http": f"127.0.0.1:{self._ports.monitor}",
            # Whoever lets others in from outside ends TLS before it, or sets it here.
            "websocket": {"port": self._ports.websocket, "no_tls": True},
            **operator_mode(tokens),
            **keeping(self._data, "jetstream"),
            **LIMITS,
        }
        _publish(folder / "nats.conf", config)

    def _make_password(self) -> None:
        folder = self.directory / "database"
        if not (folder / "password").exists():
            write_secret(folder / "password", secrets.token_urlsafe(32))
        password = (folder / "password").read_text().strip()
        _keep_secret(folder / "pgpass", f"*:*:*:{_DATABASE}:{password}\n")

    def _content(self) -> dict[Path, bytes]:
        files = self.directory.rglob("*") if self.directory.is_dir() else ()
        return {file.relative_to(self.directory): file.read_bytes() for file in files if file.is_file()}


def compared(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> dict[str, Did]:
    """What became of each folder of files."""
    found: dict[str, Did] = {}
    for folder in sorted({str(path.parent) for path in after}):
        files = [path for path in after if str(path.parent) == folder]
        new = all(path not in before for path in files)
        same = all(before.get(path) == after[path] for path in files)
        found[folder] = Did.MADE if new else Did.KEPT if same else Did.CHANGED
    return found


def _publish(path: Path, content: Mapping[str, object]) -> None:
    """Write what is no secret where the broker's own user can read it; NATS's configuration language reads JSON."""
    make_directory(path.parent, _READABLE_DIRECTORY)
    path.parent.chmod(_READABLE_DIRECTORY)
    write_file(path, json.dumps(content, indent=2) + "\n", _READABLE)


def _keep_secret(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_secret(path, text)
