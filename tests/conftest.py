"""Fixtures and hooks of all tests: above all a real broker (`herd`) and a real database (`postgres`) for each test."""

import asyncio
import gc
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
import structlog

from event_ingest.migrator import migrate
from sandherd.stack import nats
from sandherd.stack.broker import Broker
from sandherd.stack.postgres import PostgresServer
from sandherd.telemetry import logs
from tests import preloaded_cli, shared_forks
from tests.databases import drop_database
from tests.drivers import forked_drivers
from tests.engines.docker import Engine as DockerEngine
from tests.grouping import ByGroup, start_order
from tests.left_out_tests import mark_left_out
from tests.preloaded_cli import preloaded_sandherd
from tests.run_lifetime import Lifetime, begin
from tests.run_reports import CpuAccounting, RunReports
from tests.shared_broker import own_broker, shared_broker

__all__ = ["shared_broker"]

TEMPLATE = "template_history"
BROKER_PORTS = range(12_000, 20_000)
"""Below the ports of the model servers (`tests/models/ports.py`) and below those that the kernel assigns."""

# Images often set it; each of the thousands of processes that tests start would then compile all that it loads.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Servers written in Go live for a second in a test: collecting garbage is a tenth of what a broker costs there.
os.environ.setdefault("GOGC", "400")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByGroup | None:
    """Distribute the tests with `ByGroup` when several processes run them."""
    return ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--reports FOLDER`, which names the folder for failures and the slowest tests."""
    parser.addoption(
        "--reports", metavar="FOLDER", help="write failed.txt, slowest.txt and cpu.txt of this run to FOLDER"
    )


RUN = pytest.StashKey[Lifetime | None]()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Begin the run before any code looks up the folder for temporary files."""
    config.stash[RUN] = begin(config)
    if (folder := config.getoption("reports")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunReports(Path(folder)))
    if folder:
        config.pluginmanager.register(CpuAccounting())
    _keep_no_logger()
    _log_cheaply()
    _use_own_ports(config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the run, and everything that its tests have left."""
    preloaded_cli.end()
    forked_drivers.end()
    shared_forks.end()
    lifetime = config.stash.get(RUN, None)
    for line in lifetime.end() if lifetime else ():
        print(f"left by a test and ended: {line}", file=sys.stderr)


def _use_own_ports(config: pytest.Config) -> None:
    """Give each test process its own range of broker ports; each choice takes the next part of that range.

    Otherwise a server that is down for a moment, or that does not listen yet, could lose its port to another test, or
    to another port of its own configuration: a chosen port is not in use before the server starts.
    """
    if (worker := getattr(config, "workerinput", None)) is not None:
        size = len(BROKER_PORTS) // worker["workercount"]
        first = BROKER_PORTS.start + int(worker["workerid"].removeprefix("gw")) * size
        begins = range(first, first + size - nats._MAX_PROBED_PORTS + 1, nats._MAX_PROBED_PORTS)
        parts = itertools.cycle([range(begin, begin + nats._MAX_PROBED_PORTS) for begin in begins])
        nats._candidate_ports = lambda: next(parts)


def _keep_no_logger() -> None:
    """Prevent loggers from caching their first configuration: what one test configures would affect all later tests."""
    configure = structlog.configure

    def configure_for_now(**options: Any) -> None:
        configure(**{**options, "cache_logger_on_first_use": False})

    setattr(structlog, "configure", configure_for_now)  # noqa: B010  # mypy lets no function be assigned


def _log_cheaply() -> None:
    """Log as Sandherd's programs do: structlog's default formats every message that the log receives, for a terminal.

    Messages go to the original stderr of the process: in the stderr of a test they would mix with a command's output.
    """
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.PrintLoggerFactory(sys.__stderr__),
    )


@pytest.fixture(autouse=True)
def own_logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo a test's changes to the logging at its end. Logs are written, as if a program had configured them."""
    monkeypatch.setattr(logs._Logger, "silent", False)  # programs call `configure`
    before = structlog.get_config()
    yield
    structlog.configure(**before)
    structlog.contextvars.clear_contextvars()


def pytest_collection() -> None:
    """Pause garbage collection: what is loaded during collection stays until the end, and need not be examined."""
    gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of `make soak` before pytest selects by marks; with several processes, begin with the longest."""
    mark_left_out(items)
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: start_order(item.nodeid))


def pytest_collection_finish() -> None:
    """Exclude what is loaded by now from garbage collection for good, and resume it for the rest."""
    gc.freeze()
    gc.enable()
    shared_forks.share()


@pytest.fixture(scope="session")
def provisioned() -> Iterator[Path]:
    """The files of a broker that was provisioned and then stopped normally."""
    directory = Path(tempfile.mkdtemp(prefix="provisioned-"))
    try:
        asyncio.run(_provision(directory))
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _provision(directory: Path) -> None:
    broker = Broker(directory)
    await broker.start()
    await broker.stop()


@pytest.fixture
async def herd(provisioned: Path) -> AsyncIterator[Broker]:
    """A nats-server in operator mode, provisioned, with credentials for every principal; it takes about 0.1 s.

    It starts on a copy of one provisioned broker: creating keys and streams takes twice as long.
    """
    async with own_broker(provisioned) as broker:
        yield broker


@pytest.fixture
def own_directory() -> Iterator[Path]:
    """A directory that Postgres can use when root runs the tests: pytest's own ones are closed to other users."""
    directory = Path(tempfile.mkdtemp(prefix="own-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def sandherd_program() -> Path:
    """The command `sandherd` as a fork of a process with its modules: for tests whose claim is not a cold start."""
    return preloaded_sandherd()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One Postgres 18 for the whole run, with a template that has event-ingest's migrations."""
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    server = PostgresServer(directory, durable=False)
    try:
        asyncio.run(_start_with_template(server))
        yield server
        asyncio.run(server.stop())
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
async def postgres(postgres_server: PostgresServer) -> AsyncIterator[str]:
    """The URL of a new database for this test, with event-ingest's tables and no rows."""
    name = f"test_{uuid4().hex}"
    await postgres_server.create_database(name, TEMPLATE)
    yield postgres_server.url(name)
    await drop_database(postgres_server, name)


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[DockerEngine]:
    """A Docker Engine for the whole run: all tests that use it are in one group (`docker`), and so in one process.

    Where none can be started, its tests fail with a message of one line.
    """
    with ExitStack() as stack:
        try:
            engine = stack.enter_context(DockerEngine())
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            pytest.fail(f"no Docker Engine can be started here: {error}", pytrace=False)
        yield engine


async def _start_with_template(server: PostgresServer) -> None:
    await server.start()
    await server.create_database(TEMPLATE)
    await _migrate(server.url(TEMPLATE))


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await migrate(connection)
    finally:
        await connection.close()
