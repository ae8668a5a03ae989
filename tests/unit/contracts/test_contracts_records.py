"""Tests of the records that services read from the buckets of others."""

from sandherd.contracts.records import RECORDS
from sandherd.contracts.streams import BUCKETS


def test_bucket_of_several_services_has_a_shared_record() -> None:
    """The fields that a service reads from the bucket of another one are a contract, with a golden example."""
    read_by_others = {bucket.name for bucket in BUCKETS if bucket.readers}
    shared = {record.bucket for record in RECORDS.values()}
    assert read_by_others - shared == set()
    assert shared <= {bucket.name for bucket in BUCKETS}
