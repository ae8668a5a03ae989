"""OpenHands' Runtime API as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`.

It starts an agent server in an image, and knows neither labels nor programs nor files: a box's labels and how its
program fares are kept in the box, and its herd stands in its session's name, so that it is found whatever is lost.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Final
from uuid import uuid4

from spawner.runtimes.boxes.furnishing import HERD
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    Command,
    File,
    ProviderError,
    ProviderFault,
    Ran,
)
from spawner.runtimes.remote import answers, scripts
from spawner.runtimes.remote.answers import Runtime
from spawner.runtimes.remote.bringing import Kind, furnish, wanted, well
from spawner.runtimes.remote.calls import AgentServer, Http, RuntimeApi
from spawner.runtimes.remote.scripts import RUN, Look
from spawner.runtimes.remote.transfers import fetch, place, short_and_long

_AT_ONCE: Final = 8
"""So many agent servers are asked at the same time."""
_TICKS: Final = 20
"""Of box.sh in a second."""
_LONGER: Final = 15.0


class Remote:
    """One account at the Runtime API. `http` is closed with it."""

    name = "remote"
    abilities = Abilities(pause=True, memory_limit=False, process_limit=False, cpu_limit=False, ports=True)
    """Memory is limited in steps, which may be more than was asked for; processes and cores aren't."""

    def __init__(self, http: Http, api: RuntimeApi, kind: Kind) -> None:
        self._http = http
        self._api = api
        self._kind = kind
        self._sessions: dict[str, str] = {}
        self._alone: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._mute: dict[str, float] = {}
        self._few = asyncio.Semaphore(_AT_ONCE)

    async def create(self, spec: BoxSpec) -> Box:
        """Have a runtime, its agent server, its files and its program; what is there of them stays as it is."""
        session = answers.session(spec.labels.get(HERD, ""), spec.name)
        self._sessions[spec.name] = session
        async with self._alone[spec.name]:
            found = await self._api.of_session(session)
            if found is None:
                await self._begin(spec, session)
            elif found.status == "paused":
                return self._box(found, None)
            runtime = await well(self._api, self._http, session, self._kind)
            server = self._server(runtime)
            look = await self._ask_look(server)
            if not look.runs:
                await furnish(server, spec, sorted(runtime.ports))
                look = await self._ask_look(server)
            return self._box(runtime, look)

    async def get(self, name: str) -> Box | None:
        """The box of this name. One that is mute is shown: it could never be stopped if it could not be looked at."""
        runtime = await self._runtime(name)
        return None if runtime is None else await self._seen(runtime)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels. Of one whose agent server does not answer only the herd is known."""
        ours = [one for one in await self._api.all() if answers.is_of(one, labels.get(HERD))]
        boxes = await asyncio.gather(*(self._seen(runtime) for runtime in ours))
        for runtime, box in zip(ours, boxes, strict=True):
            self._sessions[box.name] = runtime.session_id
        return [box for box in boxes if all(box.labels.get(name, value) == value for name, value in labels.items())]

    async def start(self, name: str) -> None:
        """Start its program once more; a runtime that was paused is resumed for it."""
        runtime = await self._awake(await self._known(name))
        await self._server(runtime).control(scripts.command("launch", "again"))

    async def stop(self, name: str, grace: float) -> None:
        """Ask the program to end, then end every process of the box but the agent server's own.

        One whose agent server stays mute for as long as it may take to start, or will not, is given up with all that
        it holds: its agent may have taken that server's place.
        """
        runtime = await self._runtime(name)
        if runtime is None or runtime.fallen or runtime.status == "paused":
            return
        try:
            line = scripts.command("stop", str(round(max(0.0, grace) * _TICKS)))
            await self._server(answers.surely_ready(runtime)).control(line, grace + _LONGER)
        except ProviderError:
            since = self._mute.setdefault(name, time.monotonic())
            if time.monotonic() - since < self._kind.init_timeout:
                raise
            await self._api.tell(runtime, "stop")
        self._mute.pop(name, None)

    async def pause(self, name: str) -> None:
        """Let its processes stand still. The Runtime API's own pause would end them."""
        await self._server(await self._known(name)).control(scripts.command("freeze"))

    async def resume(self, name: str) -> None:
        """Let it go on."""
        await self._server(await self._known(name)).control(scripts.command("thaw"))

    async def remove(self, name: str) -> None:
        """Stop every runtime of its session; the Runtime API keeps nothing of one that was stopped."""
        session = await self._session(name)
        if session is None:
            return
        found = [await self._api.of_session(session), *await self._api.all()]
        for runtime in {one.id: one for one in found if one and one.session_id == session}.values():
            await self._api.tell(runtime, "stop")
        self._sessions.pop(name, None)
        self._alone.pop(name, None)

    async def set_aside(self, name: str) -> None:
        """Mark the box in itself; unless runtimes are to be kept alive, it is paused as well.

        One that has fallen, or has lost its files, holds nothing that could be kept: it is stopped.
        """
        runtime = await self._runtime(name)
        if runtime is None or (runtime.status == "paused" and not self._kind.keep_alive):
            return
        runtime = runtime if runtime.fallen else await self._awake(runtime)
        server = self._server(runtime)
        if runtime.fallen or not (await self._ask_look(server)).runs:
            await self._api.tell(runtime, "stop")
            return
        await server.control(scripts.command("mark"))
        if not self._kind.keep_alive:
            await self._api.tell(runtime, "pause")

    async def take_back(self, name: str) -> None:
        """Take the mark off, in a runtime that is resumed for it."""
        runtime = await self._runtime(name)
        if runtime is not None:
            await self._server(await self._awake(runtime)).control(scripts.command("unmark"))

    async def run(self, name: str, command: Command) -> Ran:
        """Run a command as the box's user."""
        server = self._server(await self._known(name))
        folder, began = f"{RUN}/ran-{uuid4().hex}", time.monotonic()
        ended = await server.bash(scripts.running(command, folder), command.seconds + _LONGER)
        took = time.monotonic() - began
        if ended.exit_code not in {0, -1}:
            told = f"remote: {name}: {answers.said(ended.stderr) or 'the command could not be run'}"
            raise ProviderError(ProviderFault.REFUSED, told)
        outcome = await short_and_long(server, folder, ended.stdout if ended.exit_code == 0 else None, command)
        return outcome.ran(command, took)

    async def put(self, name: str, files: Collection[File]) -> None:
        """Put files below our folder."""
        await place(self._server(await self._known(name)), files)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content."""
        return await fetch(self._server(await self._known(name)), path, limit)

    async def address(self, name: str, port: int) -> Address:
        """Where the Runtime API says that a port is reached: of most there is no way in."""
        return answers.address(await self._known(name), name, port)

    async def changes(self) -> AsyncIterator[str]:
        """The Runtime API tells no news: it is asked for its list, and each box for the end of its program."""
        known: dict[str, tuple[object, ...]] = {}
        while True:
            now: dict[str, tuple[object, ...]] = {}
            for runtime in await self._api.all():
                if answers.is_of(runtime, self._kind.herd):
                    box = await self._seen(runtime)
                    now[box.name] = (box.id, box.alive, box.state, box.runs, box.aside)
            for name in sorted(known.keys() | now.keys()):
                if known.get(name) != now.get(name):
                    yield name
            known = now
            await asyncio.sleep(self._kind.poll)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    # --- small things ------------------------------------------------------------------------------------------

    async def _begin(self, spec: BoxSpec, session: str) -> None:
        told = wanted(spec, session, self._kind)
        if not await self._api.has_image(told["image"]):
            text = f"remote: there is no image {told['image']} for it; name one that it may pull"
            raise ProviderError(ProviderFault.REFUSED, text)
        await self._api.start(told, self._kind.init_timeout)

    async def _session(self, name: str) -> str | None:
        """What this box is called there: by its herd, or found in the list."""
        if name not in self._sessions and self._kind.herd:
            self._sessions[name] = answers.session(self._kind.herd, name)
        if name not in self._sessions:
            for runtime in await self._api.all():
                if (found := answers.name_of(runtime.session_id)) is not None:
                    self._sessions[found[1]] = runtime.session_id
        return self._sessions.get(name)

    async def _runtime(self, name: str) -> Runtime | None:
        session = await self._session(name)
        return await self._api.of_session(session) if session else None

    async def _known(self, name: str) -> Runtime:
        runtime = await self._runtime(name)
        if runtime is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"remote: there is no box {name}")
        return runtime

    async def _awake(self, runtime: Runtime) -> Runtime:
        if runtime.status == "paused":
            await self._api.tell(runtime, "resume")
        return await well(self._api, self._http, runtime.session_id, self._kind)

    async def _look(self, runtime: Runtime) -> Look | None:
        return await self._ask_look(self._server(runtime)) if runtime.ready else None

    async def _ask_look(self, server: AgentServer) -> Look:
        return Look.read(await server.control(scripts.command("look")))

    async def _seen(self, runtime: Runtime) -> Box:
        """As well as can be known: one that is mute keeps nobody from seeing the others."""
        async with self._few:
            try:
                return self._box(runtime, await self._look(runtime))
            except ProviderError:
                return self._box(runtime, None)

    def _box(self, runtime: Runtime, look: Look | None) -> Box:
        return answers.box(runtime, look, paused_is_aside=not self._kind.keep_alive)

    def _server(self, runtime: Runtime) -> AgentServer:
        return AgentServer(self._http, runtime, self._kind.patience)
