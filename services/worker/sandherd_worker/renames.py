"""Which of the files that are new are files that are gone, under another name."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sandherd_worker.fingerprints import IDENTITY_BYTES, size_of


class Gone(NamedTuple):
    """A file that is not there any more."""

    path: str
    signature: bytes
    digest: bytes
    """Of its content; empty if that was not read."""


def renames(gone: Iterable[Gone], new: Mapping[str, bytes], digest: Callable[[str], bytes]) -> dict[str, str]:
    """The old path for each new one that has one; `new` tells the signatures.

    It is the same file, or one of the same content: only what has the size of a file that is gone is read.
    """
    left = {one.path: one for one in gone}
    files = {one.signature[:IDENTITY_BYTES]: one.path for one in left.values()}
    found = {path: files[mark] for path, signature in new.items() if (mark := signature[:IDENTITY_BYTES]) in files}
    found = {path: old for old, path in {old: path for path, old in sorted(found.items(), reverse=True)}.items()}
    for old in found.values():
        del left[old]
    return found | _alike(left, {path: signature for path, signature in new.items() if path not in found}, digest)


def _alike(left: Mapping[str, Gone], new: Mapping[str, bytes], digest: Callable[[str], bytes]) -> dict[str, str]:
    contents: dict[bytes, list[str]] = {}
    for one in sorted(left.values()):
        if one.digest and size_of(one.signature) > 0:
            contents.setdefault(one.digest, []).append(one.path)
    sizes = {size_of(one.signature) for one in left.values()} - {0}
    found = {}
    for path, signature in sorted(new.items()):
        olds = contents.get(digest(path), []) if size_of(signature) in sizes else []
        if olds:
            found[path] = olds.pop(_nearest(path, olds))
    return found


def _nearest(path: str, olds: list[str]) -> int:
    """Of several files of one content, the one of the same name."""
    name = path.rpartition("/")[2]
    return next((index for index, old in enumerate(olds) if old.rpartition("/")[2] == name), 0)
