"""Commands, files and ports of a running sandbox: types that all runtimes share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Final, Self

from spawner.runtimes.errors import RuntimeFailedError, RuntimeFault

OWN: Final = frozenset({"work", "state", "home", "previous"})
"""A sandbox's own directories: the agent's work tree, the worker's state, `HOME`, the previous attempt's results."""


TIMEOUT_STATUSES: Final = frozenset({124, 137, 143})
"""Exit statuses of `timeout` (coreutils, busybox) after it ended the command; a command may use them as well."""


@dataclass(frozen=True)
class File:
    """A file to be written into a sandbox; missing parent directories are created."""

    path: str
    content: bytes
    mode: int = 0o600

    def below(self, root: str) -> Self:
        """A copy of this file with a path below `root`, the directory of a box that contains the `OWN` directories."""
        return replace(self, path=path_below(self.path, root))


@dataclass(frozen=True)
class CommandResult:
    """The result of a command that ended or timed out. `cut`: whether output above the limit was discarded."""

    code: int | None
    """The command's exit status; None if it timed out."""
    out: bytes
    err: bytes = b""
    """Empty if the provider merges both streams."""
    timed_out: bool = False
    cut: bool = False


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command to run in a sandbox beside its worker. `seconds`: its timeout; `max_output`: in bytes."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """The working directory; None: the work tree."""
    seconds: float = 60.0
    max_output: int = 4 * 1024 * 1024

    def below(self, root: str) -> Self:
        """A copy of this command with a working directory below `root`, as for `File.below`."""
        return self if self.folder is None else replace(self, folder=path_below(self.folder, root))


class Output:
    """Collects the output of a command, with one limit in bytes for both streams."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._parts: dict[bool, list[bytes]] = {False: [], True: []}
        """The pieces of the standard output (False) and of the standard error (True)."""
        self._cut = False

    def add(self, data: bytes, *, error: bool) -> None:
        """Add output of the command, up to the limit. The rest is discarded. `error`: whether it is standard error."""
        self._cut |= len(data) > self._left
        added = data[: self._left]
        self._left -= len(added)
        self._parts[error].append(added)

    def result(self, code: int | None, *, timed_out: bool) -> CommandResult:
        """The result of the command. `code`: its exit status."""
        out, err = (b"".join(self._parts[error]) for error in (False, True))
        return CommandResult(None if timed_out else code, out, err, timed_out=timed_out, cut=self._cut)


def parts_of(path: str) -> tuple[str, ...]:
    """The components of a path in a sandbox. Raises `RuntimeFailedError` if the first is not one of `OWN`."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] not in OWN or ".." in parts or "\0" in path:
        message = f"{path!r} is not a path in a sandbox's own directories: it must begin with {', '.join(sorted(OWN))}"
        raise RuntimeFailedError(RuntimeFault.REFUSED, message)
    return parts


def path_below(path: str, root: str) -> str:
    """Map a path in a sandbox to a path below `root`. Raises `RuntimeFailedError` if it is in no directory of `OWN`."""
    return str(PurePosixPath(root, *parts_of(path)))


@dataclass(frozen=True)
class Address:
    """The address of a port of a sandbox. Its URL contains no secret."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers that every request needs in addition to those that the server in the sandbox requires. They are secret:
    return them only to the requester, and never put them in a log, event or error."""
