"""A driver without an SDK, for tests of both sides of the wire."""
