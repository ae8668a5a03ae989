"""Files as a pod takes them: tar archives, which every image can unpack. All pure."""

import io
import tarfile
from collections.abc import Collection
from pathlib import PurePosixPath

from spawner.runtimes.boxes.furnishing import ROOT
from spawner.runtimes.boxes.provider import File, ProviderError, ProviderFault


def packed(files: Collection[File]) -> bytes:
    """An archive to be unpacked in our folder. Raises `ProviderError` for a file that lies elsewhere."""
    made = io.BytesIO()
    # GNU's form: busybox knows it, and long names in it, and not the other.
    with tarfile.open(fileobj=made, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for file in files:
            member = tarfile.TarInfo(_inside(file.path))
            member.size, member.mode = len(file.content), file.mode
            archive.addfile(member, io.BytesIO(file.content))
    return made.getvalue()


def _inside(path: str) -> str:
    whole = PurePosixPath(path)
    if not whole.is_relative_to(ROOT) or ".." in whole.parts:
        raise ProviderError(ProviderFault.REFUSED, f"{path} does not lie below {ROOT}, where a box may be written to")
    return f"./{whole.relative_to(ROOT)}"
