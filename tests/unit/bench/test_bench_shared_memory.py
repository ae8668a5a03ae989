"""The shared memory that a killed Postgres leaves, which no directory shows."""

from pathlib import Path

from tests.bench.shared_memory import SharedMemory

MAPS = """\
55d0c6a00000-55d0c6b00000 r--p 00000000 00:2e 77   /opt/a folder/bin/postgres
7fcb4ebd0000-7fcb4edb0000 rw-s 00000000 00:01 12   /dev/zero (deleted)
7fcb4edbd000-7fcb4edc2000 rw-s 00000000 00:1b 249486                     /dev/shm/PostgreSQL.1840980384
7fcb4edc2000-7fcb4edc3000 rw-s 00000000 00:01 98358                      /SYSV0025bda1 (deleted)
7fcb4edc3000-7fcb4edc4000 rw-s 00000000 00:1b 249487                     /dev/shm/another_program
7ffd12340000-7ffd12360000 rw-p 00000000 00:00 0
"""


def test_the_memory_of_postgres_is_found_in_a_memory_map() -> None:
    """Its files in /dev/shm, and its SysV segments by their id; nothing of another program."""
    found = SharedMemory()
    found.add(MAPS)
    assert found.files == {Path("/dev/shm/PostgreSQL.1840980384")}
    assert found.segments == {98358}


def test_missing_directory_has_no_servers(tmp_path: Path) -> None:
    """Nothing is removed."""
    assert SharedMemory.of_servers_below(tmp_path / "gone") == SharedMemory()
