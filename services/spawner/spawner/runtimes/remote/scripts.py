"""Command lines for the agent server in a box, and parsers of their output. Pure."""

import base64
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files as resources
from typing import Final

from spawner.runtimes.boxes.box_files import ROOT
from spawner.runtimes.boxes.provider import Command, CommandResult, File, ProgramEnd, ProviderError, ProviderFault

RUN: Final = f"{ROOT}/run"
"""The directory with the state of the box's program."""
LABELS: Final = f"{RUN}/labels"
PROGRAM: Final = f"{RUN}/program"
SHORT: Final = 256 * 1024
"""Maximum output in bytes that is part of the reply; longer output is downloaded as files."""
_SCRIPT: Final = resources(__package__).joinpath("box.sh").read_text()
_SHELL: Final = 'export SANDHERD_SCRIPT={script}; exec /bin/sh -c "$SANDHERD_SCRIPT" sandherd-control {arguments}'
LINKED: Final = 3
"""The exit status of `plain` for a path that contains a symbolic link."""
_IMAGES: Final = '${SANDHERD_TOOLCHAINS:+"SANDHERD_TOOLCHAINS=$SANDHERD_TOOLCHAINS"}'
_PLAIN: Final = """[ ! -e "$1" ] || [ "$(readlink -f -- "$1"; echo .)" = "$(printf '%s\\n.' "$1")" ] || exit 3"""
_DIGITS: Final = 12
"""More digits than any valid number written in a box; a time with that many would be out of range."""
_ENDED: Final = frozenset({124, 137, 143})
"""Exit statuses of `timeout` after it ended the command; a command may use them as well."""


def command_line(*arguments: str) -> str:
    """The command line that calls a function of box.sh, the first argument, with the other arguments."""
    return _SHELL.format(script=shlex.quote(_SCRIPT), arguments=shlex.join(arguments))


def line(argv: Sequence[str]) -> str:
    """The command line that runs these arguments."""
    return shlex.join(argv)


def program(argv: Sequence[str], environment: Mapping[str, str]) -> File:
    """The file that starts the box's program with its variables; it contains no secret.

    Two variables come from the image: `PATH`, and `SANDHERD_TOOLCHAINS` (the directory of agent SDKs).
    """
    variables = [f"{name}={value}" for name, value in environment.items()]
    arguments = shlex.join([f"HOME={ROOT}/home", "LANG=C.UTF-8", *variables, *_argv(argv)])
    return File(PROGRAM, f'exec env -i "PATH=$PATH" {_IMAGES} {arguments}\n'.encode())


def labels(found: Mapping[str, str]) -> File:
    """The file with a box's labels, because the Runtime API has none."""
    return File(LABELS, json.dumps(dict(found)).encode())


def move_uploads(folder: str, files: Collection[File]) -> str:
    """Moves files that were uploaded to a directory to their destinations, each atomically."""
    arguments = [argument for file in files for argument in (file.path, f"{file.mode:o}")]
    return command_line("place", folder, *arguments)


def plain(path: str) -> str:
    """Fails with `LINKED` for a path that contains a symbolic link, also in a directory."""
    return shlex.join(["/bin/sh", "-c", _PLAIN, "sh", path])


def running(command: Command, folder: str) -> str:
    """Runs a command; its output is in the directory if it is not part of the reply."""
    variables = [f"{name}={value}" for name, value in command.environment.items()]
    where = command.folder or f"{ROOT}/work"
    bounds = (f"{command.seconds:g}", str(command.max_output + 1), where, folder, str(SHORT))
    return command_line("command_run", *bounds, *variables, *_argv(command.argv))


def _argv(argv: Sequence[str]) -> Sequence[str]:
    """Arguments for `env`, which would treat a command's name with an equals sign as a variable."""
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv] if "=" in argv[0] else argv


@dataclass(frozen=True)
class CommandOutcome:
    """How a command ended, as reported by box.sh."""

    code: int | None
    size: int
    out: bytes = b""
    err: bytes = b""

    @property
    def is_complete(self) -> bool:
        """Whether its whole output was part of the reply."""
        return self.size <= SHORT

    @classmethod
    def read(cls, text: str) -> "CommandOutcome":
        """Parse the report of box.sh. Raises `ProviderError` (`refused`) if the box's agent has overwritten it."""
        first, *rest = text.split("\n")
        try:
            code, size = first.split(" ")
            out, err = (base64.b64decode(part) for part in ([*rest, "", ""])[:2])
            return cls(None if code == "none" else int(code), int(size), out, err)
        except ValueError:
            message = "remote: the result of a command can't be read: something in its box has overwritten it"
            raise ProviderError(ProviderFault.REFUSED, message) from None

    def ran(self, command: Command, took: float) -> CommandResult:
        """The result for the caller: output cut to its limit, and whether the command timed out."""
        late = self.code is None or (self.code in _ENDED and took >= command.seconds)
        out, err = self.out[: command.max_output], self.err[: max(0, command.max_output - len(self.out))]
        cut = len(out) + len(err) < len(self.out) + len(self.err)
        return CommandResult(None if late else self.code, out, err, timed_out=late, cut=cut)


@dataclass(frozen=True)
class ProgramState:
    """The state of a box's program, as reported by box.sh."""

    made: datetime | None = None
    runs: int = 0
    end: ProgramEnd | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    frozen: bool = False
    aside: bool = False
    supervised: bool = False
    """Whether the process that will record the program's end still runs."""
    output: str = ""

    @classmethod
    def read(cls, text: str) -> "ProgramState":
        """Parse the report of box.sh; invalid parts are ignored, because the box's agent may have written anything."""
        found = {name: value for name, _, value in (line.partition(" ") for line in text.split("\n"))}
        return cls(
            made=_moment(found.get("made")),
            runs=max(1, _number(found["runs"]) or 1) if "runs" in found else 0,
            end=_end(found["end"], found.get("output", "")) if "end" in found else None,
            labels=_labels(found.get("labels", "{}")),
            frozen="frozen" in found,
            aside="aside" in found,
            supervised="supervised" in found,
            output=found.get("output", ""),
        )


def _end(text: str, output: str) -> ProgramEnd:
    code, _, why = text.partition(" ")
    status = _number(code)
    return ProgramEnd(status, out_of_memory=why == "memory", reason=output if status != 0 else "")


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _DIGITS else None


def _moment(text: str | None) -> datetime | None:
    seconds = _number(text or "")
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _labels(text: str) -> Mapping[str, str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else {}
