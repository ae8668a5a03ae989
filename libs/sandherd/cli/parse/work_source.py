"""Splits the files of a task: small texts become part of its spec; a folder and other files are uploaded."""

from collections.abc import Sequence
from pathlib import Path

from sandherd.cli.parse.task_spec import name_in_tree
from sandherd.client.errors import HerdError
from sandherd.client.work_source import WorkSource
from sandherd.contracts.errors import Code
from sandherd.contracts.specs import MAX_FILES_BYTES


def split(files: Sequence[Path], folder: Path | None) -> tuple[list[Path], WorkSource]:
    """The files for the spec, and the files to upload. Raises `HerdError` for a missing folder, or equal file names.

    All files are uploaded if there is a folder, or if one of them is not text or they are too large for the spec.
    """
    if folder is not None and not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        remedy = "name a folder, or use --file for a file" if folder.exists() else "name an existing folder"
        raise HerdError.of(Code.INVALID_FIELD, f"--dir {folder} {problem}", field="dir", remedy=remedy)
    if folder is None and _are_small_texts(files):
        return list(files), WorkSource()
    files_by_name: dict[str, Path] = {}
    for path in files:
        name = name_in_tree(path)
        if name in files_by_name:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"two files are named {name}",
                field="files",
                remedy="give one of them another name",
            )
        files_by_name[name] = path
    return [], WorkSource(folder, files_by_name)


def _are_small_texts(files: Sequence[Path]) -> bool:
    """Whether all files are UTF-8 text and together small enough for the spec.

    True if a file can't be read, because the function that builds the spec reports that error. True also for a pipe or
    a terminal, because its content can be read only once.
    """
    remaining_bytes = MAX_FILES_BYTES
    for path in files:
        if path.exists() and not path.is_file():
            return True
        remaining_bytes -= len(name_in_tree(path).encode())
        try:
            with path.open("rb") as file:
                content = file.read(max(0, remaining_bytes) + 1)
            content.decode()
        except OSError:
            return True
        except UnicodeDecodeError:
            return False
        remaining_bytes -= len(content)
    return remaining_bytes >= 0
