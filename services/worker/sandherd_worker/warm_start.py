"""A prestarted worker: it loads the modules that it will need, rehearses a start, and waits for its assignment.

It has no identity and no credential. Until something is written to the pipe, it waits in the kernel.
"""

import json
import os
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Final

BEGIN: Final = "begin"
ENVIRONMENT: Final = "environment.json"
PUBLIC_KEY: Final = "worker.pub"
_MODULES: Final = (
    "concurrent.futures.thread",
    "email.parser",
    "nats.aio.client",
    "sandherd_worker.worker_lifecycle",
    "sandherd_worker.attempt",
    "sandherd_worker.previous_attempt",
    "sandherd_worker.access_server",
    "sandherd_worker.access.commands",
    "sandherd_worker.access.transfers",
    "sandherd_worker.harnesses.command",
    "sandherd_worker.harnesses.driver",
    "sandherd_worker.harnesses.program",
    "sandherd_worker.rehearsal",
    "sandherd_worker.task_inputs",
    "sandherd_worker.ignored_inputs",
)


class WarmError(Exception):
    """The worker can't wait, or got no valid environment. The text gives the cause."""


def load() -> None:
    """Load the modules that a worker will need, and build its validators: both take most of a cold start's time."""
    for name in _MODULES:
        import_module(name)
    _build_validators()


def _build_validators() -> None:
    """Build the validators of the data that a worker reads at its start, and of the events of nearly every task."""
    from sandherd.bus import replies
    from sandherd.contracts import envelope_writer
    from sandherd.contracts.commands import SandboxSpec, TaskSpec
    from sandherd.contracts.events import agent, conversation, tools
    from sandherd.contracts.requests import CredentialGrant, GetCredential
    from sandherd.telemetry import logs

    logs.load()
    for model in (SandboxSpec, TaskSpec, GetCredential, CredentialGrant):
        model.model_rebuild()
    event_models = (
        *(agent.AgentStarted, agent.AgentHeartbeat, agent.AgentTurnStarted, agent.AgentTurnCompleted, agent.AgentUsage),
        *(agent.AgentCompleted, agent.AgentFailed, agent.AgentShutdown, conversation.AgentMessage),
        *(tools.AgentToolUse, tools.AgentToolResult, tools.AgentToolCompleted),
    )
    for event in event_models:
        event.model_rebuild()
    envelope_writer.prepare()
    replies.build_validator(CredentialGrant)


def wait_for_identity(environ: Mapping[str, str]) -> dict[str, str] | None:
    """The environment to run with, once it is written; None if SIGTERM is received first. Raises `WarmError`.

    `environment.json`, an object of strings, must be written before a byte is written to the pipe.
    """
    state_dir = environ.get("SANDHERD_STATE_DIR")
    if not state_dir:
        raise WarmError("SANDHERD_STATE_DIR is not set; a worker is started by a runtime, which sets it")
    with _sigterm_pipe() as sigterm:
        load()
        _store_key(Path(state_dir))
        if not _wait(Path(state_dir) / BEGIN, sigterm):
            return None
    return {**environ, **read_environment(Path(state_dir) / ENVIRONMENT)}


def _store_key(state_dir: Path) -> None:
    """Create the sandbox's key, and store its public part, for which the spawner issues a credential at the claim.

    Raises `WarmError`.
    """
    from sandherd_worker.enrollment import own_key

    try:
        key_pair = own_key(state_dir)
        public = key_pair.public_key.decode()
        key_pair.wipe()
        part = state_dir / f"{PUBLIC_KEY}.new"
        part.write_text(public)
        part.replace(state_dir / PUBLIC_KEY)
    except OSError as error:
        raise WarmError(f"{state_dir} can't be written: {error.strerror or error}") from error


@contextmanager
def _sigterm_pipe() -> Iterator[int]:
    """Yields a pipe that becomes readable once SIGTERM is received.

    A signal handler that raises could run just before the wait in the kernel, which would then last forever.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    earlier_wakeup_fd = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    earlier_handler = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield reader
    finally:
        signal.signal(signal.SIGTERM, earlier_handler)
        signal.set_wakeup_fd(earlier_wakeup_fd)
        os.close(writer)
        os.close(reader)


def _wait(pipe: Path, sigterm: int) -> bool:
    """Wait for a byte in the pipe; False if SIGTERM is received first. A writer that writes nothing has no effect."""
    try:
        if not pipe.exists():
            os.mkfifo(pipe, 0o600)
        # Opened also for writing: the pipe then never reports that its last writer has closed it.
        begin_descriptor = os.open(pipe, os.O_RDWR | os.O_CLOEXEC)
        try:
            # The rehearsal begins only when the pipe is open: a claim writes to the pipe, which ends the rehearsal.
            import_module("sandherd_worker.rehearsal").rehearse(begin_descriptor, sigterm)
            poll = select.poll()
            poll.register(begin_descriptor, select.POLLIN)
            poll.register(sigterm, select.POLLIN)
            if sigterm in {descriptor for descriptor, _ in poll.poll()}:
                return False
            os.read(begin_descriptor, 1)  # this shows the writer that the byte was received
            return True
        finally:
            os.close(begin_descriptor)
    except OSError as error:
        raise WarmError(f"{pipe}: {error.strerror or error}") from error


def read_environment(path: Path) -> dict[str, str]:
    """The environment variables of a worker, from a file with an object of strings. Raises `WarmError`."""
    try:
        environment = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise WarmError(f"{path} can't be read: {error}") from None
    if not isinstance(environment, dict) or not all(isinstance(value, str) for value in environment.values()):
        raise WarmError(f"{path} is not an object of strings")
    return environment
