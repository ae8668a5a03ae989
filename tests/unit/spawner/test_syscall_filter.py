"""The seccomp filter as a program, run without a kernel. Invariant: what is not in the table is decided, too."""

import errno
import re
import struct
from pathlib import Path

import pytest

from spawner.runtimes.syscall_filter import RULES, NoFilterError, compile_filter
from spawner.runtimes.syscall_numbers import ARCHITECTURES, LAST_KNOWN, NUMBERS

ALLOW, KILL, DENY = 0x7FFF0000, 0x80000000, 0x00050000
HEADERS = {"x86_64": "x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}


def answer(machine: str, number: int, *arguments: int, audit: int | None = None, nested: bool = False) -> int:
    """The return value of the program, executed as the kernel executes it."""
    program = compile_filter(machine=machine, nested=nested)
    words = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("=IIQ6Q", number, ARCHITECTURES[machine][1] if audit is None else audit, 0, *words)
    value, at = 0, 0
    while True:
        code, yes, no, constant = struct.unpack_from("=HBBI", program, at * 8)
        if code == 0x06:
            return int(constant)
        if code == 0x20:
            value = struct.unpack_from("=I", data, constant)[0]
        elif code == 0x54:
            value &= constant
        else:
            at += yes if (value == constant if code == 0x15 else value > constant) else no
        at += 1


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_each_unconditional_rule_denies(machine: str) -> None:
    """The rule's error is returned on both architectures."""
    for rule in RULES:
        number = NUMBERS[rule.syscall][ARCHITECTURES[machine][0]]
        if number is not None and not rule.conditions:
            assert answer(machine, number) == DENY | rule.error, rule.syscall


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_conditions_apply_to_their_arguments_only(machine: str) -> None:
    """Threads, ordinary sockets and terminal settings are permitted; namespaces and foreign sockets are not."""
    column = ARCHITECTURES[machine][0]
    names = ("clone", "socket", "ioctl", "unshare", "socketpair", "prlimit64", "setpriority", "setsockopt")
    clone, socket, ioctl, unshare, pair, limit, priority, option = (NUMBERS[name][column] or 0 for name in names)
    for number, arguments, expected in (
        (clone, (0x003D0F00,), ALLOW), (clone, (17,), ALLOW), (clone, (0x10000011,), DENY | errno.EPERM),
        (unshare, (0x400,), ALLOW), (unshare, (0x80,), DENY | errno.EPERM), (unshare, (0x20400,), DENY | errno.EPERM),
        (socket, (1, 1), ALLOW), (socket, (2, 0x80801), ALLOW), (socket, (10, 2), ALLOW), (socket, (16, 3, 0), ALLOW),
        (socket, (2, 0x80003), DENY | errno.EPERM), (socket, (10, 10), DENY | errno.EPERM),
        (socket, (16, 3, 12), DENY | errno.EPROTONOSUPPORT), (socket, (40, 1), DENY | errno.EAFNOSUPPORT),
        (ioctl, (0, 0x5401), ALLOW), (ioctl, (0, 0x5412), DENY | errno.EPERM),
        (ioctl, (0, 0x1_0000_5412), DENY | errno.EPERM),
        (pair, (1, 1), ALLOW), (pair, (40, 1), DENY | errno.EAFNOSUPPORT),
        (limit, (0, 7), ALLOW), (limit, (2, 7), DENY | errno.EPERM), (limit, (1 << 32 | 2, 7), DENY | errno.EPERM),
        (priority, (0, 0, 5), ALLOW), (priority, (0, 2, 19), DENY | errno.EPERM),
        (priority, (2, 0, 19), DENY | errno.EPERM),
        (option, (3, 1, 26), DENY | errno.EPERM), (option, (3, 1, 51), DENY | errno.EPERM),
        (option, (3, 1, 7), ALLOW), (option, (3, 6, 26), ALLOW),
    ):  # fmt: skip
        assert answer(machine, number, *arguments) == expected, (number, arguments)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_other_conventions_and_later_calls_are_denied(machine: str) -> None:
    """i386 on x86_64 (and arm on aarch64) ends the program; x32 and later numbers return ENOSYS."""
    assert answer(machine, 20, audit=0x40000003) == KILL
    assert answer(machine, 20, audit=0x40000028) == KILL
    for number in (LAST_KNOWN + 1, 0x40000000, 0x40000000 + 39, 0xFFFFFFFE):
        assert answer(machine, number) == DENY | errno.ENOSYS


def test_nested_filter_permits_only_namespaces_and_mounts() -> None:
    """Keyrings, kernel programs and later calls stay denied."""
    for name, *arguments in (("mount",), ("unshare", 0x10000000), ("clone", 0x10000011), ("setns",)):
        assert answer("x86_64", NUMBERS[str(name)][0] or 0, *map(int, arguments), nested=True) == ALLOW
    for name in ("keyctl", "bpf", "open_by_handle_at", "perf_event_open"):
        assert answer("x86_64", NUMBERS[name][0] or 0, nested=True) != ALLOW


def test_machine_without_a_table_is_refused() -> None:
    """No sandbox is left without a filter."""
    with pytest.raises(NoFilterError, match="x86_64 or aarch64"):
        compile_filter(machine="riscv64")


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_numbers_equal_those_of_the_headers(machine: str) -> None:
    """Each number in this host's kernel headers equals that of the table."""
    header = Path("/usr/include", HEADERS[machine])
    if not header.exists():
        pytest.skip("this host has no kernel headers")
    found = re.findall(r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$", header.read_text(), re.MULTILINE)
    theirs = {name: int(number) for name, number in found}
    ours = {name: numbers[ARCHITECTURES[machine][0]] for name, numbers in NUMBERS.items()}
    assert {name: ours[name] for name in ours if name in theirs} == {
        name: theirs[name] for name in ours if name in theirs
    }
    assert len([name for name in ours if name in theirs]) > 40
