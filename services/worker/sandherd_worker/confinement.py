"""Keeps agents and commands from tracing or signalling their worker, which runs under the same uid.

Each program that the worker starts enters its own Landlock domain before exec: the kernel then refuses signals, tracing
and connections to abstract sockets from it, and from all processes it starts, to processes outside of that domain
(Linux 6.12). The worker itself can't be traced or read through `/proc` on any kernel, because it is not dumpable. Both
protections need a runtime that rules out new privileges (`no_new_privs`), as Landlock requires; else neither is used.
"""

import ctypes
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

_PR_SET_DUMPABLE, _PR_GET_NO_NEW_PRIVS = 4, 39
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_VERSION_FLAG: Final = 1
_SCOPES_VERSION: Final = 6
"""The first Landlock ABI version that has scopes."""
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_NOT_RUN: Final = 126
_OOM_SCORE_MAX: Final = 1000
_OOM_SCORE_ADDED: Final = 500
"""The number that is added to `oom_score_adj`, in thousandths of the memory that may be used (proc(5))."""
_MIN_DESCRIPTOR: Final = 10
"""The lowest number for the ruleset's descriptor, because programs use smaller numbers."""
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def hide_from_agents() -> None:
    """Prevent processes of the same uid from tracing this process and opening its files in `/proc`.

    Raises `OSError` if the kernel supports the confinement of agents, but refuses the rules.
    """
    if _rules_out_privileges():
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    _ruleset()


def enter() -> None:
    """Enter a new Landlock domain. Called in the child between fork and exec; if it is refused, the child exits.

    Children could inherit a domain from a thread of the worker instead. But then an agent could signal that thread, and
    so the worker.
    """
    rules = _ruleset()
    if rules is not None and _LIBC.syscall(_RESTRICT_SELF, rules, 0) != 0:
        os._exit(_NOT_RUN)


def entry() -> Callable[[], None] | None:
    """`enter`, for `preexec_fn`. None if there is no domain, because `preexec_fn` makes each start copy page tables."""
    return enter if _ruleset() is not None else None


def prefer_as_oom_victim(process: int) -> None:
    """Have the kernel choose this process, and what it will start, before the worker when memory is short.

    The worker then reports the end as `out_of_memory`. Called in the parent after exec: before it, the child is not
    dumpable, and its files in `/proc` belong to root.
    """
    score = Path(f"/proc/{process}/oom_score_adj")
    with suppress(OSError):  # it has ended, or has another uid; the kernel then chooses by size only
        score.write_text(str(min(_OOM_SCORE_MAX, int(score.read_text()) + _OOM_SCORE_ADDED)))


@cache
def _ruleset() -> int | None:
    """The descriptor of the ruleset for every domain; None without Landlock scopes."""
    if not _rules_out_privileges() or _LIBC.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG) < _SCOPES_VERSION:
        return None
    attributes = (ctypes.c_uint64 * 3)(0, 0, _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    descriptor = _LIBC.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "no Landlock rules: " + os.strerror(ctypes.get_errno()))
    try:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _MIN_DESCRIPTOR)
    finally:
        os.close(descriptor)


def _rules_out_privileges() -> bool:
    return bool(_LIBC.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
