"""Tables in 80 columns: what matters most is shown, and columns without a value are not."""

from sandherd.cli.commands import config, doctor, sandboxes, tasks
from sandherd.cli.render import statistics
from sandherd.cli.render.table import Column, cell_width, lines
from sandherd.contracts.names import new_name

TIME = "2026-11-20 12:00:00+01:00"
TASK, SANDBOX = new_name("task"), new_name("sbx")
PATH = "/home/somebody/.local/share/sandherd/creds/client-default.creds"


def shown(header: tuple[str | Column, ...], *rows: list[str], width: int | None = 80) -> list[str]:
    found = list(lines(header, rows, width))
    assert width is None or max(map(cell_width, found)) <= width
    return found


def test_columns_without_a_value_leave_their_room_to_others() -> None:
    """A list of tasks that have no name and wait for nothing has their texts instead."""
    row = [TASK, "completed", "-", "normal", "1", SANDBOX, TIME, "-", "-", "Fix the failing test of the shop"]
    head, line = shown(tasks.HEADER, row)
    assert head.split() == ["TASK", "STATE", "ATTEMPT", "TEXT"]
    assert "Fix the failing test of" in line
    assert "NAME" in shown(tasks.HEADER, row, width=240)[0]


def test_list_of_sandboxes_has_their_tasks() -> None:
    """The column of the task is the last one to be omitted."""
    row = [SANDBOX, "terminated", TASK, "process", "-", TIME, "-", "the task has completed"]
    assert shown(sandboxes.HEADER, row)[1].split() == [SANDBOX, "terminated", TASK]


def test_overview_has_the_reason_why_a_user_is_needed() -> None:
    """Below the row where there is no space."""
    row = ["approval", TASK, SANDBOX, TIME, "Bash: rm -rf build, which has the results of an hour"]
    assert shown(statistics._NEEDS_HEADER, row)[-1] == f"  what: {row[-1]}"  # a table's header


def test_check_takes_one_line_unless_it_is_long() -> None:
    """A text that does not fit beside the check is below it, also without a problem. No value is broken."""
    row = ["event-ingest", "ok", "version 0.1.0 is ready", ""]
    found = shown(doctor.HEADER, row, ["credential", "ok", f"client of default, {PATH}, does not expire", ""])
    assert found[1].split(maxsplit=2) == row[:3]
    assert found[2].split() == ["credential", "ok"]
    assert f"{PATH}," in " ".join(found[3:]).split()


def test_long_value_of_a_setting_is_whole_and_widens_no_other_line() -> None:
    """In a terminal it is below its setting; in a pipe in its line, with what follows it."""
    rows = [
        ["home", "SANDHERD_HOME", "/srv/herd", "environment"],
        ["credentials", "SANDHERD_CREDENTIALS", f"{PATH},{PATH}", "context"],
    ]
    assert shown(config.HEADER, rows[0], [*rows[1][:2], PATH, "context"])[-1] == f"  value: {PATH}"
    head, short, long = shown(config.HEADER, *rows, width=None)
    assert long.split() == rows[1]
    assert max(map(len, (head, short))) <= 110
