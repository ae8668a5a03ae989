"""A task over TLS: each service, each sandbox and each client connects with a certificate that the broker requires."""

import asyncio
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.identity.deployment import CREDENTIALS, Deployment, Ports
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.nats import find_binary, free_port
from tests.e2e.line import SANDHERD
from tests.engines.certificates import authority, issue
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

pytestmark = [pytest.mark.timeout(900)]
BROKER_FILES = {"cert": "broker.crt", "key": "broker.key", "ca": "ca.crt"}


class EncryptedHerd:
    """A broker with TLS that commands have set up, and the services as processes."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database, self.port = folder, database, free_port()
        self.herd = folder / "herd"
        self.deployment = Deployment(
            self.herd,
            data=str(folder / "data"),
            ports=Ports(nats=self.port, websocket=free_port(), monitor=free_port()),
        )
        self.children: list[ChildProcess] = []

    def begin(self) -> None:
        """Start the broker, set it up, and start the services."""
        self.deployment.make(["default"], int(time.time()))
        authority(self.folder, "ca")
        for name in ("broker", "sandbox", "client", *SERVICES):
            issue(self.folder, name)
        config = json.loads((self.herd / "nats/nats.conf").read_text())
        files = {f"{kind}_file": str(self.folder / name) for kind, name in BROKER_FILES.items()}
        config["tls"] = {**files, "verify": True, "timeout": 30}
        (self.folder / "tls.conf").write_text(json.dumps(config))
        self._start("nats", [find_binary(), "-c", str(self.folder / "tls.conf")], {})
        done = self.command("provision", "provisioner", "client")
        assert done.returncode == 0, done.stderr
        for name in map(str, SERVICES):
            self._start(name, [str(SANDHERD.with_name(f"sandherd-{name}"))], self._service(name))

    def command(self, words: str, credential: str, certificate: str | None) -> subprocess.CompletedProcess[str]:
        """Run `sandherd …` with this credential and certificate."""
        environ = self._environment(credential, certificate) | {"SANDHERD_HOME": str(self.folder / "user")}
        command = [str(preloaded_sandherd()), *words.split()]
        return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE)

    async def close(self) -> None:
        """End all processes, the broker last."""
        for child in reversed(self.children):
            await child.stop(PATIENCE)

    def _service(self, name: str) -> dict[str, str]:
        own = {f"SANDHERD_SANDBOX_NATS_{key}": value for key, value in self._files("sandbox").items()}
        return self._environment(name, name) | {
            "DATABASE_URL": self.database,
            "SANDHERD_HOME": str(self.folder / "home"),
            "SANDHERD_IDENTITY_DIR": str(self.herd / "identity/spawner"),
            "SANDHERD_HTTP_PORT": "0",
            **own,
        }

    def _environment(self, credential: str, certificate: str | None) -> dict[str, str]:
        files = self._files(certificate) if certificate else {"CA": str(self.folder / "ca.crt")}
        return {
            "PATH": os.environ["PATH"],
            "NATS_URL": f"tls://127.0.0.1:{self.port}",
            "SANDHERD_CREDENTIALS": str(self.herd / "creds" / credential / CREDENTIALS),
            **{f"NATS_{key}": value for key, value in files.items()},
        }

    def _files(self, certificate: str) -> dict[str, str]:
        suffixes = {"CERT": f"{certificate}.crt", "KEY": f"{certificate}.key", "CA": "ca.crt"}
        return {key: str(self.folder / name) for key, name in suffixes.items()}

    def _start(self, name: str, arguments: list[str], environ: dict[str, str]) -> None:
        log = self.folder / f"{name}.log"
        child = ChildProcess(ChildCommand(arguments=arguments, log=log, environment=environ))
        child.start()
        self.children.append(child)


@pytest.fixture
async def encrypted(own_directory: Path, postgres: str) -> AsyncIterator[EncryptedHerd]:
    found = EncryptedHerd(own_directory, postgres)
    try:
        await asyncio.to_thread(found.begin)
        yield found
    finally:
        await found.close()


async def test_task_completes_over_tls(encrypted: EncryptedHerd) -> None:
    """A task runs from `run` to its audit; the broker refuses a client without a certificate."""
    ran = await asyncio.to_thread(encrypted.command, "run hello -- echo hello", "client-default", "client")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "task.completed" in ran.stdout
    listed = await asyncio.to_thread(encrypted.command, "tasks list -o json", "client-default", "client")
    assert [one["state"] for one in json.loads(listed.stdout)["tasks"]] == ["completed"]
    refused = await asyncio.to_thread(encrypted.command, "tasks list", "client-default", None)
    assert refused.returncode == 1
    assert "no TLS connection" in refused.stderr
