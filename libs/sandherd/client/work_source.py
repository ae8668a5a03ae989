"""The files that a task begins with, by their paths on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class WorkSource:
    """A local folder, without what git ignores and without `.git`, and single files by their paths in the work tree."""

    folder: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.folder is not None or bool(self.files)
