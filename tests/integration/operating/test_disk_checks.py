"""Checks of `doctor` on file systems that are really full: part, path, and bytes or inodes."""

from pathlib import Path

import pytest

from sandherd.cli.doctor.checks import check_disks
from sandherd.client.doctor.check import CheckState
from tests.engines.small_disk import small_disk

pytestmark = pytest.mark.faults

PARTS = {"broker": "nats", "database": "postgres", "sandboxes": "sandboxes-disks"}


async def test_full_file_system_is_reported_with_what_it_lacks(tmp_path: Path) -> None:
    """Broker, database and images of sandboxes are checked separately; with space nothing is reported."""
    (tmp_path / "home" / "sandboxes").mkdir(parents=True)
    async with small_disk(tmp_path / "disk", size=1 << 20, inodes=50) as disk:
        for part, name in PARTS.items():
            folder = tmp_path / "home" / name
            folder.symlink_to(disk.path)
            for fill, cause in ((disk.fill_bytes, "disk full under"), (disk.fill_inodes, "out of inodes under")):
                fill()
                (found,) = [check for check in check_disks(tmp_path / "home") if check.state is CheckState.WRONG]
                assert found.found.startswith(f"{cause} {part}: {folder} ")
                disk.free()
                if (disk.path / "fillers").is_dir():
                    (disk.path / "fillers").rmdir()
                assert [check.state for check in check_disks(tmp_path / "home")] == [CheckState.RIGHT]
            folder.unlink()
