"""The files of a task: small texts are part of its spec; a folder, and all other files, are uploaded as an archive."""

from collections.abc import Sequence
from pathlib import Path

from sandherd.cli.parse.task_spec import name_in_tree
from sandherd.client.errors import HerdError
from sandherd.client.work_source import WorkSource
from sandherd.contracts.errors import Code
from sandherd.contracts.specs import MAX_FILES_BYTES


def split(files: Sequence[Path], folder: Path | None) -> tuple[list[Path], WorkSource]:
    """The files that fit into the spec, and what is to be uploaded. Raises `HerdError` for what can't be read.

    With a folder all files are uploaded, so that the task begins with them.
    """
    if folder is not None and not folder.is_dir():
        found = "is a file, not a folder" if folder.exists() else "does not exist"
        remedy = "name a folder, or use --file for a file" if folder.exists() else "name an existing folder"
        raise HerdError.of(Code.INVALID_FIELD, f"--dir {folder} {found}", field="dir", remedy=remedy)
    if folder is None and _are_small_texts(files):
        return list(files), WorkSource()
    named: dict[str, Path] = {}
    for path in files:
        name = name_in_tree(path)
        if name in named:
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"two files are named {name}",
                field="files",
                remedy="give one of them another name",
            )
        named[name] = path
    return [], WorkSource(folder, named)


def _are_small_texts(files: Sequence[Path]) -> bool:
    """Whether all of these are text and small enough. What can't be read is reported where it is read again.

    A pipe or a terminal can be read only once: it is taken to be text.
    """
    left = MAX_FILES_BYTES
    for path in files:
        if path.exists() and not path.is_file():
            return True
        left -= len(name_in_tree(path).encode())
        try:
            with path.open("rb") as file:
                content = file.read(max(0, left) + 1)
            content.decode()
        except OSError:
            return True
        except UnicodeDecodeError:
            return False
        left -= len(content)
    return left >= 0
