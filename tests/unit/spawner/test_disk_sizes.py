"""The default size of a sandbox's file system."""

import pytest

from spawner.runtimes.disk_sizes import default_megabytes


@pytest.mark.parametrize(
    ("total", "kind", "megabytes"),
    [(252 << 30, "ext4", 16_384), (40 << 30, "xfs", 10_240), (900 << 20, "ext4", 0), (252 << 30, "tmpfs", 0)],
)
def test_default_size_leaves_the_host_most_of_its_disk(total: int, kind: str, megabytes: int) -> None:
    """The default is at most a quarter of the file system; none in memory, or if a quarter is too small."""
    assert default_megabytes(total, kind) == megabytes
