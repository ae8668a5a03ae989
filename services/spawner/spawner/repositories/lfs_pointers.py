"""Pointers of Git LFS: small files in place of large ones, which name them by size and SHA-256. Pure."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

MAX_POINTER: Final = 1024
"""Maximum bytes of a pointer. A larger file is not a pointer."""
_VERSION: Final = rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
_POINTER: Final = re.compile(
    _VERSION + rb"(?:ext-.+\n)*oid sha256:(?P<oid>[0-9a-f]{64})\nsize (?P<size>[0-9]{1,15})\n?"
)
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class LfsPointer:
    """The content of a pointer: the SHA-256 of an object, and its size in bytes."""

    oid: str
    size: int


def pointer_of(content: bytes) -> LfsPointer | None:
    """The pointer in a file with this content; None if the file is not a pointer."""
    match = _POINTER.fullmatch(content) if len(content) <= MAX_POINTER else None
    return LfsPointer(match["oid"].decode(), int(match["size"])) if match else None


def by_oid(pointers: Iterable[LfsPointer]) -> list[LfsPointer]:
    """One pointer for each object, sorted by the object's SHA-256."""
    return sorted({one.oid: one for one in pointers}.values(), key=lambda one: one.oid)


def contradiction(pointers: Iterable[LfsPointer]) -> str | None:
    """Why these pointers can't all be right, or None."""
    sizes: dict[str, int] = {}
    wrong = next((one.oid for one in pointers if sizes.setdefault(one.oid, one.size) != one.size), None)
    return None if wrong is None else f"Git LFS: pointers state different sizes of object {wrong[:12]}"


def listed_objects(printed: str) -> list[LfsPointer]:
    """The objects whose files are listed in the output of `git ls-tree -z --long`. Their names are SHA-256 digests."""
    rows = (row.partition("\t") for row in printed.split("\0"))
    files = ((fields.split(), name) for fields, _, name in rows if _SHA256.fullmatch(name))
    return [LfsPointer(name, int(fields[3])) for fields, name in files if fields[1] == "blob"]


def small_blobs(checked: str) -> list[str]:
    """The blobs that may be pointers by their size, from lines `OBJECT TYPE SIZE` of git-cat-file(1)."""
    lines = (line.split(" ") for line in checked.splitlines())
    return [line[0] for line in lines if line[1:2] == ["blob"] and 0 < int(line[2]) <= MAX_POINTER]


def pointers_in(printed: bytes) -> Mapping[str, LfsPointer]:
    """The pointers in the output of `git cat-file --batch`, by the ids of their blobs."""
    pointers, at = {}, 0
    while at < len(printed):
        end = printed.index(b"\n", at)
        name, _, rest = printed[at:end].decode().partition(" ")
        size = int(rest.split(" ")[1])
        pointer = pointer_of(printed[end + 1 : end + 1 + size])
        if pointer is not None:
            pointers[name] = pointer
        at = end + size + 2
    return pointers


def size_problem(pointers: Mapping[str, LfsPointer], max_bytes: int) -> str | None:
    """Why the objects of these pointers are too large for one checkout, or None."""
    total = sum({pointer.oid: pointer.size for pointer in pointers.values()}.values())
    if total <= max_bytes:
        return None
    return f"the files in Git LFS have {total} bytes, the maximum is {max_bytes} (SANDHERD_MAX_LFS_MB)"
