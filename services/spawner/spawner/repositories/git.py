"""Runs git(1) for the control plane, on bare repositories, so that nothing of a repository is executed.

Nothing is ever checked out here, so filters, attributes and submodules of a repository have no effect. Hooks, helpers
and the configuration of the machine are disabled, and no fetch changes the configuration of a mirror. A credential is
passed only in the environment of the git process. It is in no argument, URL or file.
"""

import os
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Final, TypedDict

from sandherd.git_process import NOT_INSTALLED, SAFE_SETTINGS, OutputTooLargeError, ProcessLimits, run_git_process
from spawner.repositories.git_output import printed_text, secrets_of
from spawner.repositories.writer_lock import held_descriptors

_MESSAGE_CHARACTERS: Final = 500
"""Maximum characters of an error's message. The last ones are used."""
_CREDENTIAL_HELPER: Final = (
    '!give() { test "$1" = get && '
    'printf "username=%s\\npassword=%s\\n" "$SANDHERD_GIT_USER" "$SANDHERD_GIT_PASSWORD"; }; give'
)
"""A credential helper (gitcredentials(7)) of shell built-ins, so that the token is in no process's arguments."""
_CONFIG: Final[Mapping[str, str]] = {
    **SAFE_SETTINGS,
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.packedGitLimit": "512m",
    "core.packedGitWindowSize": "32m",
    "http.followRedirects": "false",
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
}
"""The configuration of every git command, in place of the machine's."""


class GitFault(StrEnum):
    """The kinds of failure. Decisions are based on the kind, never on the text of a message."""

    REFUSED = "refused"
    """The repository never accepts this, or the input is invalid."""
    DENIED = "denied"
    """The credential is missing, invalid, expired, or does not permit this."""
    NOT_FOUND = "not_found"
    """There is no such repository, or the credential can't see it."""
    CONFLICT = "conflict"
    """A branch is not at the expected commit."""
    TOO_LARGE = "too_large"
    UNAVAILABLE = "unavailable"
    """The repository does not respond; a retry may succeed."""


class GitError(Exception):
    """A git command failed. `fault`: the kind of failure. `of_machine`: the cause is this machine, as a full disk."""

    def __init__(self, fault: GitFault, message: str, *, of_machine: bool = False) -> None:
        super().__init__(message)
        self.fault, self.of_machine = fault, of_machine

    @property
    def permanent(self) -> bool:
        """Whether a retry can't succeed."""
        return self.fault is not GitFault.UNAVAILABLE


@dataclass(frozen=True)
class GitCredential:
    """A user name and a token for one origin, such as `https://github.com`. They are not sent to any other origin."""

    origin: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True)
class RemoteRepository:
    """A repository by its URL, which contains no credential."""

    url: str
    credential: GitCredential | None = None


@dataclass(frozen=True)
class GitLimits:
    """The limits of one command: its time, its memory, the size of each file that it writes, and its output."""

    seconds: float = 900.0
    """The time limit of a command that contacts a remote."""
    local_seconds: float = 120.0
    """The time limit of any other command. Exceeding it is the fault `TOO_LARGE`."""
    memory_bytes: int = 2 * 1024**3
    file_bytes: int = 8 * 1024**3
    output_bytes: int = 64 * 1024**2

    def of_process(self, seconds: float) -> ProcessLimits:
        """The limits of a process that may take this long."""
        return ProcessLimits(
            seconds=seconds,
            output_bytes=self.output_bytes,
            file_bytes=self.file_bytes,
            memory_bytes=self.memory_bytes,
        )


DEFAULT_LIMITS: Final = GitLimits()


class GitOptions(TypedDict, total=False):
    """Optional arguments of `run_git`, which documents them."""

    config: Mapping[str, str] | None
    environment: Mapping[str, str] | None
    limits: GitLimits
    accepted: frozenset[int]
    stdin: bytes
    into: IO[bytes] | None


async def run_git(
    *arguments: str,
    credential: GitCredential | None = None,
    config: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    limits: GitLimits = DEFAULT_LIMITS,
    accepted: frozenset[int] = frozenset({0}),
    over_network: bool = False,
    stdin: bytes = b"",
    into: IO[bytes] | None = None,
) -> tuple[int, bytes]:
    """Run git with these arguments and return its exit status, one of `accepted`, and its output. Raises `GitError`.

    If this is cancelled or times out, git and its children are ended first. `over_network`: git contacts a remote.
    `into`: a file to which the output is written. Git inherits the locks that the caller holds (`WriterLock`).
    """
    seconds = limits.seconds if over_network else limits.local_seconds
    try:
        ended = await run_git_process(
            arguments,
            environment=_environment(credential, config or {}) | dict(environment or {}),
            folder=Path("/"),
            limits=limits.of_process(seconds),
            stdin=stdin,
            out=into,
            pass_fds=held_descriptors(),
        )
    except TimeoutError:
        fault = GitFault.UNAVAILABLE if over_network else GitFault.TOO_LARGE
        command = arguments[2] if arguments[0] == in_repository(Path())[0] else arguments[0]  # after `--git-dir PATH`
        raise GitError(fault, f"git {command} took longer than {seconds:.0f} s") from None
    except OutputTooLargeError as error:
        raise GitError(GitFault.TOO_LARGE, str(error)) from None
    if ended.status not in accepted:
        raise _error(ended.status, shown_output(ended.messages, credential))
    return ended.status, ended.output


def shown_output(printed: bytes, credential: GitCredential | None) -> str:
    """The output of git without the credential, which a server may have returned in a message."""
    return printed_text(printed, secrets_of(credential.username, credential.password) if credential else ())


def _environment(credential: GitCredential | None, config: Mapping[str, str]) -> dict[str, str]:
    settings = [*_CONFIG.items(), *config.items()]
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_HTTP_LOW_SPEED_LIMIT": "1",
        "GIT_HTTP_LOW_SPEED_TIME": "60",
    } | {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    if credential is not None:
        settings.append((f"credential.{credential.origin}.helper", _CREDENTIAL_HELPER))
        environment |= {"SANDHERD_GIT_USER": credential.username, "SANDHERD_GIT_PASSWORD": credential.password}
    environment["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


_PASSED_VARIABLES: Final = (
    *("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "GIT_SSL_CAINFO"),
)
"""The variables of the spawner's environment that git gets."""


_FAULT_PATTERNS: Final = (
    (GitFault.DENIED, r"authentication failed|could not read (username|password)|invalid credentials|error: 40[13]\b"),
    (GitFault.NOT_FOUND, r"not found|does not (exist|appear to be a git repository)|no such file|error: 404\b"),
    (GitFault.TOO_LARGE, r"out of memory|cannot allocate memory"),
    (GitFault.TOO_LARGE, r"file size limit exceeded|file too large|died of signal 25\b"),
    (GitFault.UNAVAILABLE, r"could not resolve|failed to connect|connection (timed out|refused|reset)|timed out"),
    (GitFault.UNAVAILABLE, r"error: (429|5\d\d)\b|early eof|hung up|unexpected disconnect|operation too slow"),
    (GitFault.UNAVAILABLE, r"ssl_|gnutls"),
)
"""Patterns of git's messages in lower case, with their faults. The first match decides."""
_MACHINE_FAULTS: Final = (
    r"no space left|quota exceeded|read-only file system|too many open files|input/output error|stale file handle"
    r"|cannot fork|unable to create thread|resource temporarily unavailable|died of signal (1|2|9|15)\b"
)
"""Messages of faults whose cause is this machine. They are transient, or an operator fixes the cause."""
_SIGXFSZ_STATUSES: Final = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)
"""Return codes of git if it, or a program that it ran, exceeded the limit of a file."""
_TERMINATION_SIGNALS: Final = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
"""Signals that other processes send, for example when the machine shuts down or is short of memory."""
_TERMINATED_STATUSES: Final = (
    *(-one for one in _TERMINATION_SIGNALS),
    128 + signal.SIGINT,
    128 + signal.SIGKILL,
    128 + signal.SIGTERM,
)
"""Return codes of git if it, or a program that it ran, ended by such a signal."""


def _error(status: int, printed: str) -> GitError:
    """The error, classified by git's messages in the locale C, but not by lines from the remote (`remote: …`)."""
    if status == NOT_INSTALLED:
        return GitError(GitFault.UNAVAILABLE, "git is not installed on the spawner's machine", of_machine=True)
    lines = [line for line in printed.split("\n") if line.strip()]
    local_messages = "\n".join(line for line in lines if not line.startswith("remote:")).lower()
    fault = next((fault for fault, pattern in _FAULT_PATTERNS if re.search(pattern, local_messages)), GitFault.REFUSED)
    if status in _SIGXFSZ_STATUSES:
        fault = GitFault.TOO_LARGE
    message = " ".join(lines)[-_MESSAGE_CHARACTERS:] or f"git ended with status {status}"
    if status in _TERMINATED_STATUSES or re.search(_MACHINE_FAULTS, local_messages):
        return GitError(GitFault.UNAVAILABLE, message, of_machine=True)
    return GitError(fault, message)


def in_repository(path: Path) -> tuple[str, str]:
    """The first arguments of a command on the bare repository at this path."""
    return "--git-dir", str(path)
