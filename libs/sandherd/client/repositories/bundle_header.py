"""Reads the header of a bundle (gitformat-bundle(5)), which lists its refs, before git reads the bundle."""

from dataclasses import dataclass
from typing import IO, Final

_VERSIONS: Final = (b"# v2 git bundle\n", b"# v3 git bundle\n")
_MAX_LINE_BYTES: Final = 4096
_MAX_LINES: Final = 1000
_FORMATS: Final = (b"@object-format=sha1", b"@object-format=sha256")


class InvalidBundleError(ValueError):
    """The file is not a bundle, or a bundle of a kind that is not accepted."""


@dataclass(frozen=True)
class BundleHeader:
    """The commits that a bundle needs, and the refs that it contains."""

    needs: tuple[str, ...]
    """Commits that the bundle does not contain, and that the receiving repository must have."""
    refs: dict[str, str]
    """The full names of the refs, each with its commit."""


def read_header(file: IO[bytes]) -> BundleHeader:
    """Read the header of a bundle. Raises `InvalidBundleError`, also if the bundle lacks objects (`@filter`)."""
    if file.readline(_MAX_LINE_BYTES) not in _VERSIONS:
        raise InvalidBundleError("it is not a bundle of git")
    needs: list[str] = []
    refs: dict[str, str] = {}
    for _ in range(_MAX_LINES):
        line = file.readline(_MAX_LINE_BYTES)
        if line == b"\n":
            return BundleHeader(tuple(needs), refs)
        if not line.endswith(b"\n"):
            raise InvalidBundleError("its header is not complete")
        text = line[:-1]
        if text.startswith(b"@"):
            if text not in _FORMATS:
                raise InvalidBundleError(f"it has the capability {text[1:60].decode(errors='replace')!r}")
        elif text.startswith(b"-"):
            needs.append(text[1:].partition(b" ")[0].decode(errors="replace"))
        else:
            commit, _, name = text.decode(errors="replace").partition(" ")
            refs[name] = commit
    raise InvalidBundleError(f"its header has more than {_MAX_LINES} lines")
