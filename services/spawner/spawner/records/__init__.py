"""Live state: records in the broker's buckets, each the source of its own events."""
