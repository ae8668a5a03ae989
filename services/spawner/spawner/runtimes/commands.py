"""What may be run in a sandbox beside its worker, what came of it, and files for it. The same at every runtime."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final, Self

from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault

OWN: Final = frozenset({"work", "state", "home", "previous"})
"""A sandbox's own folders: `work` is the agent's tree, `state` what the worker keeps."""


@dataclass(frozen=True)
class File:
    """A file to be put into a sandbox, with its folders."""

    path: str
    content: bytes
    mode: int = 0o600

    def below(self, root: str) -> Self:
        """The same file, with the path that it has in a box whose own folders lie in `root`."""
        return replace(self, path=placed(self.path, root))


@dataclass(frozen=True)
class Ran:
    """A command that has ended, or was ended for its time. Output over the bound is cut, and that is said."""

    code: int | None
    """Its exit status; None if it was ended."""
    out: bytes
    err: bytes = b""
    """Empty where the provider merges both."""
    timed_out: bool = False
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """What is run in a sandbox beside its program."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """Where; None: in the work tree."""
    seconds: float = 60.0
    most_output: int = 4 * 1024 * 1024

    def below(self, root: str) -> Self:
        """The same command, to run in a box whose own folders lie in `root`."""
        return self if self.folder is None else replace(self, folder=placed(self.folder, root))


class Output:
    """What a command writes to its two streams, up to a bound for both."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._parts: dict[bool, list[bytes]] = {False: [], True: []}
        self._cut = False

    def add(self, data: bytes, *, error: bool) -> None:
        """Keep as much as there is room for; the rest is read and forgotten, so that the command does not stall."""
        self._cut |= len(data) > self._left
        kept = data[: self._left]
        self._left -= len(kept)
        self._parts[error].append(kept)

    def ran(self, code: int | None, *, late: bool) -> Ran:
        """The command, as it has ended."""
        out, err = (b"".join(self._parts[error]) for error in (False, True))
        return Ran(None if late else code, out, err, timed_out=late, cut=self._cut)


def parts_of(path: str) -> tuple[str, ...]:
    """The steps of a path in a sandbox, the first of them one of its own folders. Raises `RuntimeFailedError`."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] not in OWN or ".." in parts or "\0" in path:
        told = f"{path!r} is no path in a sandbox's own folders: it begins with one of {', '.join(sorted(OWN))}"
        raise RuntimeFailedError(RuntimeFault.REFUSED, told)
    return parts


def placed(path: str, root: str) -> str:
    """A path in a sandbox as one below `root`. Raises `RuntimeFailedError` for one that leads elsewhere."""
    return str(PurePosixPath(root, *parts_of(path)))
