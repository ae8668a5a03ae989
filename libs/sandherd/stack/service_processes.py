"""The services as processes: the program of each, and its environment."""

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

_GRACE: Final = 20.0
_UMASK: Final = 0o022
"""What agents inherit from the spawner, whatever the umask of `up`. Services set the modes of their own files."""
_OWN_VARIABLES: Final = frozenset({"NATS_URL", "SANDHERD_CREDENTIALS", "SANDHERD_IDENTITY_DIR", "SANDHERD_HTTP_PORT"})


@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """The configuration that the services of one stack share."""

    home: Path
    nats_url: str
    database_url: str
    credentials: Mapping[str, Path]
    identity: Path


class ServiceProcess:
    """One service. It is ready when its `/readyz` reports it; starting it does not wait for that."""

    def __init__(self, service: Principal, place: ServiceContext, outer: Mapping[str, str], *, linked: bool) -> None:
        self.name = service.value
        self._port_file = place.home / "run" / f"{service}.port"
        environment = environment_of(service, place, outer) | {"SANDHERD_HTTP_PORT_FILE": str(self._port_file)}
        if service is Principal.GATEWAY:
            environment["SANDHERD_GATEWAY_PORT_FILE"] = str(Home(place.home).api_port)
        command = ChildCommand(
            arguments=[find_program(self.name)],
            log=place.home / "logs" / f"{service}.log",
            environment=environment,
            umask=_UMASK,
            linked=linked,
        )
        self.child = ChildProcess(command)

    async def start(self) -> None:
        """Start it."""
        self._port_file.unlink(missing_ok=True)
        self.child.start()

    async def stop(self) -> None:
        """Let it finish its work and end; kill it after the grace period."""
        await self.child.stop(_GRACE)

    @property
    def http(self) -> str | None:
        """The address of its HTTP server, once it is known."""
        try:
            port = self._port_file.read_text().strip()
        except FileNotFoundError:
            return None
        return f"http://127.0.0.1:{port}" if port else None


def environment_of(service: Principal, place: ServiceContext, outer: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service: the settings that `up` was called with, and the addresses of its own stack.

    Only the spawner gets the directory of the signing keys, and only the services of this stack get its database.
    """
    own = {
        "NATS_URL": place.nats_url,
        "DATABASE_URL": place.database_url,
        "SANDHERD_CREDENTIALS": str(place.credentials[service.value]),
        "SANDHERD_HOME": str(place.home),
    }
    if service is Principal.SPAWNER:
        own["SANDHERD_IDENTITY_DIR"] = str(place.identity)
    if service is Principal.EVENT_INGEST and not _names_artifact_store(outer):
        own["SANDHERD_ARTIFACT_STORE"] = str(Home(place.home).artifacts.absolute())
    return {name: value for name, value in outer.items() if name not in _OWN_VARIABLES} | own


def _names_artifact_store(outer: Mapping[str, str]) -> bool:
    from sandherd.settings import load  # `sandherd status` does not need it

    try:
        return load(environ=outer).settings.artifact_store is not None
    except ContractError:
        return True  # no service starts with such settings, and each states why


def find_program(service: str) -> str:
    """A service's program, beside the Python that runs us or on PATH. Raises `FileNotFoundError`."""
    name = f"sandherd-{service}"
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name} is not installed: `make install`, or pip install {name}")
    return found


def check_runtimes(settings: "Settings") -> None:
    """Raise `ContractError` for a runtime that is not installed: the spawner would end at each start.

    Services of another environment (`find_program`) may have other runtimes; if the spawner is not installed in this
    one, its names are not known here.
    """
    from sandherd.plugins import RUNTIMES, installed, unknown  # with contracts that `sandherd status` does not need

    plugins = installed(RUNTIMES)
    if plugins and (missing := unknown(settings.runtimes_used, plugins)):
        raise ContractError(
            Code.INVALID_FIELD, f"{missing} (settings `runtime`, `runtimes` and `profiles`)", field="runtime"
        )
