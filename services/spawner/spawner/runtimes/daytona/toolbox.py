"""Operations inside a started sandbox, through the toolbox that Daytona runs there."""

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

from spawner.runtimes.boxes.box_files import ROOT
from spawner.runtimes.boxes.provider import BoxSpec, Command, CommandResult, File, ProviderError, ProviderFault
from spawner.runtimes.boxes.retry import RetryLimits, with_retry
from spawner.runtimes.boxes.worker_bundle import WORKER, cached_archive
from spawner.runtimes.daytona import scripts
from spawner.runtimes.daytona.faults import DaytonaFaults, within
from spawner.runtimes.daytona.scripts import RUN, ProgramLife, line

_SHORT: Final = 30
"""The timeout in seconds of our scripts that do not wait for anything."""
_READ_STATE_SECONDS: Final = 10
"""The timeout in seconds of reading a sandbox's state: until then, changes of all other sandboxes are not noticed."""
_LONG: Final = 300
_GRACE: Final = 15


class Toolbox:
    """The toolbox of one started sandbox."""

    def __init__(self, sandbox: AsyncSandbox, errors: DaytonaFaults) -> None:
        self._sandbox = sandbox
        self._errors = errors

    async def life(self) -> ProgramLife:
        """The state of the program."""
        with self._faults("reading the state of"):
            output = await within(
                _READ_STATE_SECONDS, self._script_output("reading the state of", line(scripts.READ_STATE, RUN))
            )
        return self._parsed_state(output)

    async def set_up(self, spec: BoxSpec, bundled: bytes | None) -> None:
        """Create our directories, upload the worker if the image lacks it, and write the files."""
        program = spec.program[0]
        output = await self._script_output("creating directories in", scripts.setup(program))
        if output.strip().endswith("lacks") and PurePosixPath(program).is_relative_to(WORKER):
            await self._upload_worker(await cached_archive() if bundled is None else bundled)
        await self.write_files([File(f"{RUN}/program", scripts.program_file(spec.program)), *spec.files])

    async def start(self, number: int) -> ProgramLife:
        """Start this run of the program, unless it was started before, and wait until it has started."""
        session = f"sandherd-{number}"
        with self._faults("starting the program of"):
            with suppress(DaytonaConflictError):  # it exists: the reply to an earlier try was lost
                await self._sandbox.process.create_session(session, request_timeout=_SHORT)
            begin = SessionExecuteRequest(command=scripts.supervise(number), run_async=True)
            await self._sandbox.process.execute_session_command(session, begin, timeout=_SHORT)
        life = self._parsed_state(await self._script_output("starting", line(scripts.AWAIT, RUN, str(number), "200")))
        if life.runs < number:
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: the program of {self._name} did not start")
        return life

    async def stop(self, grace: float, patience: RetryLimits) -> ProgramLife:
        """Request the program to end, and kill it after `grace` seconds, which include all retries."""
        ticks, limit = str(math.ceil(max(0.0, grace) * 10)), math.ceil(max(0.0, grace)) + _GRACE

        async def once() -> str:
            return await self._script_output("stopping the program of", line(scripts.STOP, RUN, ticks), limit)

        with self._faults("stopping the program of"):
            return self._parsed_state(await within(limit, with_retry(once, patience)))

    async def run(self, command: Command) -> CommandResult:
        """Run a command; its standard output and error are merged."""
        folder, limit = command.folder or f"{ROOT}/work", command.max_output
        arguments = (folder, str(limit + 1), f"{command.seconds:g}", *command.argv)
        began = time.monotonic()
        with self._faults(f"running {command.argv[0]} in"):
            try:
                answer = await self._sandbox.process.exec(
                    line(scripts.BOUNDED, *arguments),
                    env=dict(command.environment) or None,
                    timeout=math.ceil(command.seconds) + _GRACE,
                )
            except TooLong:
                return CommandResult(None, b"", timed_out=True)
        output, code = self._bytes(answer.result), answer.exit_code
        late = code in scripts.ENDED and time.monotonic() - began >= command.seconds
        return CommandResult(None if late else code, output[:limit], timed_out=late, cut=len(output) > limit)

    async def write_files(self, files: Collection[File]) -> None:
        """Write files below `ROOT`, each atomically."""
        uploads = [(file, f"{RUN}/.upload-{uuid4().hex}") for file in files if _is_writable(file.path)]
        if not uploads:
            return
        with self._faults("writing files into"):
            await self._sandbox.fs.upload_files([FileUpload(file.content, part) for file, part in uploads], _LONG)
        arguments = [argument for file, part in uploads for argument in (f"{file.mode:o}", part, file.path)]
        await self._script_output("writing files into", line(scripts.PLACE, *arguments))

    async def read(self, path: str, limit: int) -> bytes:
        """Return a file's content."""
        offered = f"{RUN}/.offered-{uuid4().hex}"
        fields = (await self._script_output(f"reading {path} of", line(scripts.OFFER, path, offered))).split()
        try:
            _check_readable(fields, path, limit)
            with self._faults(f"reading {path} of"):
                content: bytes = await self._sandbox.fs.download_file(offered, _LONG)
        finally:
            if fields[:1] == ["size"]:
                await self._script_output("deleting a temporary file in", line(scripts.DROP, offered))
        return content

    async def _upload_worker(self, packed: bytes) -> None:
        part = f"{RUN}/.worker-{uuid4().hex}"
        with self._faults("uploading the worker to"):
            await self._sandbox.fs.upload_file(packed, part, _LONG)
        await self._script_output("unpacking the worker in", line(scripts.UNPACK, part, WORKER), _LONG)

    async def _script_output(self, what: str, command: str, seconds: int = _SHORT) -> str:
        """Run one of our scripts and return its output. Raises `ProviderError` if it fails."""
        with self._faults(what):
            answer = await self._sandbox.process.exec(command, timeout=seconds)
        if answer.exit_code != 0:
            output = self._errors.clean(answer.result.strip()[-500:])
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {what} {self._name}: {output or answer.exit_code}")
        return answer.result

    def _faults(self, what: str) -> AbstractContextManager[None]:
        return self._errors.faults(f"{what} {self._name}", inside=True)

    @property
    def _name(self) -> str:
        return str(self._sandbox.name)

    def _parsed_state(self, output: str) -> ProgramLife:
        try:
            return scripts.life(output)
        except ValueError:
            shown = self._errors.clean(output[:200])
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: invalid state of {self._name}: {shown!r}") from None

    def _bytes(self, output: str) -> bytes:
        try:
            return base64.b64decode("".join(output.split()), validate=True)
        except binascii.Error:
            shown = self._errors.clean(output[:200])
            raise ProviderError(ProviderFault.REFUSED, f"daytona: a command in {self._name} failed: {shown}") from None


def _is_writable(path: str) -> bool:
    """True if a file may be written there. Raises `ProviderError` if not."""
    whole = PurePosixPath(path)
    if not whole.is_relative_to(ROOT) or ".." in whole.parts:
        raise ProviderError(ProviderFault.REFUSED, f"{path} is not below {ROOT}, the writable directory of a box")
    return True


def _check_readable(fields: Sequence[str], path: str, limit: int) -> None:
    """Raise `ProviderError` if the file does not exist, is not a regular file, or is too large."""
    match fields:
        case ["size", size] if int(size) <= limit:
            return
        case ["size", size]:
            raise ProviderError(ProviderFault.REFUSED, f"{path} has {size} bytes; the limit is {limit}")
        case ["none"]:
            raise ProviderError(ProviderFault.NOT_FOUND, f"{path} does not exist")
    raise ProviderError(ProviderFault.REFUSED, f"{path} is not a regular file")
