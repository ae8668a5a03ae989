"""Backs up a local stack to a folder, and restores it to a new home: its keys, its streams and its history.

While it is written, the folder is named DIR.partial.

backup.json, <stream>.snapshot   as written by `admin.backup`
history.dump                     the database, in the format of pg_dump
identity/, creds/                the keys of the herd, and its credentials
"""

import asyncio
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import asyncpg

from sandherd import stack
from sandherd.admin.backup import StreamResult, back_up, restore_streams
from sandherd.admin.backup_manifest import replicas_of
from sandherd.admin.deployment import reading_keys
from sandherd.admin.interruption import interruptible
from sandherd.bus.identity import HerdIdentity
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.private_files import copy_directory, make_directory
from sandherd.progress_steps import OnStep, ignore_step
from sandherd.safe_home import UnsafeHomeError, check_home
from sandherd.stack.maintenance import accepts_size, environment, is_running, postgres_program, release, stores

DUMP: Final = "history.dump"
KEYS: Final = "identity"
ARTIFACTS: Final = "artifacts"
_COPIED_FOLDERS: Final = (KEYS, "creds")
_NEW_HOME_REMEDY: Final = "restore to a new home: `sandherd --home DIR restore …`; existing data is never overwritten"


async def back_up_stack(
    home: Path, folder: Path, *, with_secrets: bool = False, on_step: OnStep = ignore_step
) -> list[StreamResult]:
    """Save a stack to a new folder. A running stack is stopped during the backup; its sandboxes continue.

    Raises `HerdError`, and removes the incomplete folder. If a signal interrupts it, a stack that ran is started again.
    """
    if folder.exists():
        raise HerdError.of(Code.CONFLICT, f"{folder} already exists", remedy="name a new folder")
    if not (home / KEYS).is_dir():
        raise HerdError.of(
            Code.NOT_FOUND, f"there is no stack in {home}", field="home", remedy="name its home with `sandherd --home`"
        )
    with _stack_errors():
        check_home(home)
    with _partial_folder(folder) as partial, _stack_errors(), interruptible():
        if not await is_running(home):
            return await _save_and_rename(home, partial, folder, on_step, with_secrets=with_secrets)
        environ = environment(home)
        try:
            on_step("stopping the services; agents keep working")
            await release(home)
            return await _save_and_rename(home, partial, folder, on_step, with_secrets=with_secrets)
        finally:
            on_step("starting the services again")
            await _start_again(home, environ)


async def _start_again(home: Path, environ: Mapping[str, str] | None) -> None:
    """Start the stack as it was started before. Raises `HerdError` with the command for that if it fails."""
    try:
        await release(home)  # after an interruption the stack may still be ending
        await stack.up(home, environ=environ)
    except (stack.StackFailedError, OSError, asyncio.CancelledError) as error:
        raise HerdError.of(
            Code.UNAVAILABLE,
            f"the stack in {home} was stopped for the backup, and has not started again: {str(error) or 'interrupted'}",
            remedy=f"start it with `sandherd --home {shlex.quote(str(home))} up` and the settings that it had",
        ) from None


@contextmanager
def _partial_folder(folder: Path) -> Iterator[Path]:
    """A context with the folder `FOLDER.partial`, to be renamed when the backup is complete. Raises `HerdError`.

    As a check, the folder is created and removed at the beginning, before the stack is stopped.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    if partial.exists():
        raise HerdError.of(
            Code.CONFLICT, f"{partial} is of a backup that was interrupted, or still runs", remedy="delete it"
        )
    try:
        make_directory(partial)
        partial.rmdir()
    except OSError as error:
        raise HerdError.of(
            Code.REFUSED,
            f"{folder} can't be written: {error.strerror}",
            remedy="name a folder that this user can create",
        ) from None
    try:
        yield partial
    except asyncio.CancelledError:
        raise HerdError.of(
            Code.REFUSED,
            "the backup was interrupted; the stack was started again if it ran",
            remedy="repeat the backup",
        ) from None


async def _save_and_rename(
    home: Path, partial: Path, folder: Path, on_step: OnStep, *, with_secrets: bool
) -> list[StreamResult]:
    results = await _save(home, partial, on_step, with_secrets=with_secrets)
    partial.rename(folder)
    return results


async def _save(home: Path, folder: Path, on_step: OnStep, *, with_secrets: bool) -> list[StreamResult]:
    on_step("starting broker and database")
    async with stores(home) as running:
        context = _context(home, running.broker.url)
        saved = await back_up(context, home / KEYS, folder, with_secrets=with_secrets, on_step=on_step)
        on_step("saving the history")
        try:
            await _run("pg_dump", "--format=custom", f"--file={folder / DUMP}", running.database_url)
            for name in _COPIED_FOLDERS:
                copy_directory(home / name, folder / name)
            await _copy_artifacts(home, folder, on_step)
        except BaseException:  # raised again: an incomplete backup is worse than none
            shutil.rmtree(folder)
            raise
    return [*saved, ("history", "saved"), ("keys", "saved")]


async def restore_stack(
    home: Path, folder: Path, replicas: int | None = None, *, on_step: OnStep = ignore_step
) -> list[StreamResult]:
    """Restore a backup to a new home, or complete an interrupted restore. Raises `HerdError`.

    Streams, history and keys that exist are not overwritten. `replicas` is the number of nats-servers, each of which
    stores everything; by default that of the backup.
    """
    with _stack_errors():
        check_home(home)
    servers = replicas or replicas_of(folder)
    if not accepts_size(servers):
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"a local stack has 1 or 3 nats-servers, not {servers}",
            field="replicas",
            remedy="name one of these numbers with --replicas",
        )
    if any(part.running for part in (await stack.status(home)).parts):
        raise HerdError.of(Code.CONFLICT, f"the stack in {home} is running", remedy="run `sandherd down` first")
    restore_keys(home, folder)
    await _copy_artifacts(folder, home, on_step)
    with _stack_errors():
        on_step("starting broker and database")
        async with stores(home, servers) as running:
            has_history = await _has_history(running.database_url)
            context = _context(home, running.broker.url)
            restored = await restore_streams(context, home / KEYS, folder, servers, on_step=on_step)
            if has_history:
                return [*restored, ("history", "as it was"), ("keys", "as they were")]
            on_step("restoring the history")
            await _run(
                "pg_restore", "--single-transaction", "--no-owner", "--no-acl", f"--dbname={running.database_url}",
                str(folder / DUMP),
            )  # fmt: skip
    return [*restored, ("history", "restored"), ("keys", "restored")]


def has_stack(folder: Path) -> bool:
    """Whether a folder has the backup of a local stack."""
    return (folder / DUMP).is_file() and (folder / KEYS).is_dir()


async def _copy_artifacts(source: Path, target: Path, on_step: OnStep) -> None:
    """Copy the artifact store of a home, if it has one. Stored artifacts never change."""
    if (source / ARTIFACTS).is_dir():
        on_step("copying artifacts")
        copying = asyncio.ensure_future(asyncio.to_thread(copy_directory, source / ARTIFACTS, target / ARTIFACTS))
        try:
            await asyncio.shield(copying)
        except asyncio.CancelledError:  # raised again, when the thread has ended: nothing is written afterwards
            await copying
            raise


def restore_keys(home: Path, folder: Path) -> None:
    """Restore the keys of a herd to a home that has none. Raises `HerdError` if it has keys of another herd."""
    if (home / KEYS).exists():
        with reading_keys(home / KEYS):
            is_same_herd = HerdIdentity(home / KEYS).root_key("operator").public == _operator_key(folder)
        if not is_same_herd:
            raise HerdError.of(
                Code.CONFLICT, f"{home} is the home of another herd", field="home", remedy=_NEW_HOME_REMEDY
            )
        return
    for name in _COPIED_FOLDERS:
        copy_directory(folder / name, home / name)


def _operator_key(folder: Path) -> str:
    with reading_keys(folder / KEYS):
        return HerdIdentity(folder / KEYS).root_key("operator").public


async def _has_history(database: str) -> bool:
    """Whether the history was restored already. A new database has no tables."""
    connection = await asyncpg.connect(database)
    try:
        return bool(await connection.fetchval("select to_regclass('events') is not null"))
    finally:
        await connection.close()


async def _run(program: str, *options: str) -> None:
    """Run a program of Postgres. If it fails, raises `HerdError` with its last line of standard error."""
    command = [postgres_program(program), *options]
    process = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, umask=0o077)
    if process.returncode:
        reason = (process.stderr.strip().splitlines() or [f"status {process.returncode}"])[-1]
        raise HerdError.of(Code.REFUSED, f"{program} failed: {reason}", remedy="fix the cause, and try again")


@contextmanager
def _stack_errors() -> Iterator[None]:
    try:
        yield
    except stack.StackFailedError as error:
        raise HerdError.of(Code.UNAVAILABLE, str(error), remedy=error.remedy) from None
    except UnsafeHomeError as error:
        reason = f"the stack's home can't be used: {error.filename}: {error.strerror}"
        raise HerdError.of(Code.UNAVAILABLE, reason, field="home", remedy=error.remedy) from None


def _context(home: Path, url: str) -> Context:
    return Context(nats_url=url, credentials=None, project="default", home=home)
