"""Files as the Docker Engine and a container's gate take them: tar archives. All pure."""

import io
import tarfile
from collections.abc import Collection
from pathlib import PurePosixPath
from typing import Final

from spawner.runtimes.boxes.bundle import WORKER
from spawner.runtimes.boxes.furnishing import FOLDERS, ROOT
from spawner.runtimes.boxes.provider import File, ProviderError, ProviderFault

GIVEN: Final = "state/.given"
"""The last of all files, empty: where it is, the others are."""


def fresh(files: Collection[File], owner: tuple[int, int]) -> bytes:
    """An archive for a box that has nothing yet: its folders and its files, all of them the box's user's."""
    return _packed([f"./{name}" for name in FOLDERS], files, owner)


def later(files: Collection[File], owner: tuple[int, int]) -> bytes:
    """An archive for a box that has its folders."""
    return _packed([], files, owner)


def grounds(owner: tuple[int, int]) -> bytes:
    """An archive for an image: the folders that a box's volume begins with, and one for the worker."""
    made = io.BytesIO()
    with _writing(made) as archive:
        for folder in (ROOT.lstrip("/"), WORKER.lstrip("/")):
            _add_folder(archive, folder, 0o755, (0, 0))
        for name in FOLDERS:
            _add_folder(archive, f"{ROOT.lstrip('/')}/{name}", 0o700, owner)
    return made.getvalue()


def inside(path: str) -> str:
    """A path below our folder, as in an archive. Raises `ProviderError` for one that lies elsewhere."""
    whole = PurePosixPath(path)
    if not whole.is_relative_to(ROOT) or ".." in whole.parts:
        raise ProviderError(ProviderFault.REFUSED, f"{path} does not lie below {ROOT}, where a box may be written to")
    return f"./{whole.relative_to(ROOT)}"


def only_file(archive: tarfile.TarFile, path: str, limit: int) -> bytes:
    """The one file in an archive. Raises `ProviderError` for what is none, or too large."""
    member = archive.next()
    content = archive.extractfile(member) if member is not None and member.isfile() else None
    if member is None or content is None:
        raise ProviderError(ProviderFault.REFUSED, f"{path} is no file")
    if member.size > limit:
        raise ProviderError(ProviderFault.REFUSED, f"{path} weighs {member.size} bytes; the limit is {limit}")
    return content.read()


def _packed(folders: Collection[str], files: Collection[File], owner: tuple[int, int]) -> bytes:
    packed = io.BytesIO()
    with _writing(packed) as archive:
        for folder in folders:
            _add_folder(archive, folder, 0o700, owner)
        for file in (*files, File(f"{ROOT}/{GIVEN}", b"")):
            member = tarfile.TarInfo(inside(file.path))
            member.size, member.mode = len(file.content), file.mode
            member.uid, member.gid = owner
            archive.addfile(member, io.BytesIO(file.content))
    return packed.getvalue()


def _writing(target: io.BytesIO) -> tarfile.TarFile:
    """In GNU's form: busybox knows it, and long names in it, and not the other."""
    return tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT)


def _add_folder(archive: tarfile.TarFile, name: str, mode: int, owner: tuple[int, int]) -> None:
    member = tarfile.TarInfo(name)
    member.type, member.mode = tarfile.DIRTYPE, mode
    member.uid, member.gid = owner
    archive.addfile(member)
