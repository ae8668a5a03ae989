"""One process for all tests of one engine, where many run tests at once.

`xdist_group` should do that, but xdist 3.8 writes the group into a field that pytest 9.2 has no more: marks do nothing.
"""

from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]  # it carries no types

_PLACES = ("tests/integration/runtimes/", "tests/e2e/docker/")


class ByEngine(LoadGroupScheduling):  # type: ignore[misc]  # the same
    """Hands all tests of the Docker Engine to the same process."""

    def _split_scope(self, nodeid: str) -> str:
        return engine_of(nodeid) or str(super()._split_scope(nodeid))


def engine_of(nodeid: str) -> str | None:
    """The engine that a test runs on, told by its name; None for the many that need none."""
    return "docker" if nodeid.startswith(_PLACES) and "docker" in nodeid else None
