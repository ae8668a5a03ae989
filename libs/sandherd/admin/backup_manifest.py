"""The manifest of a backup: the version, and for each stream its configuration and the digest of its file."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

MANIFEST_FILE: Final = "backup.json"
FORMAT: Final = 1


def read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    """The streams of a backup, each with a verified file. Raises `HerdError`."""
    with folder_errors(folder):
        manifest = json.loads((folder / MANIFEST_FILE).read_text())
        if manifest["format"] != FORMAT:
            raise ValueError(f"it was created by version {manifest['version']}, which uses another format")
        for name, saved in manifest["streams"].items():
            with (folder / f"{name}.snapshot").open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != saved["sha256"]:
                    raise ValueError(f"{name}.snapshot was changed or damaged")
        return dict(manifest["streams"])


def replicas_of(folder: Path) -> int:
    """The number of servers that stored each stream of a backup. Raises `HerdError`."""
    numbers = (saved["config"].get("num_replicas") or 1 for saved in read_manifest(folder).values())
    return max(numbers, default=1)


@contextmanager
def folder_errors(folder: Path) -> Iterator[None]:
    """A context that raises errors of a backup's folder as `HerdError`."""
    try:
        yield
    except FileExistsError:
        raise HerdError.of(Code.CONFLICT, f"{folder} already exists", remedy="name a new folder") from None
    except FileNotFoundError as error:
        missing = folder if not folder.exists() else error.filename
        raise HerdError.of(
            Code.REFUSED, f"{missing}: no such file or folder", remedy="name the folder of a complete backup"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HerdError.of(
            Code.REFUSED, f"{folder} can't be used: {error}", remedy="name the folder of a complete backup"
        ) from None
