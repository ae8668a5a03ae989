"""OpenHands' Runtime API as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`.

The API starts an agent server in an image, and has no labels, programs or files: a box's labels and its program's state
are stored in the box, and its herd is part of its session's name, so that it is found even if the box's data is lost.
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

_AT_ONCE: Final = 8
"""The maximum number of concurrent requests to agent servers."""
_TICKS: Final = 20
"""The ticks of box.sh per second."""
_LONGER: Final = 15.0


class RemoteProvider:
    """One account at the Runtime API. `close` closes `http`, too."""

    name = "remote"
    abilities = Abilities(pause=True, memory_limit=False, process_limit=False, cpu_limit=False, ports=True)
    """Memory is limited in steps, possibly above the requested limit; processes and cores are not limited."""

    def __init__(self, http: HttpSession, api: RuntimeApi, kind: RemoteRuntimeOptions) -> None:
        self._http = http
        self._api = api
        self._kind = kind
        self._sessions: dict[str, str] = {}
        self._creations: KeyedLocks[str] = KeyedLocks()
        self._unresponsive_since: dict[str, float] = {}
        self._concurrent_reads = asyncio.Semaphore(_AT_ONCE)

    async def create(self, spec: BoxSpec) -> Box:
        """Create the runtime, with its agent server, files and program; existing parts are not changed."""
        session = replies.session(spec.labels.get(HERD, ""), spec.name)
        self._sessions[spec.name] = session
        async with self._creations.hold(spec.name):
            found = await self._api.of_session(session)
            if found is None:
                await self._start_runtime(spec, session)
            elif found.status == "paused":
                return self._box(found, None)
            runtime = await wait_ready(self._api, self._http, session, self._kind)
            server = self._server(runtime)
            program = await self._read_program_state(server)
            if not program.runs:
                await set_up(server, spec, sorted(runtime.ports))
                program = await self._read_program_state(server)
            return self._box(runtime, program)

    async def get(self, name: str) -> Box | None:
        """The box with this name, even if it does not respond: otherwise it could not be stopped."""
        runtime = await self._runtime(name)
        return None if runtime is None else await self._as_box(runtime)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels. If an agent server does not respond, only the box's herd is known."""
        runtimes = [one for one in await self._api.all() if replies.is_of(one, labels.get(HERD))]
        boxes = await asyncio.gather(*(self._as_box(runtime) for runtime in runtimes))
        for runtime, box in zip(runtimes, boxes, strict=True):
            self._sessions[box.name] = runtime.session_id
        return [box for box in boxes if all(box.labels.get(name, value) == value for name, value in labels.items())]

    async def start(self, name: str) -> None:
        """Start the box's program again; a paused runtime is resumed first."""
        runtime = await self._awake(await self._existing(name))
        await self._server(runtime).control(scripts.command_line("launch", "again"))

    async def stop(self, name: str, grace: float) -> None:
        """Request the program to end, then end every process of the box but the agent server's own.

        If the agent server does not respond, or refuses, for as long as its start may take, the runtime is stopped and
        its data is lost: the agent may have replaced the agent server.
        """
        runtime = await self._runtime(name)
        if runtime is None or runtime.fallen or runtime.status == "paused":
            return
        try:
            line = scripts.command_line("stop", str(round(max(0.0, grace) * _TICKS)))
            await self._server(replies.require_ready(runtime)).control(line, grace + _LONGER)
        except ProviderError:
            since = self._unresponsive_since.setdefault(name, time.monotonic())
            if time.monotonic() - since < self._kind.init_timeout:
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
        """Stop every runtime of the box's session; the Runtime API deletes stopped runtimes."""
        session = await self._session(name)
        if session is None:
            return
        found = [await self._api.of_session(session), *await self._api.all()]
        for runtime in {one.id: one for one in found if one and one.session_id == session}.values():
            await self._api.change_state(runtime, "stop")
        self._sessions.pop(name, None)

    async def mark_quarantined(self, name: str) -> None:
        """Write the mark into the box. Pause it as well, unless `keep_alive` is set.

        A runtime that has failed or lost its files contains no useful data: it is stopped.
        """
        runtime = await self._runtime(name)
        if runtime is None or (runtime.status == "paused" and not self._kind.keep_alive):
            return
        runtime = runtime if runtime.fallen else await self._awake(runtime)
        server = self._server(runtime)
        if runtime.fallen or not (await self._read_program_state(server)).runs:
            await self._api.change_state(runtime, "stop")
            return
        await server.control(scripts.command_line("mark"))
        if not self._kind.keep_alive:
            await self._api.change_state(runtime, "pause")

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the mark, after resuming the runtime if necessary."""
        runtime = await self._runtime(name)
        if runtime is not None:
            await self._server(await self._awake(runtime)).control(scripts.command_line("unmark"))

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command as the box's user."""
        server = self._server(await self._existing(name))
        folder, began = f"{RUN}/ran-{uuid4().hex}", time.monotonic()
        ended = await server.bash(scripts.running(command, folder), command.seconds + _LONGER)
        took = time.monotonic() - began
        if ended.exit_code not in {0, -1}:
            message = f"remote: {name}: {replies.error_message(ended.stderr) or 'the command could not be run'}"
            raise ProviderError(ProviderFault.REFUSED, message)
        outcome = await command_outcome(server, folder, ended.stdout if ended.exit_code == 0 else None, command)
        return outcome.ran(command, took)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files below `ROOT`."""
        await upload_files(self._server(await self._existing(name)), files)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content."""
        return await fetch(self._server(await self._existing(name)), path, limit)

    async def address(self, name: str, port: int) -> Address:
        """The address that the Runtime API reports for a port; most ports are not exposed."""
        return replies.address(await self._existing(name), name, port)

    async def changes(self) -> AsyncIterator[str]:
        """Yield the names of changed boxes, by polling the list of runtimes and the program's state in each box."""
        known: dict[str, tuple[object, ...]] = {}
        while True:
            now: dict[str, tuple[object, ...]] = {}
            for runtime in await self._api.all():
                if replies.is_of(runtime, self._kind.herd):
                    box = await self._as_box(runtime)
                    now[box.name] = (box.id, box.alive, box.state, box.runs, box.quarantined)
            for name in sorted(known.keys() | now.keys()):
                if known.get(name) != now.get(name):
                    yield name
            known = now
            await asyncio.sleep(self._kind.poll)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    # --- one runtime -------------------------------------------------------------------------------------------

    async def _start_runtime(self, spec: BoxSpec, session: str) -> None:
        wanted = start_request(spec, session, self._kind)
        if not await self._api.has_image(wanted["image"]):
            text = f"remote: the Runtime API has no image {wanted['image']}; use one that it may pull"
            raise ProviderError(ProviderFault.REFUSED, text)
        await self._api.start(wanted, self._kind.init_timeout)

    async def _session(self, name: str) -> str | None:
        """The session name of a box: derived from the herd, or found in the list of runtimes."""
        if name not in self._sessions and self._kind.herd:
            self._sessions[name] = replies.session(self._kind.herd, name)
        if name not in self._sessions:
            for runtime in await self._api.all():
                if (found := replies.name_of(runtime.session_id)) is not None:
                    self._sessions[found[1]] = runtime.session_id
        return self._sessions.get(name)

    async def _runtime(self, name: str) -> RemoteRuntimeState | None:
        session = await self._session(name)
        return await self._api.of_session(session) if session else None

    async def _existing(self, name: str) -> RemoteRuntimeState:
        runtime = await self._runtime(name)
        if runtime is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"remote: box {name} does not exist")
        return runtime

    async def _awake(self, runtime: RemoteRuntimeState) -> RemoteRuntimeState:
        if runtime.status == "paused":
            await self._api.change_state(runtime, "resume")
        return await wait_ready(self._api, self._http, runtime.session_id, self._kind)

    async def _program_state(self, runtime: RemoteRuntimeState) -> ProgramState | None:
        return await self._read_program_state(self._server(runtime)) if runtime.ready else None

    async def _read_program_state(self, server: AgentServer) -> ProgramState:
        return ProgramState.read(await server.control(scripts.command_line("state")))

    async def _as_box(self, runtime: RemoteRuntimeState) -> Box:
        """The box, without its program's state if it does not respond: that must not prevent listing other boxes."""
        async with self._concurrent_reads:
            try:
                return self._box(runtime, await self._program_state(runtime))
            except ProviderError:
                return self._box(runtime, None)

    def _box(self, runtime: RemoteRuntimeState, program: ProgramState | None) -> Box:
        return replies.box(runtime, program, paused_is_aside=not self._kind.keep_alive)

    def _server(self, runtime: RemoteRuntimeState) -> AgentServer:
        return AgentServer(self._http, runtime, self._kind.patience)
