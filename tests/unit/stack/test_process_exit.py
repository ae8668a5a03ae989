"""Which exhausted resource ended a process."""

from pathlib import Path

import pytest

from sandherd.stack.process_exit import KILLED, cause_of_status, written_since

GO = """[1] 2026/11/22 20:00:00.000000 [INF] Server is ready
fatal error: runtime: cannot allocate memory

goroutine 1 [running]:
runtime.throw({0xd0c1d8?, 0xc000040f08?})
"""


@pytest.mark.parametrize(
    ("status", "written", "kills", "found"),
    [
        (2, GO, 0, "it was out of memory"),
        (-9, "all is well\n", 1, KILLED),
        (-9, "all is well\n", 0, None),  # a user killed it
        (-15, "all is well\n", 1, None),  # another process was killed meanwhile
        (0, GO, 1, None),
        (1, "nats-server: open /h/nats.pid: no space left on device\n", 0, "its disk was full"),
        (1, "an agent wrote: out of memory\n[1] exiting\n", 0, None),
    ],
)
def test_cause_of_an_exit_follows_status_log_and_kernel(
    status: int, written: str, kills: int, found: str | None
) -> None:
    """Only an error of the program itself counts, or its last output; a kill only if the kernel counted one."""
    assert cause_of_status(status, written, kills) == found


def test_only_log_lines_since_the_start_count(tmp_path: Path) -> None:
    """A log continues over many lives; one that was truncated meanwhile is read whole."""
    log = tmp_path / "nats.log"
    assert written_since(log, 0) == ""
    log.write_text("before\nafter\n")
    assert written_since(log, 7) == "after\n"
    assert written_since(log, 700) == "before\nafter\n"
