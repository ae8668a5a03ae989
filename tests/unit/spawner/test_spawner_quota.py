"""A project's share of a bucket's records."""

import pytest

from spawner.records.quota import Quota

MIB = 1024 * 1024
QUOTA = Quota(project=2 * MIB, bucket=10 * MIB)


@pytest.mark.parametrize(("used", "total"), [(0, 0), (2 * MIB - 1, 2 * MIB), (0, 10 * MIB - 1)])
def test_record_is_permitted_below_both_limits(used: int, total: int) -> None:
    """A project below its limit may create a record as long as more than the bucket's reserve is free."""
    assert QUOTA.refusal("p1", used, total) is None


@pytest.mark.parametrize(("used", "total", "reason"), [(2 * MIB, 2 * MIB, "of project p1 use 2 MiB"),
                                                       (0, 10 * MIB, "of all projects use 10 MiB")])  # fmt: skip
def test_refusal_at_a_limit_names_it(used: int, total: int, reason: str) -> None:
    """The refusal states whose records use how many bytes, and when space becomes free."""
    refused = QUOTA.refusal("p1", used, total)
    assert refused is not None
    assert reason in refused.reason
    assert "SANDHERD_KEEP_ENDED" in refused.reason


@pytest.mark.parametrize("bucket", ["tasks", "sandboxes"])
def test_fifth_of_a_bucket_is_reserved_for_changes(bucket: str) -> None:
    """However many projects there are, new records leave space for changes of existing ones."""
    assert Quota.of(bucket, 128).bucket == int(1024 * MIB * 0.8)
