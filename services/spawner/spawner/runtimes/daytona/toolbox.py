"""What is done inside of a started sandbox: by the toolbox that Daytona runs there."""

import base64
import binascii
import math
import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import PurePosixPath
from typing import Final
from uuid import uuid4

from daytona import AsyncSandbox, DaytonaConflictError, FileUpload, SessionExecuteRequest
from daytona import DaytonaProcessExecutionTimeoutError as TooLong

from spawner.runtimes.boxes.bundle import WORKER, kept
from spawner.runtimes.boxes.furnishing import ROOT
from spawner.runtimes.boxes.provider import BoxSpec, Command, File, ProviderError, ProviderFault, Ran
from spawner.runtimes.boxes.retrying import Patience, persistently
from spawner.runtimes.daytona import scripts
from spawner.runtimes.daytona.faults import Telling
from spawner.runtimes.daytona.patience import within
from spawner.runtimes.daytona.scripts import RUN, Life, line

_SHORT: Final = 30
"""How long a script of ours may take that waits for nothing, in seconds."""
_LOOK: Final = 10
"""How long a look may take, in seconds: one that is not answered keeps the news of all others waiting."""
_LONG: Final = 300
_GRACE: Final = 15


class Toolbox:
    """The toolbox of one sandbox that is started."""

    def __init__(self, sandbox: AsyncSandbox, telling: Telling) -> None:
        self._sandbox = sandbox
        self._telling = telling

    async def life(self) -> Life:
        """How the program stands."""
        with self._faults("looking into"):
            said = await within(_LOOK, self._said("looking into", line(scripts.LOOK, RUN)))
        return self._understood(said)

    async def furnish(self, spec: BoxSpec, bundled: bytes | None) -> None:
        """Make our folders, bring the worker where the image lacks it, and put the files."""
        program = spec.program[0]
        said = await self._said("making folders in", scripts.setup(program))
        if said.strip().endswith("lacks") and PurePosixPath(program).is_relative_to(WORKER):
            await self._bring(await kept() if bundled is None else bundled)
        await self.put([File(f"{RUN}/program", scripts.program_file(spec.program)), *spec.files])

    async def start(self, number: int) -> Life:
        """Start this run of the program, unless it was started; it is when this returns."""
        session = f"sandherd-{number}"
        with self._faults("starting the program of"):
            with suppress(DaytonaConflictError):  # it is there: the answer to an earlier try was lost
                await self._sandbox.process.create_session(session, request_timeout=_SHORT)
            begin = SessionExecuteRequest(command=scripts.keeper(number), run_async=True)
            await self._sandbox.process.execute_session_command(session, begin, timeout=_SHORT)
        life = self._understood(await self._said("starting", line(scripts.AWAIT, RUN, str(number), "200")))
        if life.runs < number:
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: the program of {self._name} has not begun")
        return life

    async def stop(self, grace: float, patience: Patience) -> Life:
        """Ask the program to end, and end it after the grace. However often it is asked, it has that long in all."""
        ticks, most = str(math.ceil(max(0.0, grace) * 10)), math.ceil(max(0.0, grace)) + _GRACE

        async def once() -> str:
            return await self._said("stopping the program of", line(scripts.STOP, RUN, ticks), most)

        with self._faults("stopping the program of"):
            return self._understood(await within(most, persistently(once, patience)))

    async def run(self, command: Command) -> Ran:
        """Run a command; what it says on both ways comes as one."""
        folder, most = command.folder or f"{ROOT}/work", command.most_output
        words = (folder, str(most + 1), f"{command.seconds:g}", *command.argv)
        began = time.monotonic()
        with self._faults(f"running {command.argv[0]} in"):
            try:
                answer = await self._sandbox.process.exec(
                    line(scripts.BOUNDED, *words),
                    env=dict(command.environment) or None,
                    timeout=math.ceil(command.seconds) + _GRACE,
                )
            except TooLong:
                return Ran(None, b"", timed_out=True)
        said, code = self._bytes(answer.result), answer.exit_code
        late = code in scripts.ENDED and time.monotonic() - began >= command.seconds
        return Ran(None if late else code, said[:most], timed_out=late, cut=len(said) > most)

    async def put(self, files: Collection[File]) -> None:
        """Put files below our folder, each whole or not at all."""
        brought = [(file, f"{RUN}/.brought-{uuid4().hex}") for file in files if _ours(file.path)]
        if not brought:
            return
        with self._faults("putting files into"):
            await self._sandbox.fs.upload_files([FileUpload(file.content, part) for file, part in brought], _LONG)
        words = [word for file, part in brought for word in (f"{file.mode:o}", part, file.path)]
        await self._said("putting files into", line(scripts.PLACE, *words))

    async def read(self, path: str, limit: int) -> bytes:
        """A file's content."""
        offered = f"{RUN}/.offered-{uuid4().hex}"
        told = (await self._said(f"reading {path} of", line(scripts.OFFER, path, offered))).split()
        try:
            _judge(told, path, limit)
            with self._faults(f"reading {path} of"):
                content: bytes = await self._sandbox.fs.download_file(offered, _LONG)
        finally:
            if told[:1] == ["size"]:
                await self._said("tidying", line(scripts.DROP, offered))
        return content

    async def _bring(self, packed: bytes) -> None:
        part = f"{RUN}/.worker-{uuid4().hex}"
        with self._faults("bringing the worker to"):
            await self._sandbox.fs.upload_file(packed, part, _LONG)
        await self._said("unpacking the worker in", line(scripts.UNPACK, part, WORKER), _LONG)

    async def _said(self, what: str, command: str, seconds: int = _SHORT) -> str:
        """What a script of ours has said, which has to end well."""
        with self._faults(what):
            answer = await self._sandbox.process.exec(command, timeout=seconds)
        if answer.exit_code != 0:
            told = self._telling.clean(answer.result.strip()[-500:])
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {what} {self._name}: {told or answer.exit_code}")
        return answer.result

    def _faults(self, what: str) -> AbstractContextManager[None]:
        return self._telling.faults(f"{what} {self._name}", inside=True)

    @property
    def _name(self) -> str:
        return str(self._sandbox.name)

    def _understood(self, said: str) -> Life:
        try:
            return scripts.life(said)
        except ValueError:
            told = self._telling.clean(said[:200])
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: {self._name} says {told!r} of itself") from None

    def _bytes(self, said: str) -> bytes:
        try:
            return base64.b64decode("".join(said.split()), validate=True)
        except binascii.Error:
            told = self._telling.clean(said[:200])
            raise ProviderError(ProviderFault.REFUSED, f"daytona: a command in {self._name} fails: {told}") from None


def _ours(path: str) -> bool:
    """Whether a file may be put there. Raises `ProviderError` for one that may not."""
    whole = PurePosixPath(path)
    if not whole.is_relative_to(ROOT) or ".." in whole.parts:
        raise ProviderError(ProviderFault.REFUSED, f"{path} does not lie below {ROOT}, where a box may be written to")
    return True


def _judge(told: Sequence[str], path: str, limit: int) -> None:
    """Raises `ProviderError` for what was not offered, or is too large."""
    match told:
        case ["size", size] if int(size) <= limit:
            return
        case ["size", size]:
            raise ProviderError(ProviderFault.REFUSED, f"{path} weighs {size} bytes; the limit is {limit}")
        case ["none"]:
            raise ProviderError(ProviderFault.NOT_FOUND, f"there is no {path}")
    raise ProviderError(ProviderFault.REFUSED, f"{path} is no file")
