"""Describes an error of the operating system in one line, with a remedy."""

import errno
from typing import Final

from sandherd.client.terminal_text import OutputError

_OUTPUT_ERRORS: Final = frozenset({errno.EBADF, errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT})
"""Numbers of errors of writing standard output, if the error names no file: connections have other errors."""
_OUTPUT_REMEDY: Final = "the command itself was not undone; write the output to a file or pipe that accepts it"
_SPACE_REMEDY: Final = "free space on that file system, or use a path on another one"
_ACCESS_REMEDY: Final = "give this user access to it, or use another path"
_REMEDIES: Final = {
    errno.ENOSPC: _SPACE_REMEDY,
    errno.EDQUOT: _SPACE_REMEDY,
    errno.EACCES: _ACCESS_REMEDY,
    errno.EPERM: _ACCESS_REMEDY,
    errno.EROFS: "use a path on a writable file system",
    errno.EMFILE: "raise the limit of open files (`ulimit -n`)",
    errno.ENFILE: "close programs: this machine is out of file descriptors",
}
"""Remedies by the number of the error."""


def describe_system_error(error: OSError) -> str:
    """One line with the path, the reason and a remedy."""
    reason = error.strerror or str(error) or type(error).__name__
    if isinstance(error, OutputError) or (not error.filename and error.errno in _OUTPUT_ERRORS):
        return f"the output could not be written: {reason}; {_OUTPUT_REMEDY}"
    if isinstance(error, TimeoutError) and not error.errno:
        return "timed out; see what runs with `sandherd status`"
    if not error.filename:
        return f"{reason}; see what runs with `sandherd status`"
    remedy = getattr(error, "remedy", None) or _REMEDIES.get(error.errno or 0)
    return f"{error.filename}: {reason}; {remedy or 'check this path, or use another one'}"


def describe_text_error(error: UnicodeError) -> str:
    """One line about an argument or a file with text in another encoding than UTF-8."""
    return f"text that is not valid UTF-8 ({error.__class__.__name__}); use UTF-8, and a UTF-8 locale (LC_ALL=C.UTF-8)"
