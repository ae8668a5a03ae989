"""What the records of a project may take of a bucket."""

import pytest

from spawner.records.quota import Quota

MIB = 1024 * 1024
QUOTA = Quota(project=2 * MIB, bucket=10 * MIB)


@pytest.mark.parametrize(("used", "total"), [(0, 0), (2 * MIB - 1, 2 * MIB), (0, 10 * MIB - 1)])
def test_below_both_limits_a_record_is_made(used: int, total: int) -> None:
    """A project within its share gets a record while the bucket has more than its reserve."""
    assert QUOTA.refusal("p1", used, total) is None


@pytest.mark.parametrize(("used", "total", "reason"), [(2 * MIB, 2 * MIB, "of project p1 take 2 MiB"),
                                                       (0, 10 * MIB, "of all projects take 10 MiB")])  # fmt: skip
def test_at_a_limit_the_refusal_names_it(used: int, total: int, reason: str) -> None:
    """It says whose records take how much, and what makes room."""
    refused = QUOTA.refusal("p1", used, total)
    assert refused is not None
    assert reason in refused.reason
    assert "SANDHERD_KEEP_ENDED" in refused.reason


@pytest.mark.parametrize("bucket", ["tasks", "sandboxes"])
def test_a_fifth_of_a_bucket_is_reserved_for_changes(bucket: str) -> None:
    """However many projects there are, new records leave room for changes of those that exist."""
    assert Quota.of(bucket, 128).bucket == int(1024 * MIB * 0.8)
