"""Mounts file system images through loop devices by system calls, because a `mount` process takes ten times as long.

Only root of the host can do this. All functions block, for milliseconds.
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

_libc: Final = ctypes.CDLL(None, use_errno=True)
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4
_MS_NOATIME: Final = 1024
_MS_BIND: Final = 4096
_MS_REC: Final = 16384
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8

_LOOP_CONTROL: Final = Path("/dev/loop-control")
_LOOP_MAJOR: Final = 7
_LOOP_CTL_GET_FREE: Final = 0x4C82
_LOOP_CONFIGURE: Final = 0x4C0A
_LOOP_GET_STATUS64: Final = 0x4C05
_AUTOCLEAR: Final = 4
"""A flag, with which the kernel frees a device that is neither open nor mounted, even if we are killed meanwhile."""
_LABEL_BYTES: Final = 48
"""The length of a label; the kernel stores at most 63 bytes."""
_MAX_TRIES: Final = 64
"""The maximum number of tries to get a free device, because another process may take the device before us."""
_CONFIG: Final = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 64x")
"""`struct loop_config` of linux/loop.h."""
_STATUS: Final = struct.Struct("=56x 64s 112x")
"""The label of the device in `struct loop_info64` of linux/loop.h."""
_OPTIONS: Final = "discard,noinit_itable,errors=remount-ro"
"""`discard` returns the blocks of removed files to the host."""


def mount_image(image: Path, directory: Path) -> None:
    """Mount an ext4 image at a directory. Raises `OSError`.

    An image that another mount or a process still uses is mounted through its existing device, because two devices for
    one image would destroy its file system.
    """
    with image.open("r+b") as file:
        device, path = _device_of(image) or _set_up_device(file.fileno(), _label(image))
    try:
        _mount(path, directory, "ext4", _MS_NOSUID | _MS_NODEV | _MS_NOATIME, _OPTIONS)
    finally:
        os.close(device)  # from now on only the mount uses the device


def is_in_use(image: Path) -> bool:
    """Whether a loop device has this image, so that its file system is still in use."""
    if device := _device_of(image):
        os.close(device[0])
    return device is not None


def processes_with(image: Path) -> list[int]:
    """The lowest process id of each mount namespace in which the image's file system is mounted."""
    if not (loop_device := _device_of(image)):
        return []
    number = os.fstat(loop_device[0]).st_rdev
    os.close(loop_device[0])
    device, process_of_namespace = f"{os.major(number)}:{os.minor(number)}".encode(), dict[str, int]()
    for process in sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()):
        with suppress(OSError):  # it has ended
            lines = Path(f"/proc/{process}/mountinfo").read_bytes().splitlines()
            if any(line.split()[2] == device for line in lines):
                process_of_namespace.setdefault(str(Path(f"/proc/{process}/ns/mnt").readlink()), process)
    return list(process_of_namespace.values())


def bind(source: Path, directory: Path) -> None:
    """Bind-mount the directory `source`, with all mounts below it, at another directory. Raises `OSError`."""
    _mount(str(source), directory, None, _MS_BIND | _MS_REC, None)


def detach(*directories: Path) -> None:
    """Unmount everything mounted at or below these directories. Raises `OSError`.

    The file system stays in use while a process has an open file in it.
    """
    for directory in directories:
        while os.path.ismount(directory):
            if _libc.umount2(bytes(directory), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
                raise _system_error("umount", directory)


def _mount(source: str, directory: Path, kind: str | None, flags: int, options: str | None) -> None:
    encoded = [None if text is None else text.encode() for text in (kind, options)]
    if _libc.mount(source.encode(), bytes(directory), encoded[0], ctypes.c_ulong(flags), encoded[1]) != 0:
        raise _system_error("mount", directory)


def _system_error(what: str, directory: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}", str(directory))


def _label(image: Path) -> bytes:
    """The label of the loop device with this image, by which the device is found again."""
    status = image.stat()
    return hashlib.sha256(f"{status.st_dev}:{status.st_ino}".encode()).hexdigest()[:_LABEL_BYTES].encode()


def _device_of(image: Path) -> tuple[int, str] | None:
    """The loop device of this image: its descriptor and path; None if it has none."""
    label = _label(image)
    for attributes in Path("/sys/block").glob("loop*/loop"):  # only a device with an image has this folder
        path = f"/dev/{attributes.parent.name}"
        with suppress(OSError):  # freed in the meantime
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if _label_of(device) == label:
                return device, path
            os.close(device)
    return None


def _label_of(device: int) -> bytes:
    status = bytearray(_STATUS.size)
    with suppress(OSError):  # the device has no image
        fcntl.ioctl(device, _LOOP_GET_STATUS64, status)
    (label,) = _STATUS.unpack(status)
    return bytes(label).rstrip(b"\0")


def _set_up_device(image: int, label: bytes) -> tuple[int, str]:
    """Set up a loop device for this open image. Returns the device's descriptor and path. Raises `OSError`."""
    config = _CONFIG.pack(image, 0, *(0,) * 5, 0, 0, 0, _AUTOCLEAR, label, b"", b"", 0, 0)
    control = os.open(_LOOP_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_MAX_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = _open_device(number)
            if _configure(device, config):
                return device, f"/dev/loop{number}"
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "other processes took each free loop device first", str(_LOOP_CONTROL))


def _open_device(number: int) -> int:
    """Open a loop device. Its node is created first if it does not exist, as in a container without devtmpfs."""
    path = Path(f"/dev/loop{number}")
    if not path.exists():
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _configure(device: int, config: bytes) -> bool:
    """Attach an image to a device. If that fails, close the device. False if the device is in use. Raises `OSError`."""
    try:
        fcntl.ioctl(device, _LOOP_CONFIGURE, config)
    except OSError as error:
        os.close(device)
        if error.errno == errno.EBUSY:
            return False
        raise
    return True
