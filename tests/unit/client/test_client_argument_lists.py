"""The program of a task or of a command in a sandbox is a list of strings."""

from typing import Any

import pytest

from sandherd.client import HerdError, task_spec
from sandherd.client.sandboxes.execution import command
from sandherd.client.tasks.batch import order_tasks
from sandherd.contracts.errors import Code
from sandherd.contracts.harnesses import CommandHarness

TEXT = "argv has to be a list of strings"


@pytest.mark.parametrize("argv", ["echo hi", b"echo", ["sleep", 5], [True], 7, None, {"echo": "hi"}])
def test_program_that_is_no_list_of_strings_is_refused(argv: Any) -> None:
    """A text is not split into its letters. In a file the error names the task, and no path that is not in it."""
    for make in (lambda: task_spec("x", argv), lambda: command("sbx-one", argv)):
        with pytest.raises(HerdError) as raised:
            make()
        assert (raised.value.problem.code, str(raised.value)[: len(TEXT)]) == (Code.INVALID_FIELD, TEXT)
        assert (raised.value.problem.field, bool(raised.value.problem.remedy)) == ("argv", True)
    with pytest.raises(HerdError) as raised:
        order_tasks([{"name": "one", "text": "x", "argv": argv}])
    assert str(raised.value).startswith(f"one: {TEXT}")


def test_program_may_be_any_sequence() -> None:
    """A tuple, and what has been read from elsewhere."""
    harness = task_spec("x", ("echo", "hi")).harness
    assert isinstance(harness, CommandHarness)
    assert harness.argv == ["echo", "hi"]
    assert command("sbx-one", iter(["ls"])).command == ["ls"]  # type: ignore[arg-type]  # a caller without types
