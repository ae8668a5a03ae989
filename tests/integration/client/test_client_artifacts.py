"""`sandherd artifacts`: the artifacts of the events of a task and its sandbox, with the real services."""

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd.client import Context, Herd, HerdError
from sandherd.client.herd import task_spec
from sandherd.contracts.errors import Code
from tests.integration.client.conftest import SANDBOX

Sandherd = Callable[..., Any]
LONG = "long " * 6_000
ARGV = ["sh", "-c", "echo result >out.txt", *[LONG] * 3]


@pytest.fixture
def context(line: Context) -> Context:
    """The context of the real services."""
    return line


@pytest.fixture
def sandherd(started: Callable[..., Any]) -> Sandherd:
    async def run(*words: str) -> tuple[int, bytes, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out, err.decode()

    return run


async def test_artifacts_of_a_task_are_listed_and_read(real: Herd, sandherd: Sandherd, tmp_path: Path) -> None:
    """The complete value of a field, and the stored work tree, of a task and its sandbox, are read by their names.

    Unknown names are errors.
    """
    task = await real.submit(task_spec("x", ARGV, keep_work=True))
    view = await real.wait(task)
    assert view.error is None
    assert view.sandbox is not None
    status, out, err = await sandherd("artifacts", "list", task, "-o", "json")
    assert (status, err) == (0, "")
    found = {one["event"]: one for one in json.loads(out)["artifacts"]}
    value, work = found["agent.tool_use"], found["agent.work_saved"]
    assert value["field"].startswith("input")
    assert (value["kind"], work["kind"]) == ("application/json", "application/gzip")
    assert (await sandherd("artifacts", "list", view.sandbox, "-o", "json"))[1] == out
    status, shown, _ = await sandherd("artifacts", "list", task)
    assert status == 0
    assert all(one["name"] in shown.decode() for one in found.values())
    status, content, err = await sandherd("artifacts", "get", value["name"])
    assert (status, err) == (0, "")
    assert content.count(LONG.encode()) == 3
    assert len(content) == value["size"]
    archive = tmp_path / "work.tar"
    assert (await sandherd("artifacts", "get", work["name"], "--of", task, "-o", str(archive)))[0] == 0
    with tarfile.open(archive) as tar:
        assert "out.txt" in tar.getnames()
    await check_unknown_artifacts_are_errors(real, sandherd, tmp_path)


async def check_unknown_artifacts_are_errors(real: Herd, sandherd: Sandherd, tmp_path: Path) -> None:
    """Check that an unknown artifact or sandbox is an error of one line with status 1, and that nothing is written."""
    target = tmp_path / "new"
    for words in (
        ("get", "art-01kahc5x3tf8b9n2m4r6v8w0ya", "-o", str(target)),
        ("get", "chosen-by-a-program"),
        ("list", SANDBOX),
    ):
        status, out, err = await sandherd("artifacts", *words)
        assert (status, out, err.count("\n")) == (1, b"", 1)
    assert not target.exists()
    with pytest.raises(HerdError) as caught:
        await real.find_artifact("art-none")
    assert caught.value.problem.code is Code.NOT_FOUND
