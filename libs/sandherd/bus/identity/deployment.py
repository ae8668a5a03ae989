"""Creates the keys, credentials and configuration of a deployment in one folder. Idempotent.

    identity/root       keys of the operator and the accounts: only for set-up, never deployed
    identity/broker     the accounts' JWTs, not secret
    identity/spawner    the spawner's signing keys
    creds/<name>        `nats.creds` of a service, of the provisioner, of the operator, or of a project's client
    creds/store-guard   `nats.creds` to publish the probe, `watcher.creds` to request a server's health
    nats                the configuration of nats-server, not secret
    database            a password for a Postgres that is installed with the deployment

Each part of a deployment gets only its own folders.
"""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.auth.setup_permissions import SetupOutcome
from sandherd.bus.identity.credential_files import CredentialFiles
from sandherd.bus.identity.credentials import write_secret
from sandherd.bus.identity.material import BrokerTokens, HerdIdentity
from sandherd.bus.identity.server_config import LIMITS, WEBSOCKET_LIMITS, operator_mode, storage_config
from sandherd.contracts.subjects import Principal
from sandherd.private_files import make_directory, write_file

CREDENTIALS: Final = "nats.creds"
_DATABASE_NAME: Final = "sandherd"
_CLIENT_PREFIX: Final = "client-"
_FILE_MODE: Final = 0o644
_DIRECTORY_MODE: Final = 0o755


@dataclass(frozen=True, kw_only=True)
class Ports:
    """The ports of nats-server: for NATS, for NATS over websockets, and for monitoring."""

    nats: int = 4222
    websocket: int = 8080
    monitor: int = 8222


class Deployment:
    """The folder of one deployment. `data` is where its nats-server stores its files."""

    def __init__(self, directory: Path, *, data: str = "/data", ports: Ports | None = None) -> None:
        self.directory = directory
        self.identity = HerdIdentity(directory / "identity")
        self._data = data
        self._ports = ports or Ports()

    def make(self, projects: Iterable[str], now: int, *, changes: bool = False) -> dict[str, SetupOutcome]:
        """Create missing files, and update the permissions to those of this version. `now` is a Unix second.

        The provisioner's credential is valid for an hour; with `changes` it may also change existing streams. Returns
        what was done, by folder. Raises `OSError`, `UnsafeNameError`, and `ValueError` for an invalid key.
        """
        before = self._content()
        make_directory(self.directory)
        self.identity.create(now)
        self._make_credentials(projects, now, changes=changes)
        self._make_nats(self.identity.tokens(None, now))
        self._make_password()
        return outcomes_by_folder(before, self._content())

    def _make_credentials(self, projects: Iterable[str], now: int, *, changes: bool) -> None:
        files = CredentialFiles(
            self.identity,
            lambda name: self.directory / "creds" / name / CREDENTIALS,
            lambda: datetime.fromtimestamp(now, UTC),
        )
        for principal in (*SERVICES, Principal.OPERATOR):
            files.ensure(principal, "")
        existing_projects = {
            folder.name.removeprefix(_CLIENT_PREFIX) for folder in (self.directory / "creds").glob(f"{_CLIENT_PREFIX}*")
        }
        for project in sorted(existing_projects | set(projects)):
            files.ensure(Principal.CLIENT, project)
        files.ensure_provisioner(changes=changes)
        files.ensure_store_guard()

    def _make_nats(self, tokens: BrokerTokens) -> None:
        folder = self.directory / "nats"
        _write_public_file(folder / "accounts.json", operator_mode(tokens))
        # Values for the Helm chart of NATS. They are a file, because they are too long for a command's argument.
        _write_public_file(folder / "values.json", {"config": {"merge": operator_mode(tokens)}})
        config = {
            "server_name": "sandherd",
            "port": self._ports.nats,
            # Sandboxes must not reach the monitoring, which shows all connections and their subjects to anyone.
            "http": f"127.0.0.1:{self._ports.monitor}",
            # Clients outside this host need TLS, by a proxy in front of this port, or configured here.
            "websocket": {"port": self._ports.websocket, "no_tls": True, **WEBSOCKET_LIMITS},
            **operator_mode(tokens),
            **storage_config(self._data, "jetstream"),
            **LIMITS,
        }
        _write_public_file(folder / "nats.conf", config)

    def _make_password(self) -> None:
        folder = self.directory / "database"
        if not (folder / "password").exists():
            write_secret(folder / "password", secrets.token_urlsafe(32))
        password = (folder / "password").read_text().strip()
        _ensure_secret(folder / "pgpass", f"*:*:*:{_DATABASE_NAME}:{password}\n")

    def _content(self) -> dict[Path, bytes]:
        files = self.directory.rglob("*") if self.directory.is_dir() else ()
        return {file.relative_to(self.directory): file.read_bytes() for file in files if file.is_file()}


def outcomes_by_folder(before: Mapping[Path, bytes], after: Mapping[Path, bytes]) -> dict[str, SetupOutcome]:
    """What set-up has done with each folder, from the contents of its files before and after."""
    outcomes: dict[str, SetupOutcome] = {}
    for folder in sorted({str(path.parent) for path in after}):
        files = [path for path in after if str(path.parent) == folder]
        new = all(path not in before for path in files)
        same = all(before.get(path) == after[path] for path in files)
        outcomes[folder] = SetupOutcome.CREATED if new else SetupOutcome.UNCHANGED if same else SetupOutcome.CHANGED
    return outcomes


def _write_public_file(path: Path, content: Mapping[str, object]) -> None:
    """Write a file without secrets that the broker's Unix user can read, as JSON, which nats-server accepts."""
    make_directory(path.parent, _DIRECTORY_MODE)
    path.parent.chmod(_DIRECTORY_MODE)
    write_file(path, json.dumps(content, indent=2) + "\n", _FILE_MODE)


def _ensure_secret(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        write_secret(path, text)
