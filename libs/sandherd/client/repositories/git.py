"""Runs git(1) on a repository of this machine, without executing anything of a repository or a bundle.

The user's configuration of git is in effect, because it decides which repositories are trusted (`safe.directory`).
Hooks, fsmonitor and the network are not used. Variables such as `GIT_DIR` are removed, because a git hook that runs
this client has set them for another repository.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.git_process import NOT_INSTALLED, SAFE_SETTINGS, OutputTooLargeError, ProcessLimits, run_git_process

COMMAND_SECONDS: Final = 900.0
"""The default time limit of one command."""
_MAX_OUTPUT_BYTES: Final = 64 * 1024**2
_MAX_MESSAGE_LENGTH: Final = 300
_SETTINGS: Final[Mapping[str, str]] = {**SAFE_SETTINGS, "fetch.writeCommitGraph": "false"}
_INHERITED_VARIABLES: Final = (
    "GIT_CONFIG",
    "GIT_EXEC_PATH",
    "GIT_CEILING_DIRECTORIES",
    "GIT_DISCOVERY_ACROSS_FILESYSTEM",
)
_WITHOUT_USER_SETTINGS: Final[Mapping[str, str]] = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}


class GitFailedError(HerdError):
    """Git refused, or failed. The message contains the output of git; `status` is its exit status."""

    status: int = 0


async def run_git(  # the options of a command
    folder: Path,
    *arguments: str,
    config: Mapping[str, str] | None = None,
    of_user: bool = True,
    out: IO[bytes] | None = None,
    file_bytes: int | None = None,
    seconds: float = COMMAND_SECONDS,
    accepted: frozenset[int] = frozenset({0}),
) -> tuple[int, bytes]:
    """Run git in a folder. Returns its exit status, one of `accepted`, and its output, which is empty with `out`.

    Without `of_user`, the user's configuration has no effect. `file_bytes` limits the size of a file that git writes.
    Raises `GitFailedError` for another status, and `HerdError` if git is not installed, or after `seconds`. After a
    time out or a cancellation, git and its children have ended.
    """
    config = {**_SETTINGS, **(config or {})}
    settings = [argument for name, value in config.items() for argument in ("-c", f"{name}={value}")]
    limits = ProcessLimits(seconds=seconds, output_bytes=_MAX_OUTPUT_BYTES, file_bytes=file_bytes)
    environment = _environment(of_user=of_user)
    try:
        ended = await run_git_process(
            [*settings, *arguments], environment=environment, folder=folder, limits=limits, out=out
        )
    except TimeoutError:
        raise _timeout_error(arguments[0], seconds) from None
    except OutputTooLargeError as error:
        raise HerdError.of(Code.TOO_LARGE, str(error), field="repository") from None
    if ended.status not in accepted:
        raise _git_error(arguments[0], ended.status, ended.messages)
    return ended.status, ended.output


async def text_of(
    folder: Path, *arguments: str, of_user: bool = True, accepted: frozenset[int] = frozenset({0})
) -> str:
    """The output of git as text, without a line break at its end. Raises as `run_git`."""
    _, output = await run_git(folder, *arguments, of_user=of_user, accepted=accepted)
    return os.fsdecode(output).removesuffix("\n")


def _environment(*, of_user: bool) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    if of_user:
        inherited |= {name: value for name, value in os.environ.items() if name.startswith(_INHERITED_VARIABLES)}
    fixed = {
        "LC_ALL": "C",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
    }
    return inherited | fixed | ({} if of_user else dict(_WITHOUT_USER_SETTINGS))


def _timeout_error(command: str, seconds: float) -> HerdError:
    return HerdError.of(
        Code.UNAVAILABLE,
        f"git {command} took longer than {seconds:.0f} s",
        field="repository",
        remedy="try again when the machine is less busy, or name a smaller repository",
    )


def _git_error(command: str, status: int, errors: bytes) -> HerdError:
    if status == NOT_INSTALLED:
        return HerdError.of(Code.UNAVAILABLE, "git is not installed here", field="repository", remedy="install git")
    lines = " ".join(errors.decode(errors="replace").split())
    error = GitFailedError.of(
        Code.REFUSED,
        f"git {command}: {lines[-_MAX_MESSAGE_LENGTH:] or f'it ended with status {status}'}",
        field="repository",
        remedy="correct what git reports, and try again",
    )
    error.status = status
    return error
