"""Files as the Docker Engine takes them: tar archives. All pure."""

import io
import tarfile
from collections.abc import Collection
from pathlib import PurePosixPath

from spawner.runtimes.boxes.furnishing import FOLDERS, ROOT
from spawner.runtimes.boxes.provider import File, ProviderError, ProviderFault


def fresh(files: Collection[File], owner: tuple[int, int]) -> bytes:
    """An archive for a box that has nothing yet: its folders and its files, all of them the box's user's."""
    return _packed(["."] + [f"./{name}" for name in FOLDERS], files, owner)


def later(files: Collection[File], owner: tuple[int, int]) -> bytes:
    """An archive for a box that has its folders."""
    return _packed([], files, owner)


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
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder in folders:
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o700
            member.uid, member.gid = owner
            archive.addfile(member)
        for file in files:
            member = tarfile.TarInfo(inside(file.path))
            member.size, member.mode = len(file.content), file.mode
            member.uid, member.gid = owner
            archive.addfile(member, io.BytesIO(file.content))
    return packed.getvalue()
