"""Which exhausted resource an error names: on the texts of nats-server 2.15.1, Postgres 18 and the kernel."""

import pytest

from sandherd.bus.storage_causes import Cause, Descriptors, Space, cause_of, describe, shortage, shortages
from sandherd.service.storage_watch import storage_problem

MIB = 1024 * 1024
FREE_SPACE = Space(path="/data", free_bytes=900 * MIB, total_bytes=1000 * MIB, free_inodes=60_000)
NO_BYTES = Space(path="/data", free_bytes=0, total_bytes=1000 * MIB, free_inodes=60_000)
NO_INODES = Space(path="/data", free_bytes=900 * MIB, total_bytes=1000 * MIB, free_inodes=0)
NATS_BYTES = "JetStream stream 'ABW > EVENTS' write error: write /d/streams/EVENTS/msgs/1.blk: no space left on device"
NATS_INODES = (
    "JetStream stream 'ABW > EVENTS' write error: Error creating msg block file: open /d/msgs/2.blk: "
    "no space left on device"
)
NATS_FILES = "JetStream stream 'ABW > EVENTS' write error: open /d/streams/EVENTS/msgs/index.db: too many open files"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (NATS_BYTES, Cause.DISK_BYTES),
        (NATS_FILES, Cause.DESCRIPTORS),
        ("insufficient storage resources available (10047)", Cause.DISK_BYTES),
        ("insufficient memory resources available", Cause.MEMORY),
        ('could not extend file "base/16384/16387": No space left on device', Cause.DISK_BYTES),
        ('PANIC:  could not write to file "pg_wal/xlogtemp.41": No space left on device', Cause.DISK_BYTES),
        ("could not resize shared memory segment to 1048576 bytes: No space left on device", Cause.MEMORY),
        ("out of file descriptors: Too many open files; release and retry", Cause.DESCRIPTORS),
        ("out of memory", Cause.MEMORY),
        ("could not fork new process for connection: Cannot allocate memory", Cause.MEMORY),
        ("write /data/1.blk: read-only file system", Cause.READ_ONLY),
        ("write failed: Disk quota exceeded", Cause.DISK_BYTES),
        ("maximum bytes exceeded", None),
        ("nats: timeout", None),
        ("", None),
    ],
)
def test_the_cause_is_read_from_the_text(text: str, cause: Cause | None) -> None:
    """Each text names one cause; a stream at its own limit names none."""
    assert cause_of(text) is cause


def test_inodes_are_distinguished_from_bytes_by_the_file_system() -> None:
    """The kernel's error is the same for both."""
    assert cause_of(NATS_INODES, NO_INODES) is Cause.DISK_INODES
    assert cause_of(NATS_INODES, NO_BYTES) is Cause.DISK_BYTES


def test_shortage_is_measured() -> None:
    """Bytes, inodes and descriptors are measured; a file system without a count of inodes never lacks them."""
    assert shortage(FREE_SPACE, Descriptors(used=10, limit=1000)) is None
    assert shortage(NO_BYTES) is Cause.DISK_BYTES
    assert shortage(NO_INODES) is Cause.DISK_INODES
    assert shortage(FREE_SPACE, Descriptors(used=998, limit=1000)) is Cause.DESCRIPTORS
    assert shortage(Space(path="/d", free_bytes=MIB * 9, total_bytes=MIB * 10, free_inodes=None)) is None


def test_description_names_path_free_space_and_remedy() -> None:
    """The description never advises deleting a folder."""
    for cause in Cause:
        text = describe(cause, "nats", NO_BYTES, Descriptors(used=5, limit=5))
        assert "nats" in text
        assert not {"delete", "rm "} & set(text.split())
    assert describe(Cause.DISK_BYTES, "nats", NO_BYTES).startswith(
        "disk full under nats: /data has 0.0 MiB, 60000 inodes"
    )


def test_full_file_system_is_reported_once_with_its_folders() -> None:
    """Three folders on one disk are one line."""
    (line,) = shortages({"home": NO_BYTES, "broker": NO_BYTES, "database": NO_BYTES, "sandboxes": FREE_SPACE})
    assert "home, broker, database" in line


def test_storage_problem_has_the_cause_visible_to_the_service() -> None:
    """The file systems of the home decide, else the broker's error, else the possible causes are named."""
    assert "disk full" in storage_problem("nats: timeout", ["disk full under broker"])
    assert "out of file descriptors" in storage_problem(NATS_FILES, [])
    assert "may be exhausted" in storage_problem("nats: timeout", [])
