"""A schedule's task is read from a file, or from the arguments of `sandherd run`."""

from pathlib import Path

import pytest
import typer

from sandherd.cli.scheduled_task import scheduled_task
from sandherd.client import HerdError


@pytest.mark.parametrize("name", ["task.yaml", "task.json", "task", "Tidy up"])
def test_existing_file_of_any_name_is_read(tmp_path: Path, name: str) -> None:
    """It is not taken for the text of a task."""
    path = tmp_path / name
    path.write_text('{"tasks": [{"name": "one", "text": "count", "argv": ["true"]}]}')
    assert scheduled_task([str(path)]).task.text == "count"


def test_missing_file_with_a_suffix_is_an_error(tmp_path: Path) -> None:
    """It is named, and not taken for a text."""
    with pytest.raises(HerdError, match="No such file"):
        scheduled_task([str(tmp_path / "none.yaml")])


@pytest.mark.parametrize("text", ["Tidy up", "x" * 5000, "a\nb/c"])
def test_other_text_is_a_task(text: str) -> None:
    """A text that is too long for the name of a file is a task, too."""
    assert scheduled_task([text, "--harness", "claude"]).task.text == text
    assert scheduled_task([text]).task.text == text


@pytest.mark.parametrize("options", [[], ["--memory", "512m"], ["--memory=512m", "--no-follow"]])
def test_program_without_a_description_is_described_by_its_command_line(options: list[str]) -> None:
    """`run -- PROGRAM` needs no text; options before `--` are those of `run`, and all after it is the program's."""
    task = scheduled_task([*options, "--", "make", "-j2", "a b"]).task
    assert (task.text, task.harness.argv) == ("make -j2 'a b'", ["make", "-j2", "a b"])  # type: ignore[union-attr]
    described = scheduled_task(["Build it", *options, "--", "make", "--", "all"]).task
    assert (described.text, described.harness.argv) == ("Build it", ["make", "--", "all"])  # type: ignore[union-attr]


@pytest.mark.parametrize("words", [[], ["--"], ["--memory", "512m"]])
def test_task_needs_a_description_or_a_program(words: list[str]) -> None:
    """The error names both ways."""
    with pytest.raises(typer.BadParameter, match="describe the task, or name a program"):
        scheduled_task(words)
