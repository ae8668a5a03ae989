"""What is done inside a box, as commands for its agent server, and what they print. All pure."""

import base64
import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.resources import files as resources
from typing import Final

from spawner.runtimes.boxes.furnishing import ROOT
from spawner.runtimes.boxes.provider import Command, File, ProgramEnd, ProviderError, ProviderFault, Ran

RUN: Final = f"{ROOT}/run"
"""How the box's program fares is written there."""
LABELS: Final = f"{RUN}/labels"
PROGRAM: Final = f"{RUN}/program"
SHORT: Final = 256 * 1024
"""Up to so many bytes of output come with the answer; more is fetched as files."""
_SCRIPT: Final = resources(__package__).joinpath("box.sh").read_text()
_SHELL: Final = 'export SANDHERD_SCRIPT={script}; exec /bin/sh -c "$SANDHERD_SCRIPT" sandherd-control {words}'
LINKED: Final = 3
"""What `plain` ends with for a path that is not plain."""
_IMAGES: Final = '${SANDHERD_TOOLCHAINS:+"SANDHERD_TOOLCHAINS=$SANDHERD_TOOLCHAINS"}'
_PLAIN: Final = """[ ! -e "$1" ] || [ "$(readlink -f -- "$1"; echo .)" = "$(printf '%s\\n.' "$1")" ] || exit 3"""
_DIGITS: Final = 12
"""More than any number has that is written in a box: of its time it would be one that there is none of."""
_ENDED: Final = frozenset({124, 137, 143})
"""What `timeout` ends with when it had to end the command; a command may do so itself."""


def command(*words: str) -> str:
    """A command line that does this in a box: the first word is a function of box.sh."""
    return _SHELL.format(script=shlex.quote(_SCRIPT), words=shlex.join(words))


def line(argv: Sequence[str]) -> str:
    """A command line that runs this."""
    return shlex.join(argv)


def program(argv: Sequence[str], environment: Mapping[str, str]) -> File:
    """The box's program as a file, with its variables; nothing in it is secret.

    Of the image's own there are two: its way to programs, and where it has the SDKs of agents.
    """
    given = [f"{name}={value}" for name, value in environment.items()]
    words = shlex.join([f"HOME={ROOT}/home", "LANG=C.UTF-8", *given, *_argv(argv)])
    return File(PROGRAM, f'exec env -i "PATH=$PATH" {_IMAGES} {words}\n'.encode())


def labels(found: Mapping[str, str]) -> File:
    """A box's labels as a file: its provider knows none."""
    return File(LABELS, json.dumps(dict(found)).encode())


def place(folder: str, files: Collection[File]) -> str:
    """Puts files where they belong that were uploaded to a folder, each whole."""
    words = [word for file in files for word in (file.path, f"{file.mode:o}")]
    return command("place", folder, *words)


def plain(path: str) -> str:
    """Fails with `LINKED` for a path that leads over a link, of whatever folder."""
    return shlex.join(["/bin/sh", "-c", _PLAIN, "sh", path])


def running(given: Command, folder: str) -> str:
    """Runs a command; its output is in the folder if it doesn't come with the answer."""
    variables = [f"{name}={value}" for name, value in given.environment.items()]
    where = given.folder or f"{ROOT}/work"
    bounds = (f"{given.seconds:g}", str(given.most_output + 1), where, folder, str(SHORT))
    return command("command_run", *bounds, *variables, *_argv(given.argv))


def _argv(argv: Sequence[str]) -> Sequence[str]:
    """For `env`, which takes a command's name with an equals sign in it for a variable."""
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv] if "=" in argv[0] else argv


@dataclass(frozen=True)
class Outcome:
    """How a command ended, as box.sh says it."""

    code: int | None
    size: int
    out: bytes = b""
    err: bytes = b""

    @property
    def whole(self) -> bool:
        """Whether its output came along."""
        return self.size <= SHORT

    @classmethod
    def read(cls, text: str) -> "Outcome":
        """Raises `ProviderError` (`refused`) for what box.sh does not say: the box's agent may have written there."""
        first, *rest = text.split("\n")
        try:
            code, size = first.split(" ")
            out, err = (base64.b64decode(part) for part in ([*rest, "", ""])[:2])
            return cls(None if code == "none" else int(code), int(size), out, err)
        except ValueError:
            told = "remote: how a command has ended can't be read: something in its box has written over it"
            raise ProviderError(ProviderFault.REFUSED, told) from None

    def ran(self, given: Command, took: float) -> Ran:
        """The same as whoever asked wants it: in bounds, and a command that was ended for its time is said to be."""
        late = self.code is None or (self.code in _ENDED and took >= given.seconds)
        out, err = self.out[: given.most_output], self.err[: max(0, given.most_output - len(self.out))]
        cut = len(out) + len(err) < len(self.out) + len(self.err)
        return Ran(None if late else self.code, out, err, timed_out=late, cut=cut)


@dataclass(frozen=True)
class Look:
    """How a box's program fares, as box.sh says it."""

    made: datetime | None = None
    runs: int = 0
    end: ProgramEnd | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    frozen: bool = False
    aside: bool = False
    kept: bool = False
    """Whether there is still somebody who will write down its end."""
    said: str = ""

    @classmethod
    def read(cls, text: str) -> "Look":
        """As far as it can be read: the box's agent may have written anything there, and harms nobody by it."""
        found = {name: value for name, _, value in (line.partition(" ") for line in text.split("\n"))}
        return cls(
            made=_moment(found.get("made")),
            runs=max(1, _number(found["runs"]) or 1) if "runs" in found else 0,
            end=_end(found["end"], found.get("said", "")) if "end" in found else None,
            labels=_labels(found.get("labels", "{}")),
            frozen="frozen" in found,
            aside="aside" in found,
            kept="kept" in found,
            said=found.get("said", ""),
        )


def _end(text: str, said: str) -> ProgramEnd:
    code, _, why = text.partition(" ")
    status = _number(code)
    return ProgramEnd(status, out_of_memory=why == "memory", reason=said if status != 0 else "")


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
