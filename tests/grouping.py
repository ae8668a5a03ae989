"""Decides which tests run in the same process, and which begin first, when several processes run tests.

Tests that share something large (a stack, an engine, libraries that take seconds to import) go to one process, and so
do the many short tests of a file of unit tests: sending each of thousands to a process separately costs more than
running it. The longest tests begin first: a long test that began last would run alone at the end, beside idle
processes.

`xdist_group` should do that, but xdist 3.8 writes the group into a field that pytest 9.2 no longer has: the marks have
no effect, and each process would start its own stack.
"""

import re
from typing import Any, Final

import pytest
from xdist.scheduler import LoadGroupScheduling

GROUPS: Final = (
    ("docker", re.compile(r"tests/(?:integration/runtimes|e2e/docker)/.*docker")),
    ("kubernetes", re.compile(r"tests/(?:integration/runtimes|e2e/kubernetes)/.*kubernetes")),
    ("agents", re.compile(r"tests/e2e/test_line_")),
    ("cluster", re.compile(r"tests/(?:faults/test_faults|integration/stack/test_stack)_cluster")),
    ("kills", re.compile(r"tests/faults/test_faults_(?:kills|approvals|inputs|combined)")),
    ("openhands", re.compile(r"tests/drivers/openhands/")),
    ("stack", re.compile(r"tests/integration/stack/test_stack_(?:supervisor|trace)")),
    ("telemetry", re.compile(r"tests/integration/telemetry/")),
    ("secrets", re.compile(r"tests/e2e/test_secrets_stay")),
    ("packages", re.compile(r"tests/integration/client/test_client_wheels")),
    ("subordinate", re.compile(r"tests/e2e/test_subordinate_uids")),
    ("line", re.compile(r"tests/e2e/test_spawner_line")),
    ("helm", re.compile(r"tests/integration/deploy/test_helm_")),
    ("pages", re.compile(r"tests/integration/pages/test_pages_states")),
    ("sessions", re.compile(r"tests/integration/pages/test_pages_(?:documents|races)")),
    ("upgrades", re.compile(r"tests/integration/upgrades/")),
    ("environments", re.compile(r"tests/integration/operating/test_cli_environments")),
    ("damage", re.compile(r"tests/integration/stack/test_stack_damage")),
    ("logs", re.compile(r"tests/integration/stack/test_service_logs")),
    ("plugins", re.compile(r"tests/integration/spawner/test_spawner_plugins")),
    ("assessor", re.compile(r"tests/integration/monitor/test_monitor_assess")),
    ("house", re.compile(r"tests/unit/house/")),
)
"""Groups by the name of the test, and by how it is called; all other integration tests go to any free process."""
FIRST: Final = tuple(
    re.compile(f"tests/{called}")
    for called in (
        r"integration/stack/test_stack_backup",
        r"integration/stack/test_small_disk",
        r"e2e/test_readme",
        r"faults/",
    )
)
"""Tests outside the groups that take longest, by how they are called: see `build/slowest.txt`."""
_SHORT: Final = re.compile(r"tests/(?:unit|contracts)/")


class ByGroup(LoadGroupScheduling):  # type: ignore[misc]  # xdist carries no types
    """Sends all tests of a group to the same process, and units in the order of the tests (`start_order`)."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # it would begin with the units of most tests

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Remove the completed test: with each test xdist counts again everything that it ever gave to the process."""
        super().mark_test_complete(node, item_index, duration)
        scope = self._split_scope(self.registered_collections[node][item_index])
        if all(self.assigned_work[node][scope].values()):
            del self.assigned_work[node][scope]


def group_of(nodeid: str) -> str | None:
    """The group of a test; None for a test without a group."""
    return next((name for name, called in GROUPS if called.match(nodeid)), None)


def unit_of(nodeid: str) -> str:
    """The tests that are sent to a process together: those of a group, of a file of short tests, or a single test."""
    if (group := group_of(nodeid)) is not None:
        return group
    return nodeid.partition("::")[0] if _SHORT.match(nodeid) else nodeid


def start_order(nodeid: str) -> int:
    """The sort key of a test: the groups as listed, then the longest tests, then the others in order of collection."""
    if (group := group_of(nodeid)) is not None:
        return [name for name, _ in GROUPS].index(group)
    found = (number for number, called in enumerate(FIRST) if called.match(nodeid))
    return len(GROUPS) + next(found, len(FIRST))
