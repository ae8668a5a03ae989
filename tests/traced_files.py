"""Records which files of the product run during a part of a test, in its own process and in those that it starts."""

import mmap
import os
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

ROOT: Final = Path(__file__).parents[1]
_FLAG: Final = "recording"
_FOLDER: Final = "SANDHERD_TRACED_IN"
_OFF: Final = 0
_SITECUSTOMIZE: Final = f"""
import mmap, os, sys, threading

def begin(folder):
    flag = mmap.mmap(os.open(folder + "/{_FLAG}", os.O_RDWR), 1)
    seen = set()
    file = os.open(folder + "/" + str(os.getpid()) + ".files", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def note(frame, event, arg):
        name = frame.f_code.co_filename
        number = flag[0]
        if event == "call" and number != {_OFF} and (number, name) not in seen:
            seen.add((number, name))
            os.write(file, (str(number) + " " + name + "\\n").encode())

    threading.setprofile(note)
    sys.setprofile(note)

if "{_FOLDER}" in os.environ:
    begin(os.environ["{_FOLDER}"])
"""


class Recording:
    """The files in which functions were called between its start and its end."""

    def __init__(self, number: int, folder: Path, ignored: Collection[str]) -> None:
        self.number = number
        self._folder = folder
        self._ignored = {str(ROOT / file) for file in ignored}
        self._here: set[str] = set()

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        """Record a call in this process. Set it as the profile function."""
        name = frame.f_code.co_filename
        if event == "call" and name not in self._here and not self._is_ignored(frame):
            self._here.add(name)

    def _is_ignored(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_filename in self._ignored:
                return True
            frame = frame.f_back
        return False

    def here(self) -> set[str]:
        """The product's files that have run in this process, as paths relative to the root."""
        return _of_product(self._here)

    def elsewhere(self) -> set[str]:
        """The product's files that have run in the other processes."""
        lines = [line for file in self._folder.glob("*.files") for line in file.read_text().splitlines()]
        pairs = [line.split(" ", 1) for line in lines]
        return _of_product({name for number, name in pairs if int(number) == self.number})


class TracedFiles:
    """Records in which files functions are called; one object can make at most 255 recordings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._recordings = 0
        (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE)
        (folder / _FLAG).write_bytes(bytes([_OFF]))
        descriptor = os.open(folder / _FLAG, os.O_RDWR)
        self._flag = mmap.mmap(descriptor, 1)
        os.close(descriptor)

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables that make a Python process record as well, from its start."""
        return {"PYTHONPATH": str(self._folder), _FOLDER: str(self._folder)}

    @contextmanager
    def recording(self, ignoring: Collection[str] = ()) -> Iterator[Recording]:
        """Record, in this process and in those that were started with `environment`.

        Calls in this process that come from one of the files in `ignoring` are not recorded.
        """
        self._recordings += 1
        recording = Recording(self._recordings, self._folder, ignoring)
        threading.setprofile(recording.note)
        sys.setprofile(recording.note)
        self._flag[0] = recording.number
        try:
            yield recording
        finally:
            self._flag[0] = _OFF
            sys.setprofile(None)
            threading.setprofile(None)

    def close(self) -> None:
        """Release the file that starts and stops the recording."""
        self._flag.close()


def _of_product(files: set[str]) -> set[str]:
    folders = tuple(f"{ROOT / folder}/" for folder in ("libs", "services"))
    return {str(Path(file).relative_to(ROOT)) for file in files if file.startswith(folders)}
