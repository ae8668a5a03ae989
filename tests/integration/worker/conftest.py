"""One sandbox without a spawner: a real worker process, a real broker, and a desk that issues credentials."""

import asyncio
import hashlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import nats.js.errors
import psutil
import pytest

from sandherd.bus.connection import Bus, ConnectionIdentity, NoResponderError, RequestTimeoutError
from sandherd.bus.identity import Registrar
from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.inbox_messages import InboxMessage, Receipt
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    INLINE_BYTES,
    ExecState,
    Request,
    WorkerExec,
    WorkerExecStatus,
)
from sandherd.contracts.subjects import ARTIFACT, DELIVER, OUTPUT, Principal
from sandherd.stack.broker import Broker
from sandherd_worker.processes import SANDBOX_VARIABLE
from tests.drivers.forked_drivers import Fork, start_worker
from tests.integration.worker.desk import Desk
from tests.patience import PATIENCE
from tests.polling import eventually as wait_until
from tests.shared_broker import herd

__all__ = ["herd"]

PROJECT = "default"


class Sandbox:
    """The directories of one sandbox, and its worker."""

    def __init__(self, herd: Broker, desk: Desk, reader: Bus, home: Path, name: str) -> None:
        self.herd, self.desk, self.reader, self.name = herd, desk, reader, name
        self.work, self.state = home / "work", home / "state"
        self.group = home / "group"
        self.log = home / "worker.log"
        self.work.mkdir(parents=True)
        self.state.mkdir()
        # Its own counter, as a runtime shows it: the machine's also counts the memory kills of other tests.
        self.group.mkdir()
        (self.group / "memory.events").write_text("oom_kill 0\n")
        self.process: asyncio.subprocess.Process | Fork | None = None
        self.cold = False
        """Whether workers are new processes, for tests whose claim is the start; otherwise they are forks."""
        self.environment: dict[str, str] = {}
        self._stored: dict[str, tuple[int, list[tuple[str, bytes, dict[str, str]]]]] = {}
        """By subject, the last sequence that was read, and the messages so far."""
        self.within: list[str] = []
        """The command that starts the worker, if it is more than its interpreter."""

    def task(self, script: str, **fields: Any) -> None:
        """Make this shell script the agent."""
        self.program(["/bin/sh", "-c", script], **fields)

    def python(self, script: str, **fields: Any) -> None:
        """Make this Python program the agent."""
        self.program([sys.executable, "-c", script], **fields)

    def bare(self, **fields: Any) -> None:
        """Have no task."""
        self.environment["SANDHERD_TASK_ID"] = ""
        (self.state / "task.json").write_text(json.dumps(fields))

    async def ask(self, question: Request[Any], patience: float = PATIENCE) -> Any:
        """Send a request to its worker, repeatedly until there is a reply, as the spawner does."""

        async def once() -> Any:
            try:
                return await self.desk.bus.ask(question, PROJECT, sandbox=self.name, timeout=10)
            except (NoResponderError, RequestTimeoutError):
                return None

        return await wait_until(once, "an answer", patience)

    async def exec(self, *command: str, **fields: Any) -> ExecState:
        """Run a command to its end; the reply has its whole output."""
        name = new_name("exc")
        await self.ask(WorkerExec(exec=name, command=list(command), **fields))
        return await self.completed(name)

    async def completed(self, name: str) -> ExecState:
        """Wait for the end of a command that was started; the reply has its whole output."""
        state: ExecState = await self.ask(WorkerExecStatus(exec=name))
        output = list(state.output)
        while not state.complete:
            state = await self.ask(WorkerExecStatus(exec=name, offset=state.next_offset))
            output += state.output
        return state.model_copy(update={"output": output})

    async def put_aside(self, content: bytes, owner: str | None = None) -> ArtifactRef:
        """Store large bytes for an upload, as the spawner does, for the sandbox or, with `owner`, for its task."""
        name, size = new_name("upl"), INLINE_BYTES
        subject = ARTIFACT.fill(project=PROJECT, sandbox=owner or self.name, artifact=name)
        chunks = [content[start : start + size] for start in range(0, len(content), size)]
        for index, chunk in reversed(list(enumerate(chunks))):
            await self.desk.bus.publish_stored(subject, chunk, msg_id=f"{name}-{index}", headers={"Nats-TTL": "3600s"})
        digest = hashlib.sha256(content).hexdigest()
        return ArtifactRef(artifact=name, subject=subject, size=len(content), sha256=digest, chunks=len(chunks))

    async def taken(self, reference: ArtifactRef) -> bytes:
        """The bytes of an artifact in the broker."""
        stored = await self.stored(reference.subject)
        chunks = {int(headers["Nats-Msg-Id"].rpartition("-")[2]): data for _, data, headers in stored}
        return b"".join(chunks[index] for index in range(reference.chunks))

    def program(self, argv: list[str], **fields: Any) -> None:
        spec = {"text": "do it", "harness": {"kind": "command", "argv": argv}, **fields}
        (self.state / "task.json").write_text(json.dumps(spec))

    def variables(self) -> dict[str, str]:
        """The environment that a runtime gives a worker."""
        credentials = self.herd.credentials(Principal.JOINER, project=PROJECT, sandbox=self.name)
        return {
            "PATH": os.environ["PATH"],
            "TMPDIR": tempfile.gettempdir(),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "SANDHERD_PROJECT": PROJECT,
            "SANDHERD_SANDBOX_ID": self.name,
            "SANDHERD_TASK_ID": "task-1",
            "SANDHERD_ATTEMPT": "1",
            "SANDHERD_FENCE": "7",
            "NATS_URL": self.herd.url,
            "SANDHERD_CREDENTIALS": str(credentials),
            "SANDHERD_TASK_FILE": str(self.state / "task.json"),
            "SANDHERD_STATE_DIR": str(self.state),
            "SANDHERD_WORK_DIR": str(self.work),
            "SANDHERD_CGROUP": str(self.group),
            "TRACEPARENT": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            **self.environment,
        }

    async def start(self, *arguments: str, **environment: str) -> Self:
        """Start the worker."""
        variables = {**self.variables(), **environment}
        with self.log.open("ab") as log:
            if not (self.cold or self.within):
                self.process = await start_worker(arguments, variables, self.work, log.fileno())
                return self
            self.process = await asyncio.create_subprocess_exec(
                *self.within,
                sys.executable,
                "-m",
                "sandherd_worker.main",
                *arguments,
                cwd=self.work,
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    async def ended(self) -> int:
        """Wait until the worker has ended; returns its exit status."""
        assert self.process is not None
        try:
            return await asyncio.wait_for(self.process.wait(), PATIENCE)
        except TimeoutError:
            raise AssertionError(f"the worker does not end:\n{self.log.read_text()[-4000:]}") from None

    async def run(self, *arguments: str, **environment: str) -> int:
        """Start the worker and wait for its end."""
        await self.start(*arguments, **environment)
        return await self.ended()

    def signal(self, what: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(what)

    async def stored(self, subject: str) -> list[tuple[str, bytes, dict[str, str]]]:
        """The broker's messages on these subjects, in the order of the stream. Each message is fetched once."""
        sequence, found = self._stored.get(subject, (0, []))
        stream = _stream_of(subject)
        while True:
            try:
                message = await self.reader.js.get_msg(
                    stream, seq=sequence + 1, subject=subject, next=True, direct=True
                )
            except nats.js.errors.NotFoundError:
                return list(found)
            sequence = message.seq or 0
            found.append((message.subject or "", message.data or b"", dict(message.headers or {})))
            self._stored[subject] = sequence, found

    async def events(self, *types: str) -> list[Envelope[Any]]:
        """This sandbox's events in the broker; only of these types, if any are named."""
        stored = await self.stored(f"sandherd.v1.event.{PROJECT}.{self.name}.agent.*")
        events = [read_event(subject, document) for subject, document, _ in stored]
        return [event for event in events if not types or event.type.removeprefix("agent.") in types]

    async def event(self, kind: str) -> Envelope[Any]:
        """Wait for the first event of this type."""

        async def find() -> Envelope[Any] | None:
            return next(iter(await self.events(kind)), None)

        found: Envelope[Any] = await wait_until(find, lambda: f"agent.{kind}; log:\n{self.log.read_text()[-4000:]}")
        return found

    async def output(self) -> str:
        """The terminal output in the broker."""
        subject = OUTPUT.fill(project=PROJECT, sandbox=self.name)
        return b"".join(data for _, data, _ in await self.stored(subject)).decode()

    def processes(self) -> list[psutil.Process]:
        """All its living processes except the worker, also those that have left their session."""
        mark = f"{SANDBOX_VARIABLE}={self.name}".encode()
        worker = self.process.pid if self.process is not None and self.process.returncode is None else None
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (entry / "environ").read_bytes().split(b"\0") and int(entry.name) != worker:
                    found.append(psutil.Process(int(entry.name)))
            except (OSError, psutil.NoSuchProcess):
                continue
        return found

    async def deliver(self, relay: Bus, message: InboxMessage) -> Receipt:
        """Deliver a message as message-relay does, repeatedly until there is a receipt."""
        subject = DELIVER.fill(project=PROJECT, sandbox=self.name)
        document = message.model_copy(update={"sandbox": self.name}).model_dump_json().encode()

        async def once() -> Receipt | None:
            try:
                return Receipt.model_validate_json(await relay.request(subject, document, timeout=2))
            except Exception:  # noqa: BLE001  # not listening yet
                return None

        receipt: Receipt = await wait_until(once, "a receipt")
        return receipt

    async def knock(self, relay: Bus) -> bytes:
        """Probe the worker, repeatedly: while it changes its credential, it does not reply for a moment."""
        subject = DELIVER.fill(project=PROJECT, sandbox=self.name)

        async def once() -> list[bytes] | None:
            try:
                return [await relay.request(subject, b"", timeout=2)]
            except (NoResponderError, RequestTimeoutError):
                return None

        (answer,) = await wait_until(once, "an answer to a knock")
        return bytes(answer)


def _stream_of(subject: str) -> str:
    return {"event": "EVENTS", "output": "OUTPUT", "artifact": "ARTIFACTS"}[subject.split(".")[2]]


@pytest.fixture
async def desk(herd: Broker) -> AsyncIterator[Desk]:
    async with herd.bus(Principal.SPAWNER) as bus:
        desk = Desk(herd, bus)
        await desk.open()
        yield desk


@pytest.fixture
async def sandbox(herd: Broker, desk: Desk, tmp_path: Path) -> AsyncIterator[Sandbox]:
    """One sandbox; at the end its worker and all of its processes are ended."""
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(_reader(herd, tmp_path / "reader.creds"))
        # It has a unique name: a runtime that is tested at the same time ends every process with its sandbox's name.
        sandbox = Sandbox(herd, desk, reader, tmp_path / "sandbox", new_name("sbx"))
        yield sandbox
        if sandbox.process is not None and sandbox.process.returncode is None:
            sandbox.process.kill()
            await sandbox.process.wait()
        for process in sandbox.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()


@asynccontextmanager
async def _reader(herd: Broker, path: Path) -> AsyncIterator[Bus]:
    """A connection that may read every stream."""
    path.write_text(Registrar(herd.identity).mint_stream_admin(3600))
    async with Bus.open(
        herd.url,
        name="reader",
        identity=ConnectionIdentity.file(path),
        inbox="_INBOX_provisioner",
        connect_timeout=PATIENCE,
    ) as bus:
        yield bus


@pytest.fixture
def eventually() -> Callable[..., Awaitable[Any]]:
    """Waits until a condition, plain or awaitable, is true, and returns it."""
    return wait_until
