"""For stand-ins of slow tools in a recorded sandbox: the recording's time, pauses, and counters between runs."""

# ruff: noqa: PTH103, PTH123, PTH202, TID251  # a program of its own, which may block; a start without pathlib takes half as long

import hashlib
import os
import random
import sys
import time

HOME = "/home/agent"
CLOCK = f"{HOME}/.clock"
COUNTERS = f"{HOME}/.counters"


def now() -> float:
    """The recording's time, in POSIX seconds."""
    with open(CLOCK) as file:
        return time.time() + sum(float(line.split()[1]) for line in file)


def stamp(form: str = "%Y-%m-%dT%H:%M:%S") -> str:
    """The recording's time as a text."""
    return time.strftime(form, time.gmtime(now()))


def pause(seconds: float, word: str = "") -> None:
    """Advance the recording's clock."""
    time.sleep(0.5 if seconds >= 60 else 0)  # the worker first sets the times of what was reported before a long pause
    with open(CLOCK, "a") as file:
        file.write(f"{time.time():.6f} {seconds} {word}\n")


def count(name: str) -> int:
    """The number of calls with this name, including this one."""
    os.makedirs(COUNTERS, exist_ok=True)
    path = f"{COUNTERS}/{name}"
    with open(path, "a") as file:
        file.write(".")
    return os.path.getsize(path)


def duration(low: float, high: float, digits: int = 2) -> str:
    """Seconds as tools print them, by which the clock advances."""
    seconds = random.uniform(low, high)
    pause(seconds)
    return f"{seconds:.{digits}f}"


def digest(length: int = 16) -> str:
    """A new hash."""
    return hashlib.sha256(os.urandom(8)).hexdigest()[:length]


def text_of(path: str) -> str:
    """The text of a file of the work tree; empty if there is none."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def fail(*lines: str, status: int = 1) -> None:
    """Print to standard error, and exit."""
    sys.stdout.flush()
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(status)
