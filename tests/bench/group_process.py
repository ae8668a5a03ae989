"""The process in which one group is measured: `python -m tests.bench.group_process MODULE:FUNCTION RUNS DESCRIPTOR`.

Results are written to the descriptor (`recorder.py`). SIGTERM cancels the measurement, which then ends what it started.
"""

import asyncio
import importlib
import os
import signal
import sys

from tests.bench.recorder import Recorder


def reason(error: BaseException) -> str:
    """The text of an error in one line; of a group of errors, the first one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


async def measure(name: str, recorder: Recorder) -> None:
    """Import the function, and run it. Its errors are raised."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    module, _, function = name.partition(":")
    await getattr(importlib.import_module(module), function)(recorder)


def main(name: str, runs: int, descriptor: int) -> None:
    """Measure. Raises the error of the measurement after reporting it."""
    os.set_inheritable(descriptor, False)
    with os.fdopen(descriptor, "w") as pipe:
        recorder = Recorder(runs, pipe)
        try:
            asyncio.run(measure(name, recorder))
        except BaseException as error:  # raised again: the reason is shown with the group
            recorder.end(reason(error))
            raise
        recorder.end()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
