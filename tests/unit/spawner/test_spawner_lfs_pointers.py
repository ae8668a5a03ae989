"""Pointers of Git LFS, in the content of hostile files."""

import pytest

from spawner.repositories.lfs_pointers import (
    MAX_POINTER,
    LfsPointer,
    pointer_of,
    pointers_in,
    size_problem,
    small_blobs,
)

OID = "a" * 64
TEXT = f"version https://git-lfs.github.com/spec/v1\noid sha256:{OID}\nsize 12\n"


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        (TEXT, LfsPointer(OID, 12)),
        (TEXT.rstrip(), LfsPointer(OID, 12)),
        (TEXT.replace("\noid", "\next-0-x sha256:1\noid"), LfsPointer(OID, 12)),
        *((bad, None) for bad in (f"x{TEXT}", f"{TEXT}x", TEXT.replace("size 12", "size -1"), "", TEXT.upper())),
        (TEXT.replace(OID, "../../../../etc/passwd"), None),
        (TEXT.replace("\noid", f"\next-0-{'x' * MAX_POINTER} sha256:1\noid"), None),
    ],
)
def test_pointer_is_read_strictly(text: str, pointer: LfsPointer | None) -> None:
    """The SHA-256 is a part of a path, so a file without a valid one is not a pointer."""
    assert pointer_of(text.encode()) == pointer


def test_output_of_git_is_read() -> None:
    """Sizes show which files may be pointers. A file may contain text that looks like the next header."""
    assert small_blobs(f"1 blob 12\n2 blob {MAX_POINTER + 1}\n3 tree 12\n4 missing\n5 blob 0\n") == ["1"]
    other = "\n2 blob 3\nabc"
    printed = f"1 blob {len(TEXT)}\n{TEXT}\n3 blob {len(other)}\n{other}\n"
    assert pointers_in(printed.encode()) == {"1": LfsPointer(OID, 12)}


def test_total_size_counts_each_object_once() -> None:
    """Copies of a file are one object."""
    found = {"1": LfsPointer(OID, 12), "2": LfsPointer(OID, 12)}
    assert size_problem(found, 12) is None
    assert "SANDHERD_MAX_LFS_MB" in str(size_problem(found, 11))
