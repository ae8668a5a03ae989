"""A program: runs `sandherd` many times, each as a fork of this process, which has loaded all modules once.

    python -m tests.integration.operating.forked_commands FOLDER <CASES.json

Prints a JSON list of the exit status, standard output and standard error of each case. A fork ends like any other
Python process, with the interpreter's own flush of what was printed.
"""

import gc
import io
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from sandherd.admin import backup, deployment, toolchains  # noqa: F401  # loaded before any fork
from sandherd.cli import (
    local_stack,  # noqa: F401  # the same
    main,
)
from sandherd.cli.doctor import checks  # noqa: F401  # the same
from sandherd.cli.render import history  # noqa: F401  # the same
from tests.preloaded_cli.server import preload

AT_ONCE: Final = 8


@dataclass
class Case:
    """One call. `output`: `kept`, `full` (/dev/full) or `closed`; `encoding` is that of both outputs."""

    words: list[str]
    environ: dict[str, str] = field(default_factory=dict)
    output: str = "kept"
    encoding: str = "utf-8"
    done: tuple[int, str, str] = (0, "", "")
    """The result: exit status, standard output, standard error."""


def run(case: Case, folder: Path) -> None:
    """Run the command in the fork, with the streams of the case. Raises `SystemExit`."""
    os.environ.clear()
    os.environ.update(case.environ)
    stored = os.open(folder / "out", os.O_WRONLY | os.O_CREAT)
    os.dup2(os.open("/dev/full", os.O_WRONLY) if case.output == "full" else stored, 1)
    os.dup2(os.open(folder / "error", os.O_WRONLY | os.O_CREAT), 2)
    os.closerange(3, 64)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding=case.encoding)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), encoding=case.encoding, line_buffering=True)
    if case.output == "closed":
        os.close(1)
        setattr(sys, "stdout", None)  # noqa: B010  # as Python does at its start
    main([os.fsdecode(word.encode("utf-8", "surrogateescape")) for word in case.words])


def run_all(cases: list[Case], folder: Path) -> None:
    """Run several at once: most of the time each waits for a reply."""
    running: dict[int, int] = {}
    for number, case in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        child = os.fork()
        if not child:
            run(case, place)
        running[child] = number
        if len(running) == AT_ONCE:
            wait(cases, folder, running)
    while running:
        wait(cases, folder, running)


def wait(cases: list[Case], folder: Path, running: dict[int, int]) -> None:
    child, status = os.wait()
    number = running.pop(child)
    out, error = ((folder / str(number) / name).read_text("utf-8", "replace") for name in ("out", "error"))
    cases[number].done = os.waitstatus_to_exitcode(status), out, error


if __name__ == "__main__":
    given = [Case(**case) for case in json.load(sys.stdin)]
    preload()
    gc.collect()
    gc.freeze()  # the garbage collector of a fork would copy what is loaded
    run_all(given, Path(sys.argv[1]))
    print(json.dumps([asdict(case) for case in given]))
