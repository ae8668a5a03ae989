"""The tests that `make test` leaves out and `make soak` runs, each with its claim and where `make test` shows it.

A test is left out if its claim is shown by a cheaper test: for another runtime, agent or service that shares the
mechanism, for one of several moments or signals, or below a whole stack. Other tests are marked `long` where they are
defined, with the reason there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import pytest


@dataclass(frozen=True)
class LongRun:
    """Tests of one file, by name; `*` stands for any parameters."""

    file: str
    """Below `tests/`."""
    names: tuple[str, ...]
    claim: str
    shown_by: tuple[str, ...]
    """Tests that `make test` runs, as `file::function` below `tests/`."""

    def includes(self, nodeid: str) -> bool:
        """Whether this is one of the tests."""
        file, _, name = nodeid.partition("::")
        # In parameters, brackets are characters like others.
        return file == f"tests/{self.file}" and any(fnmatchcase(_plain(name), _plain(it)) for it in self.names)


def _plain(name: str) -> str:
    return name.replace("[", "<").replace("]", ">")


LONG_RUNS: Final[Sequence[LongRun]] = (
    LongRun(
        "drivers/claude/test_claude_sessions.py",
        (
            "test_session_resumes_from_its_transcript[resumed-after a turn]",
            "test_session_resumes_from_its_transcript[forked-after its end]",
        ),
        "a session is resumed and forked, from the transcript of a turn's end and of the session's",
        ("drivers/claude/test_claude_sessions.py::test_session_resumes_from_its_transcript",),
    ),
    LongRun(
        "drivers/claude/test_claude_sessions.py",
        ("test_sigterm_during_turn_ends_cleanly[a word and a SIGTERM]",),
        "SIGTERM after a request to stop ends a turn in order, as SIGTERM alone does",
        ("drivers/claude/test_claude_sessions.py::test_sigterm_during_turn_ends_cleanly",),
    ),
    LongRun(
        "drivers/claude/test_claude_failures.py",
        ("test_killed_program_ends_the_driver_with_its_signal[SIGTERM]",),
        "the signal that ended Claude's program is in the error; SIGKILL in `make test`",
        ("drivers/claude/test_claude_failures.py::test_killed_program_ends_the_driver_with_its_signal",),
    ),
    LongRun(
        "drivers/claude/test_claude_options.py",
        ("test_tool_is_allowed_by_pattern_or_denied[bypassPermissions]", "test_plan_mode_executes_nothing[ask]"),
        "the policy of tools holds in each permission mode",
        (
            "drivers/claude/test_claude_options.py::test_tool_is_allowed_by_pattern_or_denied",
            "drivers/claude/test_claude_approvals.py::test_approval_is_requested_in_every_permission_mode",
        ),
    ),
    LongRun(
        "drivers/acp/test_acp_agent_exit.py",
        ("test_stop_during_turn_ends_driver_and_agent[end of input]",),
        "an agent ends with its driver, however the driver is stopped",
        ("drivers/acp/test_acp_agent_exit.py::test_stop_during_turn_ends_driver_and_agent",),
    ),
    LongRun(
        "e2e/docker/test_docker_faults.py",
        ("test_engine_restart_during_a_task_is_recovered[in order]",),
        "a task outlives a restart of the Docker Engine; after a crash in `make test`",
        ("e2e/docker/test_docker_faults.py::test_engine_restart_during_a_task_is_recovered",),
    ),
    LongRun(
        "integration/stack/test_stack_backup.py",
        (
            "test_an_interrupted_backup_leaves_the_stack_running_and_no_folder[15]",
            "test_an_interrupted_backup_leaves_the_stack_running_and_no_folder[1]",
        ),
        "a backup that is interrupted by SIGTERM or SIGHUP starts the stack again; by SIGINT in `make test`",
        (
            "integration/stack/test_stack_backup.py::test_an_interrupted_backup_leaves_the_stack_running_and_no_folder",
            "unit/client/test_client_interruption.py::test_signal_cancels_the_work_and_its_handler_is_restored",
        ),
    ),
)


def mark_long_runs(items: Sequence[pytest.Item]) -> None:
    """Mark the tests of `LONG_RUNS` as `long`."""
    for item in items:
        if any(run.includes(item.nodeid) for run in LONG_RUNS):
            item.add_marker(pytest.mark.long)
