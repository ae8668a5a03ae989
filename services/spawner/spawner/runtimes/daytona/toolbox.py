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
from spawner.runtimes.commands import TIMEOUT_STATUSES
from spawner.runtimes.daytona import scripts
from spawner.runtimes.daytona.faults import DaytonaFaults, within
from spawner.runtimes.daytona.scripts import RUN, DaytonaProgramState, command_line

_SHORT_SECONDS: Final = 30
"""The timeout in seconds of our scripts that do not wait for anything."""
_READ_STATE_SECONDS: Final = 10
"""The timeout in seconds of reading a sandbox's state. It is short, because a change of another sandbox is noticed only
when the states of all sandboxes were read."""
_TRANSFER_SECONDS: Final = 300
"""The timeout in seconds of uploads, downloads and unpacking."""
_GRACE: Final = 15
"""Additional seconds to wait for the reply to a script that has its own timeout."""


class Toolbox:
    """The toolbox of one started sandbox."""

    def __init__(self, sandbox: AsyncSandbox, errors: DaytonaFaults) -> None:
        self._sandbox = sandbox
        self._errors = errors

    async def program_state(self) -> DaytonaProgramState:
        """The state of the program."""
        with self._faults("reading the state of"):
            output = await within(
                _READ_STATE_SECONDS, self._script_output("reading the state of", command_line(scripts.READ_STATE, RUN))
            )
        return self._parse_state(output)

    async def set_up(self, spec: BoxSpec, worker: bytes | None) -> None:
        """Create our directories, upload the worker if the image lacks it, and write the files.

        `worker`: the worker's archive; None: the archive of the worker that is installed here.
        """
        program = spec.program[0]
        output = await self._script_output("creating directories in", scripts.setup(program))
        if output.strip().endswith("lacks") and PurePosixPath(program).is_relative_to(WORKER):
            await self._upload_worker(await cached_archive() if worker is None else worker)
        await self.write_files([File(f"{RUN}/program", scripts.program_file(spec.program)), *spec.files])

    async def start(self, number: int) -> DaytonaProgramState:
        """Start this run of the program, unless it was started before, and wait until it has started."""
        session = f"sandherd-{number}"
        with self._faults("starting the program of"):
            with suppress(DaytonaConflictError):  # the session exists, because the reply to an earlier try was lost
                await self._sandbox.process.create_session(session, request_timeout=_SHORT_SECONDS)
            begin = SessionExecuteRequest(command=scripts.supervise(number), run_async=True)
            await self._sandbox.process.execute_session_command(session, begin, timeout=_SHORT_SECONDS)
        state = self._parse_state(
            await self._script_output("starting", command_line(scripts.AWAIT_RUN, RUN, str(number), "200"))
        )
        if state.runs < number:
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: the program of {self._name} did not start")
        return state

    async def stop(self, grace: float, retries: RetryLimits) -> DaytonaProgramState:
        """Request the program to end, and kill it after `grace` seconds, which include all retries."""
        ticks, limit = str(math.ceil(max(0.0, grace) * 10)), math.ceil(max(0.0, grace)) + _GRACE

        async def once() -> str:
            return await self._script_output("stopping the program of", command_line(scripts.STOP, RUN, ticks), limit)

        with self._faults("stopping the program of"):
            return self._parse_state(await within(limit, with_retry(once, retries)))

    async def run(self, command: Command) -> CommandResult:
        """Run a command. The standard output and error in the result are merged."""
        folder, limit = command.folder or f"{ROOT}/work", command.max_output
        arguments = (folder, str(limit + 1), f"{command.seconds:g}", *command.argv)
        began = time.monotonic()
        with self._faults(f"running {command.argv[0]} in"):
            try:
                reply = await self._sandbox.process.exec(
                    command_line(scripts.RUN_COMMAND, *arguments),
                    env=dict(command.environment) or None,
                    timeout=math.ceil(command.seconds) + _GRACE,
                )
            except TooLong:
                return CommandResult(None, b"", timed_out=True)
        output, code = self._decode(reply.result), reply.exit_code
        timed_out = code in TIMEOUT_STATUSES and time.monotonic() - began >= command.seconds
        return CommandResult(None if timed_out else code, output[:limit], timed_out=timed_out, cut=len(output) > limit)

    async def write_files(self, files: Collection[File]) -> None:
        """Write files below `ROOT`, each atomically."""
        uploads = [(file, f"{RUN}/.upload-{uuid4().hex}") for file in files if _is_writable(file.path)]
        if not uploads:
            return
        with self._faults("writing files into"):
            await self._sandbox.fs.upload_files(
                [FileUpload(file.content, upload) for file, upload in uploads], _TRANSFER_SECONDS
            )
        arguments = [argument for file, upload in uploads for argument in (f"{file.mode:o}", upload, file.path)]
        await self._script_output("writing files into", command_line(scripts.MOVE_UPLOADS, *arguments))

    async def read(self, path: str, limit: int) -> bytes:
        """Return a file's content."""
        link = f"{RUN}/.offered-{uuid4().hex}"
        fields = (
            await self._script_output(f"reading {path} of", command_line(scripts.LINK_FOR_DOWNLOAD, path, link))
        ).split()
        try:
            _check_readable(fields, path, limit)
            with self._faults(f"reading {path} of"):
                content: bytes = await self._sandbox.fs.download_file(link, _TRANSFER_SECONDS)
        finally:
            if fields[:1] == ["size"]:
                await self._script_output("deleting a temporary file in", command_line(scripts.DELETE, link))
        return content

    async def _upload_worker(self, archive: bytes) -> None:
        upload = f"{RUN}/.worker-{uuid4().hex}"
        with self._faults("uploading the worker to"):
            await self._sandbox.fs.upload_file(archive, upload, _TRANSFER_SECONDS)
        await self._script_output(
            "unpacking the worker in", command_line(scripts.UNPACK, upload, WORKER), _TRANSFER_SECONDS
        )

    async def _script_output(self, what: str, command: str, seconds: int = _SHORT_SECONDS) -> str:
        """Run one of our scripts and return its output. Raises `ProviderError` if it fails."""
        with self._faults(what):
            reply = await self._sandbox.process.exec(command, timeout=seconds)
        if reply.exit_code != 0:
            output = self._errors.clean(reply.result.strip()[-500:])
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {what} {self._name}: {output or reply.exit_code}")
        return reply.result

    def _faults(self, what: str) -> AbstractContextManager[None]:
        return self._errors.faults(f"{what} {self._name}", inside=True)

    @property
    def _name(self) -> str:
        return str(self._sandbox.name)

    def _parse_state(self, output: str) -> DaytonaProgramState:
        try:
            return scripts.parse_state(output)
        except ValueError:
            shown = self._errors.clean(output[:200])
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: invalid state of {self._name}: {shown!r}") from None

    def _decode(self, output: str) -> bytes:
        try:
            return base64.b64decode("".join(output.split()), validate=True)
        except binascii.Error:
            shown = self._errors.clean(output[:200])
            raise ProviderError(ProviderFault.REFUSED, f"daytona: a command in {self._name} failed: {shown}") from None


def _is_writable(path: str) -> bool:
    """Always true. Raises `ProviderError` if a file may not be written to this path."""
    absolute = PurePosixPath(path)
    if not absolute.is_relative_to(ROOT) or ".." in absolute.parts:
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
