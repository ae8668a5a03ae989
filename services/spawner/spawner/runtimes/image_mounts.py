"""Mounting of file system images through loop devices, by system calls: a `mount` process costs ten times as much.

Only root of the host can do this. Everything here blocks, for milliseconds.
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
"""The kernel frees the device when nothing has it open or mounted any more, also after a `kill -9` before the mount."""
_LABEL: Final = 48
"""Bytes of a label; the kernel stores 63."""
_ATTEMPTS: Final = 64
"""Between asking for a free device and taking it, another process may take it."""
_CONFIG: Final = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 64x")
"""`struct loop_config` of linux/loop.h."""
_STATUS: Final = struct.Struct("=56x 64s 112x")
"""The label of the device in `struct loop_info64` of linux/loop.h."""
_OPTIONS: Final = "discard,noinit_itable,errors=remount-ro"
"""`discard` gives the blocks of removed files back to the host."""


def mount_image(image: Path, place: Path) -> None:
    """Mount an ext4 image at a directory. Raises `OSError`.

    An image that is still in use, by another mount or a process, is mounted through the device that it has: two devices
    for one image would destroy its file system.
    """
    with image.open("r+b") as file:
        device, path = _device_of(image) or _loop(file.fileno(), _label(image))
    try:
        _mount(path, place, "ext4", _MS_NOSUID | _MS_NODEV | _MS_NOATIME, _OPTIONS)
    finally:
        os.close(device)  # from here on the mount alone holds the device


def is_in_use(image: Path) -> bool:
    """Whether a loop device has this image: something still uses its file system."""
    if found := _device_of(image):
        os.close(found[0])
    return found is not None


def bind(source: Path, place: Path) -> None:
    """Mount a directory at another, with all that is mounted below it. Raises `OSError`."""
    _mount(str(source), place, None, _MS_BIND | _MS_REC, None)


def detach(*places: Path) -> None:
    """Unmount all that is mounted at these directories and below. Raises `OSError`.

    A process that has a file of it open keeps the file system in use.
    """
    for place in places:
        while os.path.ismount(place):
            if _libc.umount2(bytes(place), _MNT_DETACH | _UMOUNT_NOFOLLOW) != 0:
                raise _error("umount", place)


def _mount(source: str, place: Path, kind: str | None, flags: int, options: str | None) -> None:
    words = [None if word is None else word.encode() for word in (kind, options)]
    if _libc.mount(source.encode(), bytes(place), words[0], ctypes.c_ulong(flags), words[1]) != 0:
        raise _error("mount", place)


def _error(what: str, place: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}", str(place))


def _label(image: Path) -> bytes:
    """What a device with this image is marked with, so that it is found again."""
    found = image.stat()
    return hashlib.sha256(f"{found.st_dev}:{found.st_ino}".encode()).hexdigest()[:_LABEL].encode()


def _device_of(image: Path) -> tuple[int, str] | None:
    """The loop device that has this image: its descriptor, and its path."""
    label = _label(image)
    for bound in Path("/sys/block").glob("loop*/loop"):
        path = f"/dev/{bound.parent.name}"
        with suppress(OSError):  # freed in the meantime
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            if _label_of(device) == label:
                return device, path
            os.close(device)
    return None


def _label_of(device: int) -> bytes:
    status = bytearray(_STATUS.size)
    with suppress(OSError):  # it has no image
        fcntl.ioctl(device, _LOOP_GET_STATUS64, status)
    (label,) = _STATUS.unpack(status)
    return bytes(label).rstrip(b"\0")


def _loop(image: int, label: bytes) -> tuple[int, str]:
    """A loop device for this open image: its descriptor, and its path. Raises `OSError`."""
    config = _CONFIG.pack(image, 0, *(0,) * 5, 0, 0, 0, _AUTOCLEAR, label, b"", b"", 0, 0)
    control = os.open(_LOOP_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_ATTEMPTS):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            device = _open_device(number)
            if _configure(device, config):
                return device, f"/dev/loop{number}"
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "other processes take each free loop device first", str(_LOOP_CONTROL))


def _open_device(number: int) -> int:
    """Open a loop device. Its node is created where no devtmpfs does that, as in a container."""
    path = Path(f"/dev/loop{number}")
    if not path.exists():
        with suppress(FileExistsError):
            os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(_LOOP_MAJOR, number))
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _configure(device: int, config: bytes) -> bool:
    """Give the device its image; false if it is taken. Raises `OSError`, and closes it unless it has the image."""
    try:
        fcntl.ioctl(device, _LOOP_CONFIGURE, config)
    except OSError as error:
        os.close(device)
        if error.errno == errno.EBUSY:
            return False
        raise
    return True
