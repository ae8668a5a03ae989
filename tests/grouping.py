"""Tests that share something large (a stack, an engine) go to one process, where many run tests at once.

`xdist_group` should do that, but xdist 3.8 writes the group into a field that pytest 9.2 has no more: marks do nothing,
and each process would start a stack of its own.
"""

import re
from typing import Final

from xdist.scheduler import LoadGroupScheduling

GROUPS: Final = (
    ("house", re.compile(r"tests/unit/house/")),
    ("docker", re.compile(r"tests/(?:integration/runtimes|e2e/docker)/.*docker")),
    ("kubernetes", re.compile(r"tests/(?:integration/runtimes|e2e/kubernetes)/.*kubernetes")),
    ("helm", re.compile(r"tests/integration/deploy/test_helm_")),
    ("telemetry", re.compile(r"tests/integration/telemetry/")),
    ("agents", re.compile(r"tests/e2e/test_line_")),
    ("secrets", re.compile(r"tests/e2e/test_secrets_stay")),
    ("packages", re.compile(r"tests/integration/client/test_client_wheels")),
    ("subordinate", re.compile(r"tests/e2e/test_subordinate_uids")),
    ("line", re.compile(r"tests/e2e/test_spawner_line")),
    ("stack", re.compile(r"tests/integration/stack/test_stack_(?:supervisor|trace)")),
    ("kills", re.compile(r"tests/faults/test_faults_(?:kills|approvals)")),
    ("cluster", re.compile(r"tests/(?:faults/test_faults|integration/stack/test_stack)_cluster")),
    ("faults", re.compile(r"tests/faults/test_faults_(?:stopping|together)")),
)
"""By name, and by how a test is called; the many others go wherever there is room."""


class ByGroup(LoadGroupScheduling):  # type: ignore[misc]  # xdist carries no types
    """Hands all tests of a group to the same process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or str(super()._split_scope(nodeid))


def group_of(nodeid: str) -> str | None:
    """The group of a test; None for one that is alone."""
    return next((name for name, called in GROUPS if called.match(nodeid)), None)
