"""Commands show that a signal was sent, and that a file has no versions."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandherd.cli.exec_session import detached_command
from sandherd.cli.options import Format
from sandherd.cli.session_replay import versions
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import ExecState

SANDBOX, EXEC = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya", "exc-01kahc5x3tf8b9n2m4r6v8w0ya"


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ({"state": "running"}, f"{EXEC}: signal sent; see its state with --status\n"),
        ({"state": "killed"}, f"{EXEC}: killed\n"),
        ({"state": "exited", "exit_code": 0}, f"{EXEC}: exited with status 0\n"),
    ],
)
def test_killed_command_that_still_runs_was_sent_a_signal(
    state: dict[str, Any], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`running` alone would read as if nothing was done."""

    async def kill() -> ExecState:
        return ExecState.model_validate({"exec": EXEC, **state})

    herd = SimpleNamespace(execution=lambda *_: SimpleNamespace(kill=kill))
    work = detached_command(SANDBOX, Format.TABLE, status=None, kill=EXEC)
    assert asyncio.run(cast("Coroutine[Any, Any, int]", work(cast("Herd", herd)))) == 0
    assert capsys.readouterr().out == shown


@pytest.mark.parametrize("output", [Format.TABLE, Format.JSON])
def test_path_without_a_version_is_an_error(output: Format) -> None:
    """The path may be mistyped. A missing version is an error, too."""

    async def none(*_: Any) -> AsyncIterator[Any]:
        nothing: list[Any] = []
        for one in nothing:
            yield one

    work = versions(SANDBOX, "nope", None, output)(cast("Herd", SimpleNamespace(file_versions=none)))
    with pytest.raises(HerdError, match="the sandbox has not changed a file 'nope'") as raised:
        asyncio.run(cast("Coroutine[Any, Any, int]", work))
    assert raised.value.problem.code is Code.NOT_FOUND
    assert raised.value.problem.remedy == f"see `sandherd files {SANDBOX} --versions`"
