"""A separate program, which does what bubblewrap can't do, and then becomes bubblewrap by exec.

    python -I -S launcher.py <launch file>

The launch file is written by the spawner (see `isolation`) in the format of `marshal`, which loads fastest. The program
joins a new session keyring. If the sandbox has its own host uid, the program creates a mount namespace, in which it
mounts the files that the sandbox needs and new device nodes at paths which that uid can reach. Then it switches to that
uid and drops its capabilities. The arguments of bubblewrap refer to these paths. It imports only the standard library.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys

TYPE_CHECKING = False  # the module `typing` takes longer to load than this program to run
if TYPE_CHECKING:
    from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_KEYCTL: Final = {"x86_64": 250, "aarch64": 219}
_JOIN_SESSION_KEYRING: Final = 1
_NEW_MOUNTS: Final = 0x00020000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _NO_PROGRAMS, _REMOUNT = 1, 2, 4, 8, 32
_BIND, _RECURSIVE, _SLAVE = 4096, 16384, 1 << 19
_DETACH: Final = 2
"""Flags of unshare(2), mount(2) and umount2(2)."""
_CAPABILITIES_3: Final = 0x20080522
"""`_LINUX_CAPABILITY_VERSION_3` of capset(2)."""
_NO_KEYRINGS: Final = 38
"""ENOSYS: the kernel has no keyrings."""

_NODES: Final = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
"""The device nodes of a sandbox, with their major and minor numbers, which are the same on every Linux."""
_LINKS: Final = {  # the symbolic links in `/dev`, with their targets
    "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
    "core": "/proc/kcore", "ptmx": "pts/ptmx",
}  # fmt: skip
_MAX_TERMINALS: Final = 64
"""Maximum pseudo-terminals of one sandbox. All sandboxes of a host share 3,072, unless it sets `kernel.pty.max`."""


def main() -> int:
    """Become bubblewrap. Returns only on failure."""
    with open(sys.argv[1], "rb") as file:  # noqa: PTH123  # no further module is loaded
        launch = marshal.load(file)  # noqa: S302  # written by the spawner; no other user may write it
    try:
        join_session_keyring()
        if launch["user"] is not None:
            folder = os.path.dirname(os.path.dirname(os.path.dirname(sys.argv[1])))  # noqa: PTH120  # as above
            _stage(launch["stage"], launch["mounts"], launch["covers"], folder)
            _switch_user(launch["user"])
        if os.getuid() != 0:
            _drop_capabilities()
        argv = list(launch["argv"])
        if launch["filter"]:
            argv[1:1] = ["--seccomp", str(_memory_file(launch["filter"]))]
        os.execv(argv[0], argv)  # noqa: S606  # there is no shell in it
    except OSError as error:
        sys.stderr.write(f"bwrap: {error}\n")
    return 1


def join_session_keyring() -> None:
    """Join a new session keyring, so that the sandbox has no keys of the spawner's session. Raises `OSError`."""
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        return
    if _LIBC.syscall(number, _JOIN_SESSION_KEYRING, None) < 0 and ctypes.get_errno() != _NO_KEYRINGS:
        raise OSError(ctypes.get_errno(), "no new session keyring: " + os.strerror(ctypes.get_errno()))


def _stage(stage: str, mounts: list[list[Any]], covers: list[str], folder: str) -> None:
    """Create a mount namespace, and mount each source at its target, which is below `stage`. Raises `OSError`."""
    if _LIBC.unshare(_NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "no mount namespace: " + os.strerror(ctypes.get_errno()))
    _mount(None, "/", None, _RECURSIVE | _SLAVE)  # what the host unmounts later is unmounted here too
    _unmount_others(folder)
    _mount("tmpfs", stage, "tmpfs", _NO_SETUID | _NO_DEVICES, "mode=0755,size=1m")
    for source, target, writable in mounts:
        _make_mount_point(source, target)
        _mount(source, target, None, _BIND | _RECURSIVE)
        if writable:
            _remount_restricted(target)
    for target in covers:
        if os.path.isdir(target):  # noqa: PTH112  # as above
            _mount("tmpfs", target, "tmpfs", _NO_SETUID | _NO_DEVICES | _READ_ONLY, "mode=0755,size=4k")
    _make_devices(f"{stage}/dev")


def _unmount_others(folder: str) -> None:
    """Unmount the file systems of other sandboxes in this mount namespace. `folder`: this sandbox's directory.

    If the host's mounts are private, those file systems would stay in use here after the host has unmounted them. In a
    user namespace they can't be unmounted, but no sandbox of such a spawner has its own file system.
    """
    with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123  # as above
        escaped = [line.split()[4] for line in file]
    points = [point.decode("unicode_escape").encode("latin-1") for point in escaped]
    own_folder, parent = os.fsencode(folder), os.fsencode(os.path.dirname(folder)) + b"/"  # noqa: PTH120  # as above
    for point in reversed(points):
        if point.startswith(parent) and point != own_folder and not point.startswith(own_folder + b"/"):
            _LIBC.umount2(point, _DETACH)


def _remount_restricted(target: str) -> None:
    """Remount with `nosuid` and `nodev`. Raises `OSError`."""
    flags = _REMOUNT | _BIND | _NO_SETUID | _NO_DEVICES
    try:
        _mount(None, target, None, flags)
    except PermissionError:  # in a user namespace, options of the host's mount must be repeated, such as `noexec`
        _mount(None, target, None, flags | os.statvfs(target).f_flag & _NO_PROGRAMS)


def _make_devices(folder: str) -> None:
    """Create the sandbox's `/dev`, which belongs to root. Raises `OSError`."""
    os.mkdir(folder)  # noqa: PTH102  # as above
    _mount("tmpfs", folder, "tmpfs", _NO_SETUID | _NO_PROGRAMS, "mode=0755,size=64k,nr_inodes=64")
    for name, (major, minor) in _NODES.items():
        _make_node(f"{folder}/{name}", os.makedev(major, minor), f"/dev/{name}")
    for name, target in _LINKS.items():
        os.symlink(target, f"{folder}/{name}")  # noqa: PTH211  # as above
    for name in ("pts", "shm"):
        os.mkdir(f"{folder}/{name}")  # noqa: PTH102  # as above
    terminals = f"newinstance,ptmxmode=0666,mode=0620,max={_MAX_TERMINALS}"
    _mount("devpts", f"{folder}/pts", "devpts", _NO_SETUID | _NO_PROGRAMS, terminals)


def _make_node(path: str, device: int, host: str) -> None:
    """Create a node for this device. Without CAP_MKNOD, mount the host's node `host` instead. Raises `OSError`."""
    try:
        os.mknod(path, 0o020666, device)
        os.chmod(path, 0o666)  # noqa: PTH101, S103  # as above; `mknod` applies the umask
    except PermissionError:
        _make_mount_point(host, path)
        _mount(host, path, None, _BIND)


def _make_mount_point(source: str, target: str) -> None:
    """Create the target of a bind mount: a directory if the source is one, else a file. Raises `OSError`."""
    if os.path.isdir(source):  # noqa: PTH112  # as above
        os.mkdir(target, 0o755)  # noqa: PTH102  # as above
    else:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, options)]
    if _LIBC.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{source or target} can't be mounted: {os.strerror(number)}")


def _switch_user(user: int) -> None:
    """Set this uid and gid, irrevocably. Raises `OSError`."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def _drop_capabilities() -> None:
    """Drop the capabilities that a spawner has over its user's subordinate ids. Raises `OSError`."""
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0), (ctypes.c_uint32 * 6)()
    if _LIBC.capset(ctypes.byref(header), ctypes.byref(none)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _memory_file(program: bytes) -> int:
    """The descriptor of a file in memory with this content, at the position 0."""
    descriptor = os.memfd_create("filter", 0)
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


if __name__ == "__main__":
    sys.exit(main())
