"""The shown part of an agent's terminal output: its beginning, the omitted size, and its end."""

import asyncio
import re
from typing import Any

import pytest

from sandherd_worker.harnesses.terminal_output import (
    CHUNK_BYTES,
    MAX_SHOWN,
    TAIL_BYTES,
    OutputAllowance,
    OutputRate,
    TerminalOutput,
)
from sandherd_worker.redaction import Redactor

MISSING = re.compile(r"\[sandherd: (\d+) bytes of output are left out here\]\n")
MORE = re.compile(r"\n\[sandherd: more than [^]\n]*\]\n")
SECRET = "hunter2-hunter2"


async def shown(listener: Any, content: bytes, allowance: OutputAllowance | None = None) -> TerminalOutput:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    output = TerminalOutput(Redactor([SECRET]), listener.show, OutputRate(1e12, 1e12), allowance=allowance)
    await output.read(reader)
    return output


async def test_beginning_end_and_omitted_size_are_shown(listener: Any) -> None:
    """The number of omitted bytes is exact, and the tool's result has the end of the output."""
    content = b"".join(b"%7d\n" % number for number in range(100_000))
    output = await shown(listener, content, OutputAllowance(limit=80_000, last=8_000))
    begin, rest = MORE.split(listener.output)
    missing, end = MISSING.split(rest)[1:]
    assert content.startswith(begin.encode())
    assert content.endswith(end.encode())
    assert len(begin) + int(missing) + len(end) == len(content)
    # At each edge a word may be held back: it might be the beginning of a secret.
    assert (80_000 - 4096 <= len(begin) <= 80_000, 8_000 <= len(end) <= 8_000 + 4096) == (True, True)
    assert output.tail == content[-5000:].decode()
    assert output.length >= len(content)


@pytest.mark.parametrize("size", [0, 1, 999, 1000])
async def test_output_within_the_allowance_is_shown_unchanged(listener: Any, size: int) -> None:
    """An output up to the last byte of the allowance is complete."""
    await shown(listener, b"x" * size, OutputAllowance(limit=1000, last=100))
    assert listener.output == "x" * size


async def test_slightly_long_output_is_shown_whole(listener: Any) -> None:
    """Output within the space of the end is shown without an omission."""
    content = "€ " * 300
    await shown(listener, content.encode(), OutputAllowance(limit=1000, last=1000))
    assert "".join(MORE.split(listener.output)) == content
    assert MISSING.search(listener.output) is None


@pytest.mark.parametrize("place", range(0, 40, 3))
async def test_secret_at_the_edge_of_an_omission_is_redacted(listener: Any, place: int) -> None:
    """A secret at either edge of the omitted part is redacted."""
    first = b"a " * 485 + b"-" * place + SECRET.encode()
    last = SECRET.encode() + b" " * place + b"z" * 960
    await shown(listener, first + b" b" * 50_000 + b" " + last, OutputAllowance(limit=1000, last=1000))
    assert not any(part in listener.output for part in (SECRET, SECRET[:8], SECRET[7:]))


async def test_omitted_output_is_not_held_in_memory(listener: Any) -> None:
    """64 MiB from a real program pass through without being accumulated."""
    source = "yes 'so many words' | head -c 67108864"
    program = await asyncio.create_subprocess_exec("/bin/sh", "-c", source, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    await TerminalOutput(
        Redactor(), listener.show, OutputRate(1e12, 1e12), allowance=OutputAllowance(limit=100_000)
    ).read(program.stdout)
    await program.wait()
    found = MISSING.search(listener.output)
    assert found is not None
    assert int(found[1]) > 67108864 - 100_000 - TAIL_BYTES - 4096
    assert len(listener.output) < 100_000 + TAIL_BYTES + 8192


async def test_end_is_shown_in_pieces(listener: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces of the end are no larger than earlier ones: the history shows only a limited part of each."""
    pieces: list[int] = []
    show = listener.show

    async def weighed(text: str) -> None:
        pieces.append(len(text.encode("utf-8", "surrogateescape")))
        await show(text)

    monkeypatch.setattr(listener, "show", weighed)
    await shown(listener, ("€" * 9 + "\n").encode() * 20_000, OutputAllowance(limit=1000))
    assert max(pieces) <= CHUNK_BYTES
    assert len(listener.output.encode()) > TAIL_BYTES


def test_allowance_of_an_attempt_is_a_small_part_of_the_stream() -> None:
    """The output of thirty attempts at their limits is only a small part of the stream."""
    allowance = OutputAllowance()
    taken = sum(allowance.take(10**9) for _ in range(3))
    assert taken == MAX_SHOWN
    assert (MAX_SHOWN + TAIL_BYTES) * 30 < 2 * 2**30
