"""Operations on sandboxes: create, pause, resume, extend and terminate them, run commands, copy files."""

from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Final, Literal, TypeVar, overload

from sandherd.client import queries
from sandherd.client.connection import Connection
from sandherd.client.errors import HerdError, checked_name, new_sandbox_name, validated
from sandherd.client.named_secrets import NamedSecrets, encrypt_for_spawner
from sandherd.contracts import requests
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.states import SandboxState
from sandherd.lazy_imports import LazyModule

if TYPE_CHECKING:
    from pathlib import Path

    from sandherd.client import commands
    from sandherd.client.sandboxes import execution as executing
    from sandherd.client.sandboxes import runtime_log, transfer
    from sandherd.client.sandboxes.execution import Execution
    from sandherd.client.sandboxes.transfer import OnTransfer
    from sandherd.client.tasks import preflight
    from sandherd.contracts import commands as wire
    from sandherd.contracts.commands import SandboxSpec
else:  # on first use, as in `client.herd`
    commands = LazyModule("sandherd.client.commands")
    executing = LazyModule("sandherd.client.sandboxes.execution")
    runtime_log = LazyModule("sandherd.client.sandboxes.runtime_log")
    transfer = LazyModule("sandherd.client.sandboxes.transfer")
    preflight = LazyModule("sandherd.client.tasks.preflight")
    wire = LazyModule("sandherd.contracts.commands")

CREATE_SECONDS: Final = 120.0
COMMAND_SECONDS: Final = 30.0
CATALOGUE_SECONDS: Final = 2.0
SEALING_SECONDS: Final = 15.0
"""The timeout of the request for the key that encrypts values of secrets. Without a spawner it fails at once."""
PRUNE_SECONDS: Final = 60.0
SpecT = TypeVar("SpecT", bound="SandboxSpec")
_NO_REPLY_CODES: Final = frozenset({Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL, Code.REFUSED})


class SandboxOperations(NamedSecrets):
    """The sandbox methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection
    _catalogue: "requests.Catalogue | None" = None
    _catalogue_unavailable: bool = False

    # --- catalogue and checks ------------------------------------------------------------------------------------

    async def catalogue(self, *, timeout: float = 5.0) -> "requests.Catalogue":
        """The available runtimes, profiles and harnesses, and the limits."""
        reply: requests.Catalogue = await self.connection.request(requests.ListRuntimes(), timeout=timeout)
        return reply

    async def check(self, spec: "SandboxSpec") -> None:
        """Raise `HerdError` for a spec that the spawner would reject. If it does not reply, nothing is checked.

        The catalogue is cached, and requested again before a spec is refused.
        """
        catalogue = self._catalogue
        if catalogue is None or preflight.refusal(spec, catalogue) is not None:
            seconds = SEALING_SECONDS if any(spec.env[name] for name in spec.secret_env) else CATALOGUE_SECONDS
            catalogue = self._catalogue = await self._catalogue_or_none(seconds)
        refused = preflight.refusal(spec, catalogue) if catalogue is not None else None
        if refused is not None:
            raise refused
        await self._check_named_secrets(spec)

    def _seal_secrets(self, spec: SpecT) -> SpecT:
        """The spec to send, after `check`, with values of secrets encrypted for the spawner.

        If the spawner did not reply, or its version has no key, the values are sent unencrypted.
        """
        key = self._catalogue.secrets_key if self._catalogue is not None else None
        if key is None or not any(spec.env[name] for name in spec.secret_env):
            return spec
        values = {name: spec.env[name] for name in spec.secret_env}
        sealed = encrypt_for_spawner(key, values)
        return spec.model_copy(update={"env": {**spec.env, **dict.fromkeys(values, "")}, "sealed": sealed})

    async def _catalogue_or_none(self, seconds: float = CATALOGUE_SECONDS) -> "requests.Catalogue | None":
        if self._catalogue_unavailable:
            return None
        try:
            return await self.catalogue(timeout=seconds)
        except HerdError as error:
            if error.problem.code not in _NO_REPLY_CODES:
                raise
            self._catalogue_unavailable = True
            return None

    async def prune(self, *, now: bool = False) -> "requests.PruneResult":
        """Compare all records with the runtimes' sandboxes. With `now`, orphans are removed without a grace time."""
        reply: requests.PruneResult = await self.connection.request(requests.Prune(now=now), timeout=PRUNE_SECONDS)
        return reply

    # --- lifecycle -----------------------------------------------------------------------------------------------

    @overload
    async def create(
        self,
        spec: "SandboxSpec | None" = None,
        *,
        sandbox: str | None = None,
        by: str | None = None,
        wait: Literal[True] = True,
        timeout: float = CREATE_SECONDS,
    ) -> "requests.SandboxView": ...

    @overload
    async def create(
        self,
        spec: "SandboxSpec | None" = None,
        *,
        sandbox: str | None = None,
        by: str | None = None,
        wait: Literal[False],
        timeout: float = CREATE_SECONDS,
    ) -> None: ...

    @overload
    async def create(
        self,
        spec: "SandboxSpec | None" = None,
        *,
        sandbox: str | None = None,
        by: str | None = None,
        wait: bool,
        timeout: float = CREATE_SECONDS,
    ) -> "requests.SandboxView | None": ...

    async def create(
        self,
        spec: "SandboxSpec | None" = None,
        *,
        sandbox: str | None = None,
        by: str | None = None,
        wait: bool = True,
        timeout: float = CREATE_SECONDS,
    ) -> "requests.SandboxView | None":
        """Create a sandbox without a task, and wait until it runs. Without `wait`, returns None at once.

        `sandbox` is its name, `sbx-…`. A repeated call with the same name and spec creates no second sandbox.
        """
        checked_spec = spec or wire.SandboxSpec()
        await self.check(checked_spec)
        name = new_sandbox_name(sandbox or new_sandbox())
        command = validated(wire.CreateSandbox, sandbox=name, spec=self._seal_secrets(checked_spec), requested_by=by)
        if wait:
            return await commands.create_and_wait(self.connection, command, timeout)
        await self.connection.command(command, name)
        return None

    async def pause(
        self, sandbox: str, *, reason: str = "", timeout: float = COMMAND_SECONDS
    ) -> "requests.SandboxView":
        """Freeze a sandbox, and wait until it is paused."""
        command = validated(wire.PauseSandbox, sandbox=checked_name(sandbox, "sandbox"), reason=reason)
        return await commands.send_and_wait(
            self.connection, command, lambda view: view.state is SandboxState.PAUSED, timeout
        )

    async def resume(self, sandbox: str, *, timeout: float = COMMAND_SECONDS) -> "requests.SandboxView":
        """Resume a paused sandbox, and wait until it runs."""
        command = validated(wire.ResumeSandbox, sandbox=checked_name(sandbox, "sandbox"))
        return await commands.send_and_wait(
            self.connection, command, lambda view: view.state is SandboxState.RUNNING, timeout
        )

    async def extend(self, sandbox: str, seconds: int, *, timeout: float = COMMAND_SECONDS) -> "requests.SandboxView":
        """Set the expiry of a sandbox to `seconds` from now. A later expiry is not changed."""
        view = await self.sandbox(sandbox)
        command = validated(wire.ExtendSandbox, sandbox=sandbox, seconds=seconds)
        return await commands.extend_and_wait(self.connection, command, view, timeout)

    async def terminate(self, sandbox: str, *, reason: str = "requested by user") -> None:
        """Terminate a sandbox and every process in it. Raises `HerdError` (`conflict`) if it has ended."""
        name = checked_name(sandbox, "sandbox")
        await commands.refuse_ended(queries.sandbox(self.connection.request, name), "terminated")
        await self.connection.command(validated(wire.TerminateSandbox, sandbox=name, reason=reason), name)

    async def sandbox(self, sandbox: str) -> "requests.SandboxView":
        """A sandbox in its current or final state."""
        return await queries.sandbox_with_history(self.connection.request, checked_name(sandbox, "sandbox"))

    async def agent_server(
        self, sandbox: str, *, with_key: bool = False, timeout: float = 15.0
    ) -> "requests.AgentServerView":
        """The address and state of a sandbox's agent server.

        Its key, and the headers that requests to it need, are secrets. They are returned only with `with_key`.
        """
        request = requests.GetAgentServer(sandbox=checked_name(sandbox, "sandbox"), with_key=with_key)
        reply: requests.AgentServerView = await self.connection.request(request, timeout=timeout)
        return reply

    async def runtime_logs(self, sandbox: str, *, lines: int = 200) -> tuple[str, bool]:
        """The last lines of the log that its runtime stores for a sandbox: of its process, container or pod.

        Also returns whether the lines had more than `MAX_LOG_BYTES`, so that only the last bytes are returned. The
        text is from a sandbox, and may contain anything.
        """
        data, truncated = await runtime_log.read(self.connection, sandbox, lines=lines)
        return data.decode(errors="replace"), truncated

    # --- commands ------------------------------------------------------------------------------------------------

    async def exec(
        self,
        sandbox: str,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: int = 600,
        terminal: "requests.TerminalSize | None" = None,
    ) -> "Execution":
        """Start a command in a sandbox. Returns an `Execution`, to read its output and wait for its end.

        With `terminal`, the command has a terminal of this size, and `Execution.write` writes to it.
        """
        name = checked_name(sandbox, "sandbox")
        request = executing.command(name, argv, cwd=cwd, env=env, stdin=stdin, timeout=timeout, terminal=terminal)
        return await executing.Execution.start(self.connection, request)

    def execution(self, sandbox: str, name: str) -> "Execution":
        """A command that was started before, by its name, `exc-…`."""
        return executing.Execution(self.connection, checked_name(sandbox, "sandbox"), checked_name(name, "exec"))

    # --- files ---------------------------------------------------------------------------------------------------

    async def files(
        self, sandbox: str, path: str = ".", *, recursive: bool = False, limit: int = 1000
    ) -> "requests.FileList":
        """The entries of a folder in the work tree of a sandbox; for a file, only its entry."""
        name = checked_name(sandbox, "sandbox")
        reply: requests.FileList = await self.connection.request(
            validated(requests.ListFiles, sandbox=name, path=path, recursive=recursive, limit=limit), timeout=15
        )
        return reply

    async def upload(
        self, sandbox: str, local: "Path | IO[bytes]", path: str, *, on_progress: "OnTransfer | None" = None
    ) -> "requests.FileWritten":
        """Upload a local file, also an open one, or a folder with its contents, into the work tree as `path`."""
        name = checked_name(sandbox, "sandbox")
        with transfer.source(local, await self._max_file_bytes()) as content:
            return await transfer.upload(
                self.connection,
                self.connection.project,
                name,
                content,
                path,
                report=on_progress or transfer.silent,
            )

    async def write(self, sandbox: str, data: bytes, path: str, *, mode: int = 0o644) -> "requests.FileWritten":
        """Write bytes into the work tree as the file `path`."""
        import tempfile

        name = checked_name(sandbox, "sandbox")
        with tempfile.TemporaryFile() as file:
            content = transfer.bytes_source(data, file, mode)
            return await transfer.upload(self.connection, self.connection.project, name, content, path)

    async def download(
        self, sandbox: str, path: str, out: IO[bytes], *, on_progress: "OnTransfer | None" = None
    ) -> "requests.FileRead":
        """Download a file, or a folder as a tar archive, from the work tree; its bytes are written to `out`."""
        return await transfer.download(
            self.connection, checked_name(sandbox, "sandbox"), path, out, on_progress or transfer.silent
        )

    async def _max_file_bytes(self) -> int | None:
        """The maximum file size in bytes; None if the spawner does not reply."""
        catalogue = self._catalogue = self._catalogue or await self._catalogue_or_none()
        return None if catalogue is None else catalogue.max_file_bytes


def new_sandbox() -> str:
    """A new sandbox name, with which a client can subscribe before it creates the sandbox."""
    return new_name("sbx")
