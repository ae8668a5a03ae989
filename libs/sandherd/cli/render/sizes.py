"""Formats numbers of bytes for users."""

from typing import Final

MIB: Final = 1024 * 1024
_UNITS: Final = ((1024 * MIB, "GiB"), (MIB, "MiB"), (1024, "KiB"))


def binary_size(size: int) -> str:
    """The size in the largest unit that is not larger than the size: `2 GiB`, `1.5 MiB`, `3 bytes`."""
    for unit, name in _UNITS:
        if size >= unit:
            return f"{size / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size} bytes"
