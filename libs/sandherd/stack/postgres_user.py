"""The user that a local Postgres runs as if root starts it. No other process uses it.

Postgres refuses to run as root, so it gets a reserved user id, which needs no entry in `/etc/passwd`. Only `initdb`
looks up its user there, so it runs in a user namespace in which the reserved id is the id of `nobody`. If no such
namespace can be created, as in a container without CAP_SYS_ADMIN, the system user `sandherd-postgres` is added with the
reserved id. If a system user of that name exists, its id is used instead.
"""

import ctypes
import os
import pwd
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from sandherd.postgres_uids import NAME, RESERVED
from sandherd.telemetry import logs

_NAMESPACE_USER: Final = "nobody"
"""The user that `initdb` has in its namespace. Every `/etc/passwd` has an entry for it, and it is not root."""

_CLONE_NEWUSER: Final = 0x10000000
_libc: Final = ctypes.CDLL(None, use_errno=True)
_log: Final = logs.get("postgres_user")


class ReservedUserError(PermissionError):
    """The reserved user id belongs to another user, or can't be used here. The message has the remedy."""


def server_uid() -> int | None:
    """The user id that Postgres runs as; None if it runs as our own user. Raises `ReservedUserError`."""
    if os.geteuid() != 0:
        return None
    user = _user_by_name(NAME)
    if user is not None:
        return user.pw_uid
    owner = _user_by_id(RESERVED)
    if owner is not None:
        raise ReservedUserError(
            f"user id {RESERVED}, which Sandherd reserves for its local Postgres, belongs to {owner.pw_name}: "
            f"add a system user for it (useradd --system {NAME}) and start again"
        )
    return RESERVED


def group_of(uid: int) -> int:
    """The group id that Postgres runs with: that of the system user, or else the same number as `uid`."""
    user = _user_by_id(uid)
    return uid if user is None else user.pw_gid


def run_as(uid: int | None, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program that looks up its own user, as `uid` or as our own user. Returns its status and output.

    Adds the system user `sandherd-postgres` if the id has no entry and this host allows no user namespaces.
    Raises `ReservedUserError` if it can't be added.
    """
    if uid is not None and _user_by_id(uid) is None and not _can_create_namespaces():
        _add_user(uid)
    return subprocess.run(
        list(command),
        cwd="/",
        env=dict(environment),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=None if uid is None else _switch_to(uid),
    )


def _can_create_namespaces() -> bool:
    """Whether a user namespace can be created here, by creating one in a process that ends at once."""
    try:
        subprocess.run(["true"], check=True, preexec_fn=_unshare)
    except subprocess.SubprocessError:
        return False
    return True


def _add_user(uid: int) -> None:
    command = ["useradd", "--system", "--uid", str(uid), "--user-group", "--no-create-home"]
    command += ["--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin", NAME]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()
        raise ReservedUserError(
            f"this host allows no user namespaces, and no system user could be added ({reason}): "
            f"add {NAME} manually, or start the stack as an ordinary user"
        ) from error
    _log.warning("system user for Postgres added, no user namespaces available", because=NAME)


def _user_by_name(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _user_by_id(uid: int) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def _switch_to(uid: int) -> Callable[[], None]:
    """A function that a new process calls between fork and exec, to continue as this user."""
    if _user_by_id(uid) is not None:
        group = group_of(uid)
        return lambda: _set_ids(uid, group)
    namespace_user = pwd.getpwnam(_NAMESPACE_USER)

    def switch() -> None:
        _enter_namespace({namespace_user.pw_uid: uid}, {namespace_user.pw_gid: uid})
        _set_ids(namespace_user.pw_uid, namespace_user.pw_gid)

    return switch


def _set_ids(uid: int, group: int) -> None:
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(uid, uid, uid)


def _enter_namespace(uids: Mapping[int, int], groups: Mapping[int, int]) -> None:
    """Enter a new user namespace. Only a process outside of it may map other ids, so a forked helper does that."""
    read_end, write_end = os.pipe()
    pid = os.getpid()
    helper = os.fork()
    if helper == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(_write_maps(pid, uids, groups))
    os.close(read_end)
    _unshare()
    os.write(write_end, b"1")
    os.close(write_end)
    if os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]) != 0:
        raise PermissionError("the user namespace for initdb can't be mapped")


def _unshare() -> None:
    """Enter a new user namespace (unshare(2)); `os.unshare` exists from Python 3.12 on."""
    if _libc.unshare(_CLONE_NEWUSER) != 0:
        raise PermissionError(ctypes.get_errno(), "unshare")


def _write_maps(pid: int, uids: Mapping[int, int], groups: Mapping[int, int]) -> int:
    try:
        for name, ids in (("uid_map", uids), ("gid_map", groups)):
            lines = "".join(f"{inside} {outside} 1\n" for inside, outside in ids.items())
            Path(f"/proc/{pid}/{name}").write_text(lines)
    except OSError:
        return 1
    return 0
