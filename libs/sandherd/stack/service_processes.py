"""Runs the services as processes, with their programs and environments."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.subjects import Principal
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.home import Home

if TYPE_CHECKING:
    from sandherd.settings import Settings

_GRACE_SECONDS: Final = 20.0
"""How long a service may take to end after SIGTERM."""
_UMASK: Final = 0o022
"""The umask of services, whatever the umask of `up`: agents inherit it. Services set the modes of their own files."""
_STACK_VARIABLES: Final = frozenset({"NATS_URL", "SANDHERD_CREDENTIALS", "SANDHERD_IDENTITY_DIR", "SANDHERD_HTTP_PORT"})
"""Variables that services do not get from the environment of `up`: the stack sets them, or they must not be set."""


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """The configuration that the services of one stack share."""

    home: Path
    nats_url: str
    database_url: str
    credentials: Mapping[str, Path]
    identity: Path


class ServiceProcess:
    """The process of one service. `start` does not wait until it is ready: `/readyz` reports that."""

    def __init__(self, service: Principal, context: ServiceContext, outer: Mapping[str, str], *, linked: bool) -> None:
        self.name = service.value
        self._port_file = context.home / "run" / f"{service}.port"
        environment = environment_of(service, context, outer) | {"SANDHERD_HTTP_PORT_FILE": str(self._port_file)}
        if service is Principal.GATEWAY:
            environment["SANDHERD_GATEWAY_PORT_FILE"] = str(Home(context.home).api_port)
        command = ChildCommand(
            arguments=[find_program(self.name)],
            log=context.home / "logs" / f"{service}.log",
            environment=environment,
            umask=_UMASK,
            linked=linked,
        )
        self.child = ChildProcess(command)

    async def start(self) -> None:
        """Start the service."""
        self._port_file.unlink(missing_ok=True)
        self.child.start()

    async def stop(self) -> None:
        """Stop the service gracefully (SIGTERM), and kill it after the grace period."""
        await self.child.stop(_GRACE_SECONDS)

    @property
    def http(self) -> str | None:
        """The URL of the service's HTTP server; None while it is not known."""
        try:
            port = self._port_file.read_text().strip()
        except FileNotFoundError:
            return None
        return f"http://127.0.0.1:{port}" if port else None


def environment_of(service: Principal, context: ServiceContext, outer: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service: `outer`, which is that of `up`, and the addresses and credential of this stack.

    Only the spawner gets the directory of the signing keys.
    """
    stack_values = {
        "NATS_URL": context.nats_url,
        "DATABASE_URL": context.database_url,
        "SANDHERD_CREDENTIALS": str(context.credentials[service.value]),
        "SANDHERD_HOME": str(context.home),
    }
    if service is Principal.SPAWNER:
        stack_values["SANDHERD_IDENTITY_DIR"] = str(context.identity)
    if service is Principal.EVENT_INGEST and not _names_artifact_store(outer):
        stack_values["SANDHERD_ARTIFACT_STORE"] = str(Home(context.home).artifacts.absolute())
    return {name: value for name, value in outer.items() if name not in _STACK_VARIABLES} | stack_values


def _names_artifact_store(outer: Mapping[str, str]) -> bool:
    from sandherd.settings import load  # `sandherd status` does not need it

    try:
        return load(environ=outer).settings.artifact_store is not None
    except ContractError:
        return True  # no service starts with such settings, and each states why


def find_program(service: str) -> str:
    """The path of a service's program, in the directory of our Python or on PATH. Raises `FileNotFoundError`."""
    name = f"sandherd-{service}"
    beside = Path(sys.executable).parent / name
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        raise FileNotFoundError(f"{name} is not installed: `make install`, or pip install {name}")
    return program


def check_runtimes(settings: "Settings") -> None:
    """Raise `ContractError` for a runtime that is not installed: with it, the spawner would end at each start.

    If the spawner is not installed in this Python environment, its runtimes are unknown here, and nothing is checked.
    """
    from sandherd.plugins import RUNTIMES, installed, unknown  # imports contracts that `sandherd status` does not need

    plugins = installed(RUNTIMES)
    if plugins and (missing := unknown(settings.runtimes_used, plugins)):
        raise ContractError(
            Code.INVALID_FIELD, f"{missing} (settings `runtime`, `runtimes` and `profiles`)", field="runtime"
        )
