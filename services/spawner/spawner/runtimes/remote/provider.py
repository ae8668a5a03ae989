"""OpenHands' Runtime API as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`.

The API starts an agent server in an image, and has no labels, programs or files. So a box's labels and the state of its
program are stored in the box. The herd is part of the session's name, so that a box is found even if its data is lost.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final
from uuid import uuid4

from sandherd.concurrency import KeyedLocks
from spawner.runtimes.boxes.box_files import HERD
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    Command,
    CommandResult,
    File,
    ProviderError,
    ProviderFault,
)
from spawner.runtimes.remote import replies, scripts
from spawner.runtimes.remote.api_clients import AgentServer, HttpSession, RuntimeApi
from spawner.runtimes.remote.creation import RemoteRuntimeOptions, set_up, start_request, wait_ready
from spawner.runtimes.remote.replies import RemoteRuntimeState
from spawner.runtimes.remote.scripts import RUN, ProgramState
from spawner.runtimes.remote.transfers import command_outcome, fetch, upload_files

_MAX_CONCURRENT_READS: Final = 8
"""The maximum number of agent servers whose state is read concurrently."""
_TICKS_PER_SECOND: Final = 20
"""The ticks of box.sh per second."""
_MARGIN_SECONDS: Final = 15.0
"""Additional time to wait for a script that itself has a timeout."""


class RemoteProvider:
    """One account at the Runtime API. `close` closes `http`, too."""

    name = "remote"
    abilities = Abilities(pause=True, memory_limit=False, process_limit=False, cpu_limit=False, ports=True)
    """Memory is limited in steps, possibly above the requested limit; processes and cores are not limited."""

    def __init__(self, http: HttpSession, api: RuntimeApi, options: RemoteRuntimeOptions) -> None:
        self._http = http
        self._api = api
        self._options = options
        self._sessions: dict[str, str] = {}
        self._creations: KeyedLocks[str] = KeyedLocks()
        self._unresponsive_since: dict[str, float] = {}
        self._concurrent_reads = asyncio.Semaphore(_MAX_CONCURRENT_READS)

    async def create(self, spec: BoxSpec) -> Box:
        """Create the runtime, with its agent server, files and program; existing parts are not changed."""
        session = replies.session(spec.labels.get(HERD, ""), spec.name)
        self._sessions[spec.name] = session
        async with self._creations.hold(spec.name):
            existing = await self._api.of_session(session)
            if existing is None:
                await self._start_runtime(spec, session)
            elif existing.status == "paused":
                return self._box(existing, None)
            runtime = await wait_ready(self._api, self._http, session, self._options)
            server = self._server(runtime)
            program = await self._read_program_state(server)
            if not program.runs:
                await set_up(server, spec, sorted(runtime.ports))
                program = await self._read_program_state(server)
            return self._box(runtime, program)

    async def get(self, name: str) -> Box | None:
        """The box with this name, even if it does not respond, because it could not be stopped otherwise."""
        runtime = await self._runtime(name)
        return None if runtime is None else await self._as_box(runtime)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels. If an agent server does not respond, only the box's herd is known."""
        runtimes = [runtime for runtime in await self._api.list_runtimes() if replies.is_of(runtime, labels.get(HERD))]
        boxes = await asyncio.gather(*(self._as_box(runtime) for runtime in runtimes))
        for runtime, box in zip(runtimes, boxes, strict=True):
            self._sessions[box.name] = runtime.session_id
        return [box for box in boxes if all(box.labels.get(name, value) == value for name, value in labels.items())]

    async def start(self, name: str) -> None:
        """Start the box's program again. A paused runtime is resumed first."""
        runtime = await self._wake(await self._existing(name))
        await self._server(runtime).control(scripts.command_line("launch", "again"))

    async def stop(self, name: str, grace: float) -> None:
        """Request the program to end, then end every process of the box except those of the agent server.

        If the agent server fails for as long as its start may take, the runtime is stopped, and its data is lost. This
        is necessary because the agent may have replaced the agent server.
        """
        runtime = await self._runtime(name)
        if runtime is None or runtime.has_failed or runtime.status == "paused":
            return
        try:
            line = scripts.command_line("stop", str(round(max(0.0, grace) * _TICKS_PER_SECOND)))
            await self._server(replies.require_ready(runtime)).control(line, grace + _MARGIN_SECONDS)
        except ProviderError:
            since = self._unresponsive_since.setdefault(name, time.monotonic())
            if time.monotonic() - since < self._options.init_timeout:
                raise
            await self._api.change_state(runtime, "stop")
        self._unresponsive_since.pop(name, None)

    async def pause(self, name: str) -> None:
        """Freeze the box's processes. The Runtime API's own pause would end them."""
        await self._server(await self._existing(name)).control(scripts.command_line("freeze"))

    async def resume(self, name: str) -> None:
        """Thaw the box's processes."""
        await self._server(await self._existing(name)).control(scripts.command_line("thaw"))

    async def remove(self, name: str) -> None:
        """Stop every runtime of the box's session. The Runtime API deletes stopped runtimes."""
        session = await self._session(name)
        if session is None:
            return
        candidates = [await self._api.of_session(session), *await self._api.list_runtimes()]
        for runtime in {one.id: one for one in candidates if one and one.session_id == session}.values():
            await self._api.change_state(runtime, "stop")
        self._sessions.pop(name, None)

    async def mark_quarantined(self, name: str) -> None:
        """Write the mark into the box. Pause the box as well, unless `keep_alive` is set.

        A runtime that has failed or lost its files is stopped, because it contains no useful data.
        """
        runtime = await self._runtime(name)
        if runtime is None or (runtime.status == "paused" and not self._options.keep_alive):
            return
        runtime = runtime if runtime.has_failed else await self._wake(runtime)
        server = self._server(runtime)
        if runtime.has_failed or not (await self._read_program_state(server)).runs:
            await self._api.change_state(runtime, "stop")
            return
        await server.control(scripts.command_line("mark"))
        if not self._options.keep_alive:
            await self._api.change_state(runtime, "pause")

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the mark, after resuming the runtime if necessary."""
        runtime = await self._runtime(name)
        if runtime is not None:
            await self._server(await self._wake(runtime)).control(scripts.command_line("unmark"))

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command as the box's user."""
        server = self._server(await self._existing(name))
        folder, began = f"{RUN}/ran-{uuid4().hex}", time.monotonic()
        reply = await server.bash(scripts.run_command(command, folder), command.seconds + _MARGIN_SECONDS)
        elapsed = time.monotonic() - began
        if reply.exit_code not in {0, -1}:
            message = f"remote: {name}: {replies.error_message(reply.stderr) or 'the command could not be run'}"
            raise ProviderError(ProviderFault.REFUSED, message)
        outcome = await command_outcome(server, folder, reply.stdout if reply.exit_code == 0 else None, command)
        return outcome.result(command, elapsed)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files below `ROOT`."""
        await upload_files(self._server(await self._existing(name)), files)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content."""
        return await fetch(self._server(await self._existing(name)), path, limit)

    async def address(self, name: str, port: int) -> Address:
        """The address that the Runtime API reports for a port. It exposes only a few ports."""
        return replies.address(await self._existing(name), name, port)

    async def changes(self) -> AsyncIterator[str]:
        """Yield the names of changed boxes, by polling the list of runtimes and the program's state in each box."""
        known: dict[str, tuple[object, ...]] = {}
        while True:
            now: dict[str, tuple[object, ...]] = {}
            for runtime in await self._api.list_runtimes():
                if replies.is_of(runtime, self._options.herd):
                    box = await self._as_box(runtime)
                    now[box.name] = (box.id, box.alive, box.state, box.runs, box.quarantined)
            for name in sorted(known.keys() | now.keys()):
                if known.get(name) != now.get(name):
                    yield name
            known = now
            await asyncio.sleep(self._options.poll)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    # --- one runtime -------------------------------------------------------------------------------------------

    async def _start_runtime(self, spec: BoxSpec, session: str) -> None:
        parameters = start_request(spec, session, self._options)
        if not await self._api.has_image(parameters["image"]):
            text = f"remote: the Runtime API has no image {parameters['image']}; use one that it may pull"
            raise ProviderError(ProviderFault.REFUSED, text)
        await self._api.start(parameters, self._options.init_timeout)

    async def _session(self, name: str) -> str | None:
        """The session name of a box: derived from the herd if it is known, or from the list of runtimes."""
        if name not in self._sessions and self._options.herd:
            self._sessions[name] = replies.session(self._options.herd, name)
        if name not in self._sessions:
            for runtime in await self._api.list_runtimes():
                if (herd_and_name := replies.name_of(runtime.session_id)) is not None:
                    self._sessions[herd_and_name[1]] = runtime.session_id
        return self._sessions.get(name)

    async def _runtime(self, name: str) -> RemoteRuntimeState | None:
        session = await self._session(name)
        return await self._api.of_session(session) if session else None

    async def _existing(self, name: str) -> RemoteRuntimeState:
        runtime = await self._runtime(name)
        if runtime is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"remote: box {name} does not exist")
        return runtime

    async def _wake(self, runtime: RemoteRuntimeState) -> RemoteRuntimeState:
        if runtime.status == "paused":
            await self._api.change_state(runtime, "resume")
        return await wait_ready(self._api, self._http, runtime.session_id, self._options)

    async def _program_state(self, runtime: RemoteRuntimeState) -> ProgramState | None:
        return await self._read_program_state(self._server(runtime)) if runtime.ready else None

    async def _read_program_state(self, server: AgentServer) -> ProgramState:
        return ProgramState.read(await server.control(scripts.command_line("state")))

    async def _as_box(self, runtime: RemoteRuntimeState) -> Box:
        """The box of a runtime. If it does not respond, the state of its program is unknown, but no error is raised."""
        async with self._concurrent_reads:
            try:
                return self._box(runtime, await self._program_state(runtime))
            except ProviderError:
                return self._box(runtime, None)

    def _box(self, runtime: RemoteRuntimeState, program: ProgramState | None) -> Box:
        return replies.box(runtime, program, paused_is_quarantined=not self._options.keep_alive)

    def _server(self, runtime: RemoteRuntimeState) -> AgentServer:
        return AgentServer(self._http, runtime, self._options.retries)
