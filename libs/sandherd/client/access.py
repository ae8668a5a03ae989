"""What a herd does with sandboxes: making them, pausing them, running commands in them, copying files."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final, TypeVar

from sandherd.client import allowed, copying, executing, obeying, questions
from sandherd.client.connection import Connection
from sandherd.client.copying import Moved, silent
from sandherd.client.errors import HerdError, checked_name, made, new_sandbox_name
from sandherd.client.executing import Execution
from sandherd.client.named_secrets import NamedSecrets, sealed_for
from sandherd.contracts.commands import (
    CreateSandbox,
    ExtendSandbox,
    PauseSandbox,
    ResumeSandbox,
    SandboxSpec,
    TerminateSandbox,
)
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    AgentServerView,
    AskAgentServer,
    Catalogue,
    FileList,
    FileRead,
    FileWritten,
    ListFiles,
    ListRuntimes,
    Prune,
    Pruned,
    SandboxView,
)
from sandherd.contracts.states import SandboxState

CREATE_SECONDS: Final = 120.0
COMMAND_SECONDS: Final = 30.0
CATALOGUE_SECONDS: Final = 2.0
PRUNE_SECONDS: Final = 60.0
SpecT = TypeVar("SpecT", bound=SandboxSpec)
_SILENT: Final = frozenset({Code.UNAVAILABLE, Code.BUSY, Code.INTERNAL, Code.REFUSED})


class Access(NamedSecrets):
    """The part of `Herd` that is about sandboxes and what is in them. Every method raises `HerdError`."""

    connection: Connection
    _known: Catalogue | None = None
    _asked_in_vain: bool = False

    # --- what there is -------------------------------------------------------------------------------------------

    async def catalogue(self, *, timeout: float = 5.0) -> Catalogue:
        """What can be asked for here: runtimes, profiles, harnesses, caps."""
        found: Catalogue = await self.connection.ask(ListRuntimes(), timeout=timeout)
        return found

    async def check(self, spec: SandboxSpec) -> None:
        """Refuse what the herd will not take, before it is sent. Without an answer, the spawner is left to decide.

        The answer is kept, and asked for again before it refuses anything.
        """
        known = self._known
        if known is None or allowed.refusal(spec, known) is not None:
            known = self._known = await self._asked()
        refused = allowed.refusal(spec, known) if known is not None else None
        if refused is not None:
            raise refused
        await self.check_named_secrets(spec)

    def sealed(self, spec: SpecT) -> SpecT:
        """The spec as it is sent, after `check`: values of secrets encrypted for the spawner.

        A spawner that did not answer, or is of an earlier version, offers no key: then they are sent as they are.
        """
        key = self._known.secrets_key if self._known is not None else None
        if key is None or not any(spec.env[name] for name in spec.secret_env):
            return spec
        values = {name: spec.env[name] for name in spec.secret_env}
        sealed = sealed_for(key, values)
        return spec.model_copy(update={"env": {**spec.env, **dict.fromkeys(values, "")}, "sealed": sealed})

    async def _asked(self) -> Catalogue | None:
        if self._asked_in_vain:
            return None
        try:
            return await self.catalogue(timeout=CATALOGUE_SECONDS)
        except HerdError as error:
            if error.problem.code not in _SILENT:
                raise
            self._asked_in_vain = True
            return None

    async def prune(self, *, now: bool = False) -> Pruned:
        """Compare all records with what is really there; with `now`, remove what no record wants without its grace."""
        found: Pruned = await self.connection.ask(Prune(now=now), timeout=PRUNE_SECONDS)
        return found

    # --- its life ------------------------------------------------------------------------------------------------

    async def create(
        self,
        spec: SandboxSpec | None = None,
        *,
        sandbox: str | None = None,
        by: str | None = None,
        wait: bool = True,
        timeout: float = CREATE_SECONDS,
    ) -> SandboxView | None:
        """Make a sandbox without a task, and wait until it runs. Without `wait`, None; what becomes of it are events.

        `sandbox` is its name, `sbx-…`; the same one asked for twice is one sandbox.
        """
        wanted = spec or SandboxSpec()
        await self.check(wanted)
        name = new_sandbox_name(sandbox or new_sandbox())
        command = made(CreateSandbox, sandbox=name, spec=self.sealed(wanted), requested_by=by)
        if wait:
            return await obeying.created(self.connection, command, timeout)
        await self.connection.command(command, name)
        return None

    async def pause(self, sandbox: str, *, reason: str = "", timeout: float = COMMAND_SECONDS) -> SandboxView:
        """Freeze a sandbox as it is."""
        command = made(PauseSandbox, sandbox=checked_name(sandbox, "sandbox"), reason=reason)
        return await obeying.obeyed(self.connection, command, lambda view: view.state is SandboxState.PAUSED, timeout)

    async def resume(self, sandbox: str, *, timeout: float = COMMAND_SECONDS) -> SandboxView:
        """Let a paused sandbox go on."""
        command = made(ResumeSandbox, sandbox=checked_name(sandbox, "sandbox"))
        return await obeying.obeyed(self.connection, command, lambda view: view.state is SandboxState.RUNNING, timeout)

    async def extend(self, sandbox: str, seconds: int, *, timeout: float = COMMAND_SECONDS) -> SandboxView:
        """Let a sandbox live so much longer, from now. One that may live longer anyway is left as it is."""
        before = await self.sandbox(sandbox)
        command = made(ExtendSandbox, sandbox=sandbox, seconds=seconds)
        return await obeying.extended(self.connection, command, before, timeout)

    async def terminate(self, sandbox: str, *, reason: str = "asked for") -> None:
        """End a sandbox and every process in it."""
        name = checked_name(sandbox, "sandbox")
        await self.connection.command(made(TerminateSandbox, sandbox=name, reason=reason), name)

    async def sandbox(self, sandbox: str) -> SandboxView:
        """A sandbox as it stands, or as it stood last."""
        return await questions.sandbox(self.connection.ask, checked_name(sandbox, "sandbox"))

    async def agent_server(self, sandbox: str, *, with_key: bool = False, timeout: float = 15.0) -> AgentServerView:
        """Where the agent server of a sandbox is, and how it stands.

        Its key, and the headers that are wanted on the way there, are secrets: they come only if they are asked for.
        """
        request = AskAgentServer(sandbox=checked_name(sandbox, "sandbox"), with_key=with_key)
        found: AgentServerView = await self.connection.ask(request, timeout=timeout)
        return found

    # --- commands in it ------------------------------------------------------------------------------------------

    async def exec(
        self,
        sandbox: str,
        argv: Sequence[str],
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: int = 600,
    ) -> Execution:
        """Start a command in a sandbox. What it writes, and how it ends, is in what is returned."""
        name = checked_name(sandbox, "sandbox")
        asked = executing.command(name, argv, cwd=cwd, env=env, stdin=stdin, timeout=timeout)
        return await Execution.start(self.connection, asked)

    def execution(self, sandbox: str, name: str) -> Execution:
        """A command that was started before, by its name, `exc-…`."""
        return Execution(self.connection, checked_name(sandbox, "sandbox"), checked_name(name, "exec"))

    # --- files in it ---------------------------------------------------------------------------------------------

    async def files(self, sandbox: str, path: str = ".", *, recursive: bool = False, limit: int = 1000) -> FileList:
        """What is in a folder of its work tree; of a file, the file."""
        name = checked_name(sandbox, "sandbox")
        found: FileList = await self.connection.ask(
            made(ListFiles, sandbox=name, path=path, recursive=recursive, limit=limit), timeout=15
        )
        return found

    async def upload(self, sandbox: str, local: Path, path: str, *, moved: Moved = silent) -> FileWritten:
        """Put a local file, or a folder with all that is in it, into the work tree as `path`."""
        name = checked_name(sandbox, "sandbox")
        with copying.source(local, await self._most_bytes()) as given:
            return await copying.upload(self.connection, self.connection.project, name, given, path, moved=moved)

    async def write(self, sandbox: str, data: bytes, path: str, *, mode: int = 0o644) -> FileWritten:
        """Put bytes into the work tree as the file `path`."""
        name = checked_name(sandbox, "sandbox")
        with tempfile.TemporaryFile() as file:
            given = copying.of_bytes(data, file, mode)
            return await copying.upload(self.connection, self.connection.project, name, given, path)

    async def download(self, sandbox: str, path: str, out: IO[bytes], *, moved: Moved = silent) -> FileRead:
        """Take a file, or a folder as a tar archive, out of the work tree; its bytes are written to `out`."""
        return await copying.download(self.connection, checked_name(sandbox, "sandbox"), path, out, moved)

    async def _most_bytes(self) -> int | None:
        """The largest file that is taken, if anybody can tell."""
        known = self._known = self._known or await self._asked()
        return None if known is None else known.max_file_bytes


def new_sandbox() -> str:
    """A name for a sandbox, to listen for it before it is made."""
    return new_name("sbx")
