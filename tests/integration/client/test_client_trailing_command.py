"""`sandherd exec` without `--`, and `-` for standard streams in `sandherd cp`, with the real services."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sandherd.client import Context, Herd
from tests.terminals import Start, on_terminal

Run = Callable[..., Awaitable[tuple[int, bytes, bytes]]]
LARGE = bytes(range(256)) * 2048


@pytest.fixture
def context(line: Context) -> Context:
    """The context of the real services."""
    return line


@pytest.fixture
def sandherd(started: Start) -> Run:
    """Run the command as a separate process with `stdin`; returns its status and its output."""

    async def run(*words: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
        process = await started(*words, stdin=asyncio.subprocess.PIPE)
        out, err = await process.communicate(stdin)
        assert process.returncode is not None
        return process.returncode, out, err

    return run


@pytest.fixture
async def sandbox(real: Herd, sandherd: Run) -> AsyncIterator[str]:
    """A running sandbox."""
    status, out, err = await sandherd("sandboxes", "create", "--ttl", "10m", "--memory", "512m")
    assert (status, err) == (0, b"")
    name = out.decode().strip()
    yield name
    await real.terminate(name)


async def test_commands_and_streams_are_those_of_a_shell(sandbox: str, sandherd: Run, started: Start) -> None:
    """`exec` needs no `--`; `cp` reads and writes standard streams, and shows a terminal only harmless text."""
    await check_everything_after_the_name_is_the_command(sandbox, sandherd, started)
    await check_file_is_copied_to_standard_output_and_from_standard_input(sandbox, sandherd)
    await check_terminal_gets_only_text_without_control_sequences(sandbox, sandherd, started)


async def check_everything_after_the_name_is_the_command(sandbox: str, sandherd: Run, started: Start) -> None:
    """Check that options of `exec` come before the name, or before `--`, and all later ones belong to the command."""
    await sandherd("exec", sandbox, "mkdir", "-p", "a/b")
    assert await sandherd("exec", sandbox, "ls", "-1", "a") == (0, b"b\n", b"")
    assert await sandherd("exec", "--cwd", "a", "--env=X=1", sandbox, "sh", "-c", "ls; echo $X; exit 3") == (
        3,
        b"b\n1\n",
        b"",
    )
    assert await sandherd("exec", sandbox, "--cwd", "a", "--", "ls", "-1") == (0, b"b\n", b"")
    assert await sandherd("exec", "-i", sandbox, "cat", "-", stdin=b"in") == (0, b"in", b"")
    assert await sandherd("exec", sandbox, "echo", "--", "-o", "json", "--help") == (0, b"-- -o json --help\n", b"")
    status, shown = await on_terminal(started, "exec", "-it", sandbox, "sh", "-c", "tty -s && echo -t")
    assert (status, shown.splitlines()[0]) == (0, "-t"), shown


async def check_file_is_copied_to_standard_output_and_from_standard_input(sandbox: str, sandherd: Run) -> None:
    """Check that only a file's bytes are written; a folder, and a folder as a target, are refused."""
    status, out, err = await sandherd("cp", "-", f"{sandbox}:in/data.bin", stdin=LARGE)
    assert (status, err) == (0, b""), err
    assert b"data.bin: 524288 bytes" in out
    assert await sandherd("cp", f"{sandbox}:in/data.bin", "-") == (0, LARGE, b"")
    assert await sandherd("exec", sandbox, "stat", "-c", "%a", "in/data.bin") == (0, b"644\n", b"")
    for words, expected_text in (
        ((f"{sandbox}:in", "-"), b"in is a folder"),
        ((f"{sandbox}:in", "-", "-r"), b"in is a folder"),
        (("-", f"{sandbox}:in/"), b"has no file name"),
        (("-", f"{sandbox}:in"), b"folder"),
        ((f"{sandbox}:in/data.bin", "-", "-o", "json"), b"omit -o"),
        (("-", "-"), b"SANDBOX:PATH"),
        ((f"{sandbox}:none", "-"), b"none"),
    ):
        status, out, err = await sandherd("cp", *words)
        assert (status in {1, 2}, out, err.count(b"\n")) == (True, b"", 1), (words, out, err)
        assert expected_text in err, (words, err)


async def check_terminal_gets_only_text_without_control_sequences(sandbox: str, sandherd: Run, started: Start) -> None:
    """Check that other files are refused in one line, so that a sandbox can't control the terminal."""
    await sandherd("cp", "-", f"{sandbox}:text", stdin=b"one\n\x1b]0;title\x07two\n")
    await sandherd("cp", "-", f"{sandbox}:data", stdin=b"\x00\xff")
    status, shown = await on_terminal(started, "cp", f"{sandbox}:text", "-")
    assert status == 0
    assert "one\r\n␛]0;title␇two\r\n" in shown
    assert "\x1b]" not in shown
    status, shown = await on_terminal(started, "cp", f"{sandbox}:data", "-")
    assert status == 2
    assert "data is not UTF-8 text" in shown


async def test_result_of_an_ended_task_is_copied_to_standard_output(real: Herd, sandherd: Run) -> None:
    """The result of an ended task is copied as well."""
    argv = ["sh", "-c", "mkdir out; echo done > out/result"]
    status, out, err = await sandherd("run", "work", "--keep-work", "-o", "json", "--", *argv)
    assert status == 0, (out, err)
    [task] = [view.task for view in (await real.tasks()).items]
    assert await sandherd("cp", f"{task}:out/result", "-") == (0, b"done\n", b"")
    assert (await sandherd("cp", f"{task}:out", "-"))[0] == 2
    assert (await sandherd("cp", f"{task}:../x", "-"))[0] == 2
