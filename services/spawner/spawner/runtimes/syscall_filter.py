"""The seccomp filter of sandboxes of the process runtime: what it denies, and its classic BPF program.

The filter denies the system calls in `RULES`, every system call that is newer than `LAST_KNOWN`, and every foreign
calling convention (i386, x32). All others are allowed. `compile_filter` assembles the program for the machine on which
it runs, in the form that seccomp(2) and bubblewrap's `--seccomp` require: an array of `struct sock_filter` in native
byte order.
"""

import errno
import platform
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spawner.runtimes.syscall_numbers import ARCHITECTURES, LAST_KNOWN, NUMBERS

_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
"""BPF opcodes: load a word, AND, jump if equal, jump if greater, return (linux/bpf_common.h)."""
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
"""Return values (linux/seccomp.h)."""
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`. Each argument has 8 bytes, with the lower half first on both architectures."""

_NAMESPACES: Final = 0x7E020080
"""CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_CLONE_NAMESPACES: Final = 0x7E020000
"""The flags of `_NAMESPACES` without CLONE_NEWTIME, whose bit belongs to the exit signal in clone(2)."""
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
_SOCKET_TYPE, _RAW, _PACKET = 0xF, 3, 10
_NETLINK_ROUTE: Final = 0
_SOL_SOCKET: Final = 1
_ATTACH_PROGRAM_OPTIONS: Final = (26, 50, 51, 52)
"""SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF."""
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_CALLER: Final = (0,)
"""The pid 0 is the calling process. Any other pid may be the worker's, which runs with the same uid."""


class ThreatGroup(StrEnum):
    """What a rule protects against."""

    MOUNTS = "mounts and namespaces"
    KEYS = "kernel keyrings"
    KERNEL = "kernel programs, modules and images"
    TRACING = "system-wide tracing and fault handling"
    HOST = "settings of the host"
    FILES = "files outside of the sandbox"
    SOCKETS = "sockets"
    TERMINALS = "terminals"
    OTHERS = "limits and priorities of other processes, the worker's among them"
    ABI = "other and obsolete interfaces"


@dataclass(frozen=True)
class ArgumentCondition:
    """True if argument number `argument`, masked, is one of `values`; with `negated`, if it is none of them."""

    argument: int
    values: tuple[int, ...]
    mask: int | None = None
    negated: bool = False


@dataclass(frozen=True)
class SyscallRule:
    """A system call that is denied with this error if all conditions are true."""

    syscall: str
    group: ThreatGroup
    conditions: tuple[ArgumentCondition, ...] = ()
    error: int = errno.EPERM
    when: str = ""
    """The conditions as text, for the documentation."""


def _deny(group: ThreatGroup, names: str, error: int = errno.EPERM) -> tuple[SyscallRule, ...]:
    """Rules that deny these system calls with any arguments."""
    return tuple(SyscallRule(name, group, error=error) for name in names.split())


RULES: Final[tuple[SyscallRule, ...]] = (
    *_deny(ThreatGroup.MOUNTS, "mount umount2 pivot_root chroot move_mount open_tree open_tree_attr fsopen fsconfig"),
    *_deny(ThreatGroup.MOUNTS, "fsmount fspick mount_setattr setns"),
    SyscallRule(
        "unshare",
        ThreatGroup.MOUNTS,
        (ArgumentCondition(0, (0,), _NAMESPACES, negated=True),),
        when="with a namespace flag",
    ),
    SyscallRule(
        "clone",
        ThreatGroup.MOUNTS,
        (ArgumentCondition(0, (0,), _CLONE_NAMESPACES, negated=True),),
        when="with a namespace flag",
    ),
    # The flags of `clone3` are in memory, which a filter can't read. C libraries use `clone` if it fails with ENOSYS.
    *_deny(ThreatGroup.ABI, "clone3", errno.ENOSYS),
    *_deny(ThreatGroup.KEYS, "keyctl add_key request_key"),
    *_deny(ThreatGroup.KERNEL, "bpf kexec_load kexec_file_load init_module finit_module delete_module create_module"),
    *_deny(ThreatGroup.TRACING, "perf_event_open userfaultfd lookup_dcookie"),
    *_deny(ThreatGroup.HOST, "iopl ioperm swapon swapoff reboot quotactl quotactl_fd acct syslog vhangup settimeofday"),
    *_deny(ThreatGroup.HOST, "clock_settime clock_adjtime adjtimex sethostname setdomainname"),
    *_deny(ThreatGroup.FILES, "open_by_handle_at fanotify_init"),
    SyscallRule(
        "socket",
        ThreatGroup.SOCKETS,
        (ArgumentCondition(0, (_UNIX, _INET, _INET6, _NETLINK), negated=True),),
        errno.EAFNOSUPPORT,
        "address families other than AF_UNIX, AF_INET, AF_INET6 and AF_NETLINK",
    ),
    SyscallRule(
        "socket",
        ThreatGroup.SOCKETS,
        (ArgumentCondition(0, (_INET, _INET6)), ArgumentCondition(1, (_RAW, _PACKET), _SOCKET_TYPE)),
        when="raw sockets",
    ),
    SyscallRule(
        "socket",
        ThreatGroup.SOCKETS,
        (ArgumentCondition(0, (_NETLINK,)), ArgumentCondition(2, (_NETLINK_ROUTE,), negated=True)),
        errno.EPROTONOSUPPORT,
        "netlink protocols other than NETLINK_ROUTE",
    ),
    SyscallRule(
        "socketpair",
        ThreatGroup.SOCKETS,
        (ArgumentCondition(0, (_UNIX,), negated=True),),
        errno.EAFNOSUPPORT,
        "address families other than AF_UNIX",
    ),
    # The kernel compiles a program that is attached to a socket. The compiled code is not counted in any control group,
    # and one limit for the whole host applies to it: `net.core.bpf_jit_limit`.
    SyscallRule(
        "setsockopt",
        ThreatGroup.SOCKETS,
        (ArgumentCondition(1, (_SOL_SOCKET,)), ArgumentCondition(2, _ATTACH_PROGRAM_OPTIONS)),
        when="SO_ATTACH_FILTER, SO_ATTACH_BPF, SO_ATTACH_REUSEPORT_CBPF, SO_ATTACH_REUSEPORT_EBPF",
    ),
    *(
        SyscallRule(
            name, ThreatGroup.OTHERS, (ArgumentCondition(0, _CALLER, negated=True),), when="with a pid other than 0"
        )
        for name in ("prlimit64", "sched_setscheduler", "sched_setparam", "sched_setattr")
    ),
    *(
        SyscallRule(
            name, ThreatGroup.OTHERS, (ArgumentCondition(1, _CALLER, negated=True),), when="with a pid other than 0"
        )
        for name in ("setpriority", "ioprio_set")
    ),
    SyscallRule(
        "setpriority", ThreatGroup.OTHERS, (ArgumentCondition(0, (_PRIO_USER,)),), when="of all processes of a user"
    ),
    SyscallRule(
        "ioprio_set",
        ThreatGroup.OTHERS,
        (ArgumentCondition(0, (_IOPRIO_WHO_USER,)),),
        when="of all processes of a user",
    ),
    SyscallRule(
        "ioctl", ThreatGroup.TERMINALS, (ArgumentCondition(1, (_TIOCSTI, _TIOCLINUX)),), when="TIOCSTI, TIOCLINUX"
    ),
    # `fs.aio-max-nr` is one limit for the whole host, and one process can exhaust it.
    *_deny(ThreatGroup.HOST, "io_setup", errno.ENOSYS),
    *_deny(ThreatGroup.ABI, "io_uring_setup io_uring_enter io_uring_register", errno.ENOSYS),
    *_deny(ThreatGroup.ABI, "modify_ldt nfsservctl uselib ustat sysfs _sysctl afs_syscall get_kernel_syms"),
    *_deny(ThreatGroup.ABI, "query_module security tuxcall vserver getpmsg putpmsg"),
)


class NoFilterError(Exception):
    """There is no table of system calls for this machine's architecture."""


def compile_filter(*, nested: bool = False, machine: str | None = None) -> bytes:
    """The filter as a BPF program. `nested`: leave out the rules about mounts and namespaces.

    Raises `NoFilterError`.
    """
    name = machine or platform.machine()
    if name not in ARCHITECTURES:
        raise NoFilterError(f"there is no seccomp filter for {name}: use {' or '.join(ARCHITECTURES)}")
    column, audit = ARCHITECTURES[name]
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, audit, yes=1),
        _step(_RETURN, _KILL_PROCESS),
        _step(_LOAD, _NUMBER),
        _step(_JUMP_GREATER, LAST_KNOWN, no=1),  # includes x32 calls, whose numbers have bit 30 set
        _step(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for rule in RULES:
        number = NUMBERS[rule.syscall][column]
        if number is not None and not (nested and rule.group is ThreatGroup.MOUNTS):
            program += _assemble(rule, number)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def _assemble(rule: SyscallRule, number: int) -> list[bytes]:
    """The steps of a rule. They expect the system call number in the accumulator.

    If the rule does not match, they leave the number in the accumulator for the steps of the next rule.
    """
    blocks = [_check(condition) for condition in rule.conditions]
    checks = [step for block in blocks for step in block]
    ending = [_step(_RETURN, _ERRNO | rule.error)]
    if not checks:
        return [_step(_JUMP_EQUAL, number, no=1), *ending]
    size = len(checks) + len(ending)
    steps, done = [_step(_JUMP_EQUAL, number, no=size + 1)], 0
    for condition, block in zip(rule.conditions, blocks, strict=True):
        done += len(block)
        # If this condition is false, jump to the step after the rule's return. It loads the number again.
        steps += _check(condition, skip=size - done)
    return [*steps, *ending, _step(_LOAD, _NUMBER)]


def _check(condition: ArgumentCondition, skip: int = 0) -> list[bytes]:
    """The steps that test a condition. If the condition is false, they jump over the next `skip` steps."""
    steps = [_step(_LOAD, _ARGUMENTS + 8 * condition.argument)]
    if condition.mask is not None:
        steps.append(_step(_AND, condition.mask))
    last = len(condition.values) - 1
    for index, value in enumerate(condition.values):
        rest = last - index
        if condition.negated:
            steps.append(_step(_JUMP_EQUAL, value, yes=rest + skip))
        else:
            steps.append(_step(_JUMP_EQUAL, value, yes=rest, no=skip if index == last else 0))
    return steps


def _step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One `struct sock_filter`. Raises `struct.error` for a jump of more than 255 steps."""
    return struct.pack("=HBBI", code, yes, no, value)
