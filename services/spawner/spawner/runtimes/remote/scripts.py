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
from spawner.runtimes.boxes.script_output import parse_number
from spawner.runtimes.commands import TIMEOUT_STATUSES

RUN: Final = f"{ROOT}/run"
"""The directory with the state of the box's program."""
LABELS: Final = f"{RUN}/labels"
PROGRAM: Final = f"{RUN}/program"
SHORT: Final = 256 * 1024
"""Maximum output in bytes that is part of the reply; longer output is downloaded as files."""
_SCRIPT: Final = resources(__package__).joinpath("box.sh").read_text()
_SHELL: Final = 'export SANDHERD_SCRIPT={script}; exec /bin/sh -c "$SANDHERD_SCRIPT" sandherd-control {arguments}'
LINKED: Final = 3
"""The exit status of `refuse_link` for a path that contains a symbolic link."""
_TOOLCHAINS_OF_IMAGE: Final = '${SANDHERD_TOOLCHAINS:+"SANDHERD_TOOLCHAINS=$SANDHERD_TOOLCHAINS"}'
_REFUSE_LINK: Final = """[ ! -e "$1" ] || [ "$(readlink -f -- "$1"; echo .)" = "$(printf '%s\\n.' "$1")" ] || exit 3"""
_MAX_DIGITS: Final = 11
"""A number with more digits was not written by our scripts. As a time, it would be out of range."""


def command_line(*arguments: str) -> str:
    """The command line that calls a function of box.sh, the first argument, with the other arguments."""
    return _SHELL.format(script=shlex.quote(_SCRIPT), arguments=shlex.join(arguments))


def shell_line(argv: Sequence[str]) -> str:
    """The command line that runs these arguments."""
    return shlex.join(argv)


def program_file(argv: Sequence[str], environment: Mapping[str, str]) -> File:
    """The file with the command that starts the box's program with its variables. It contains no secret.

    Two variables are those of the image: `PATH`, and `SANDHERD_TOOLCHAINS` (the directory of agent SDKs).
    """
    variables = [f"{name}={value}" for name, value in environment.items()]
    arguments = shlex.join([f"HOME={ROOT}/home", "LANG=C.UTF-8", *variables, *_argv(argv)])
    return File(PROGRAM, f'exec env -i "PATH=$PATH" {_TOOLCHAINS_OF_IMAGE} {arguments}\n'.encode())


def labels_file(labels: Mapping[str, str]) -> File:
    """The file with a box's labels, because the Runtime API has none."""
    return File(LABELS, json.dumps(dict(labels)).encode())


def move_uploads(folder: str, files: Collection[File]) -> str:
    """The command line that moves uploaded files from a directory to their destinations, each atomically."""
    arguments = [argument for file in files for argument in (file.path, f"{file.mode:o}")]
    return command_line("place", folder, *arguments)


def refuse_link(path: str) -> str:
    """The command line that fails with `LINKED` if a path contains a symbolic link, also in a directory."""
    return shlex.join(["/bin/sh", "-c", _REFUSE_LINK, "sh", path])


def run_command(command: Command, folder: str) -> str:
    """The command line that runs a command. Output that is not part of the reply is written to `folder`."""
    variables = [f"{name}={value}" for name, value in command.environment.items()]
    work_folder = command.folder or f"{ROOT}/work"
    parameters = (f"{command.seconds:g}", str(command.max_output + 1), work_folder, folder, str(SHORT))
    return command_line("command_run", *parameters, *variables, *_argv(command.argv))


def _argv(argv: Sequence[str]) -> Sequence[str]:
    """The arguments of a command for `env`, which would take a command name with an equals sign for a variable."""
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv] if "=" in argv[0] else argv


@dataclass(frozen=True)
class CommandOutcome:
    """How a command ended, as reported by box.sh."""

    code: int | None
    """The exit status; None if there is none, because the command timed out."""
    size: int
    """The size of its output in bytes."""
    out: bytes = b""
    err: bytes = b""

    @property
    def is_complete(self) -> bool:
        """Whether the whole output was part of the reply."""
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

    def result(self, command: Command, elapsed: float) -> CommandResult:
        """The result of the command after `elapsed` seconds, with its output up to the limit."""
        timed_out = self.code is None or (self.code in TIMEOUT_STATUSES and elapsed >= command.seconds)
        out, err = self.out[: command.max_output], self.err[: max(0, command.max_output - len(self.out))]
        cut = len(out) + len(err) < len(self.out) + len(self.err)
        return CommandResult(None if timed_out else self.code, out, err, timed_out=timed_out, cut=cut)


@dataclass(frozen=True)
class ProgramState:
    """The state of a box's program, as reported by box.sh."""

    made: datetime | None = None
    """When the box was created."""
    runs: int = 0
    """How often the program was started."""
    end: ProgramEnd | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    frozen: bool = False
    aside: bool = False
    """Whether the box is marked as quarantined."""
    supervised: bool = False
    """Whether the process that will record the program's end still runs."""
    output: str = ""
    """The last line of the program's output."""

    @classmethod
    def read(cls, text: str) -> "ProgramState":
        """Parse the report of box.sh. Invalid parts are ignored, because the box's agent may have written anything."""
        fields = {name: value for name, _, value in (line.partition(" ") for line in text.split("\n"))}
        return cls(
            made=_parse_time(fields.get("made")),
            runs=max(1, _number(fields["runs"]) or 1) if "runs" in fields else 0,
            end=_end(fields["end"], fields.get("output", "")) if "end" in fields else None,
            labels=_labels(fields.get("labels", "{}")),
            frozen="frozen" in fields,
            aside="aside" in fields,
            supervised="supervised" in fields,
            output=fields.get("output", ""),
        )


def _end(text: str, output: str) -> ProgramEnd:
    code, _, cause = text.partition(" ")
    status = _number(code)
    return ProgramEnd(status, out_of_memory=cause == "memory", reason=output if status != 0 else "")


def _number(text: str) -> int | None:
    return parse_number(text, _MAX_DIGITS)


def _parse_time(text: str | None) -> datetime | None:
    seconds = _number(text or "")
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _labels(text: str) -> Mapping[str, str]:
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in labels.items() if isinstance(value, str)} if isinstance(labels, dict) else {}
