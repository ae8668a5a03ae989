"""The worker's entry point: `python -m sandherd_worker.main [--recover | --warm]`.

Settings come from environment variables. `--recover` runs no agent: it drains the spool of a lost worker, and publishes
in its place the attempt's end and the sandbox's last event. `--warm` loads all modules, waits until a byte is written
to the pipe `begin` in its state directory, reads its variables from `environment.json` beside the pipe, and then runs
as usual. The exit status is an `ExitCode`.
"""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sandherd.lazy_imports import end_start, load_nats, start_lean
from sandherd_worker.confinement import hide_from_agents
from sandherd_worker.worker_exit import ExitCode

if TYPE_CHECKING:
    from sandherd.contracts.commands import SandboxSpec
    from sandherd_worker.assignment import Assignment

_USAGE = "usage: sandherd-worker [--recover | --warm]   (started by a runtime; see `sandherd_worker.assignment`)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one worker until it ends, and return its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments not in ([], ["--recover"], ["--warm"]):
        sys.stderr.write(f"{_USAGE}\n")
        return ExitCode.USAGE
    hide_from_agents()
    start_lean()
    load_nats()
    if arguments == ["--warm"]:
        return _warm()
    return _run(os.environ, recovering=bool(arguments))


def preload() -> None:
    """Load the modules that a worker needs, in the process from which workers are forked.

    That process has no sandbox's variables, so no module may read them when it is imported.
    """
    start_lean()
    load_nats()
    import platform

    from sandherd_worker.warm_start import load

    load()
    platform._uname_cache = None  # type: ignore[attr-defined]  # noqa: SLF001  # the host's name, read by module `uuid`


def _warm() -> int:
    from sandherd_worker.warm_start import WarmError, wait_for_identity

    try:
        environ = wait_for_identity(os.environ)
    except WarmError as error:
        sys.stderr.write(f"sandherd-worker: {error}\n")
        return ExitCode.USAGE
    return ExitCode.DRAINED if environ is None else _run(environ, recovering=False)


def _run(environ: Mapping[str, str], *, recovering: bool) -> int:
    from sandherd.contracts.errors import ContractError
    from sandherd.telemetry import logs
    from sandherd_worker.assignment import Assignment, AssignmentError
    from sandherd_worker.harness_factory import read_spec

    try:
        assignment = Assignment.read(environ)
        logs.configure("worker", assignment.log_level)
        spec = None if recovering else read_spec(assignment)
    except (AssignmentError, ContractError, OSError) as error:
        sys.stderr.write(f"sandherd-worker: {error}\n")
        return ExitCode.USAGE
    return _live(assignment, spec)


def _live(assignment: "Assignment", spec: "SandboxSpec | None") -> int:
    from sandherd.telemetry import logs
    from sandherd_worker.spool_disk import SpoolBusyError, SpoolError
    from sandherd_worker.worker_lifecycle import run_worker

    end_start()
    try:
        return asyncio.run(run_worker(assignment, spec))
    except SpoolBusyError as error:
        logs.get("main").error("state directory is in use by another worker", error=str(error))
        return ExitCode.BUSY
    except SpoolError as error:
        logs.get("main").error("spool unusable", error=str(error))
        return ExitCode.SPOOL


if __name__ == "__main__":
    sys.exit(main())
