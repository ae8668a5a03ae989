"""The log that a runtime has of a sandbox, requested by its project, another one, and a subscriber."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import BusError, RefusedError
from sandherd.client import Context, Herd
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import MAX_LOG_BYTES, GetRuntimeLogs, RuntimeLog
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE


@pytest.fixture
async def sandbox(spawner: Callable[..., Service], person: Any) -> AsyncIterator[str]:
    """A running sandbox of project p1, with a log of its worker."""
    async with spawner().running():
        name = await person.create()
        await person.sandbox_is(name, "running")
        yield name


def log_file(home: Path, sandbox: str) -> Path:
    return home / "sandboxes" / sandbox / "run" / "0" / "log"


async def ask(person: Any, sandbox: str, **which: Any) -> RuntimeLog:
    found: RuntimeLog = await person.bus.ask(GetRuntimeLogs(sandbox=sandbox, **which), "p1", timeout=PATIENCE)
    return found


async def test_owner_reads_the_last_lines_of_its_sandbox(sandbox: str, person: Any, home: Path) -> None:
    """An owner reads what the worker has written, limited to the requested lines and bytes."""
    with log_file(home, sandbox).open("ab") as log:
        log.write(b"the last but one\nthe last\n")
    found = await ask(person, sandbox, lines=2)
    assert (found.data, found.size, found.truncated) == (b"the last but one\nthe last\n", 26, False)
    cut = await ask(person, sandbox, lines=2, max_bytes=5)
    assert (cut.data, cut.truncated) == (b"last\n", True)


async def test_long_log_is_read_in_pieces_and_limited(sandbox: str, herd: Broker, home: Path) -> None:
    """A program gets the last MiB of a long log in pieces, and the fact that there is more."""
    lines = b"".join(b"%07d %s\n" % (number, b"x" * 3000) for number in range(1000))
    with log_file(home, sandbox).open("ab") as log:
        log.write(lines)
    async with Herd.connect(herd_context(herd, "p1"), patience=PATIENCE) as client:
        text, truncated = await client.runtime_logs(sandbox, lines=1000)
    assert truncated
    assert text.encode() == lines[-MAX_LOG_BYTES:]


def herd_context(herd: Broker, project: str) -> Context:
    credentials = herd.credentials(Principal.CLIENT, project=project)
    return Context(nats_url=herd.url, credentials=credentials, project=project, home=herd.home)


async def test_other_projects_and_subscribers_can_not_read_it(sandbox: str, herd: Broker) -> None:
    """Another project's client finds no such sandbox; the broker lets neither it nor a subscriber request p1's log."""
    request = GetRuntimeLogs(sandbox=sandbox)
    async with herd.bus(Principal.CLIENT, project="p2") as stranger:
        with pytest.raises(RefusedError) as refused:
            await stranger.ask(request, "p2", timeout=PATIENCE)
        assert refused.value.problem.code is Code.NOT_FOUND
        with pytest.raises(BusError):
            await stranger.ask(request, "p1", timeout=1)
    async with herd.bus(Principal.SUBSCRIBER, project="p1") as reader:
        with pytest.raises(BusError):
            await reader.ask(request, "p1", timeout=1)


async def test_log_of_what_was_removed_is_not_found(sandbox: str, person: Any, home: Path) -> None:
    """The error for a removed log names what is stored of its sandbox."""
    log_file(home, sandbox).unlink()
    with pytest.raises(RefusedError) as refused:
        await ask(person, sandbox)
    assert refused.value.problem.code is Code.NOT_FOUND
    assert f"read the trajectory of {sandbox}" in str(refused.value.problem.remedy)


async def test_log_of_an_ended_sandbox_is_not_found(sandbox: str, person: Any) -> None:
    """A log that was deleted with its ended sandbox is not found, which is no error of the service."""
    await person.command(TerminateSandbox(sandbox=sandbox, reason="done"), sandbox)
    await person.all_gone()
    with pytest.raises(RefusedError) as refused:
        await ask(person, sandbox)
    assert refused.value.problem.code is Code.NOT_FOUND
