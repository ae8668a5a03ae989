"""Laying out an archive in the work tree, or beside it: whole, or nothing of it is seen. All of it blocks."""

import os
import secrets
import shutil
from pathlib import Path
from typing import IO

from sandherd.contracts.errors import Code, ContractError
from sandherd.merging import ClashError, merge
from sandherd_worker.access.beneath import opened
from sandherd_worker.archive import unpack
from sandherd_worker.ignore import UNFINISHED


def lay(archive: IO[bytes], folder: int, name: str, path: str, limit: int) -> int:
    """Unpack it as `name` in a folder that is held open; into one that is there (`.` is the folder itself), merge it.

    `path` is what it is called where something is wrong. Returns how many files it held. Raises `ContractError`,
    `OSError`.
    """
    staging = f"{UNFINISHED}{secrets.token_hex(8)}"
    os.mkdir(staging, 0o755, dir_fd=folder)
    try:
        with opened(folder, staging, path) as source:
            files = unpack(archive, Path(f"/proc/self/fd/{source}"), limit)
            if name != "." and not _exists(folder, name):
                os.rename(staging, name, src_dir_fd=folder, dst_dir_fd=folder)
            else:
                with opened(folder, name, path) as target:
                    merge(source, target)
    except ClashError as clash:
        raise ContractError(
            Code.CONFLICT,
            f"{path[:200]}/{str(clash)[:200]} is a folder, and in the archive it is none, or the other way round",
            field="path",
            remedy="remove or rename it, or choose another path",
        ) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True, dir_fd=folder)
    return files


def _exists(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
