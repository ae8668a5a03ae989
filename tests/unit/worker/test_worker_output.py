"""How much of an agent's terminal output is shown: its beginning, how much is missing, and its end."""

import asyncio
import re
from typing import Any

import pytest

from sandherd_worker.harnesses.cutting import LAST_KEPT, MOST_SHOWN, Allowance
from sandherd_worker.harnesses.output import CHUNK_BYTES, Output, Pace
from sandherd_worker.redaction import Redactor

MISSING = re.compile(r"\[sandherd: (\d+) bytes of output are left out here\]\n")
MORE = re.compile(r"\n\[sandherd: more than [^]\n]*\]\n")
SECRET = "hunter2-hunter2"


async def shown(listener: Any, content: bytes, allowance: Allowance | None = None) -> Output:
    reader = asyncio.StreamReader()
    reader.feed_data(content)
    reader.feed_eof()
    output = Output(Redactor([SECRET]), listener.show, Pace(1e12, 1e12), allowance=allowance)
    await output.read(reader)
    return output


async def test_the_beginning_the_end_and_what_is_missing_are_told(listener: Any) -> None:
    """Not a byte more or less; the last of it is what the tool's result gets."""
    content = b"".join(b"%7d\n" % number for number in range(100_000))
    output = await shown(listener, content, Allowance(most=80_000, last=8_000))
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
async def test_what_is_not_too_much_is_shown_as_it_is(listener: Any, size: int) -> None:
    """Up to the last byte of the allowance."""
    await shown(listener, b"x" * size, Allowance(most=1000, last=100))
    assert listener.output == "x" * size


async def test_a_little_too_much_is_shown_whole(listener: Any) -> None:
    """What the end has room for is not missing, and that nothing is missing is not said."""
    content = "€ " * 300
    await shown(listener, content.encode(), Allowance(most=1000, last=1000))
    assert "".join(MORE.split(listener.output)) == content
    assert MISSING.search(listener.output) is None


@pytest.mark.parametrize("place", range(0, 40, 3))
async def test_no_secret_gets_out_at_an_edge(listener: Any, place: int) -> None:
    """Wherever it is cut in two: at the end of the beginning, or at the beginning of the end."""
    first = b"a " * 485 + b"-" * place + SECRET.encode()
    last = SECRET.encode() + b" " * place + b"z" * 960
    await shown(listener, first + b" b" * 50_000 + b" " + last, Allowance(most=1000, last=1000))
    assert not any(part in listener.output for part in (SECRET, SECRET[:8], SECRET[7:]))


async def test_what_is_left_out_is_not_held(listener: Any) -> None:
    """64 MiB from a real program passes through, and next to nothing of it is kept."""
    source = "yes 'so many words' | head -c 67108864"
    program = await asyncio.create_subprocess_exec("/bin/sh", "-c", source, stdout=asyncio.subprocess.PIPE)
    assert program.stdout is not None
    await Output(Redactor(), listener.show, Pace(1e12, 1e12), allowance=Allowance(most=100_000)).read(program.stdout)
    await program.wait()
    found = MISSING.search(listener.output)
    assert found is not None
    assert int(found[1]) > 67108864 - 100_000 - LAST_KEPT - 4096
    assert len(listener.output) < 100_000 + LAST_KEPT + 8192


async def test_the_end_is_shown_in_pieces(listener: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is larger than those before it: the history shows so much of one, and no more."""
    pieces: list[int] = []
    show = listener.show

    async def weighed(text: str) -> None:
        pieces.append(len(text.encode("utf-8", "surrogateescape")))
        await show(text)

    monkeypatch.setattr(listener, "show", weighed)
    await shown(listener, ("€" * 9 + "\n").encode() * 20_000, Allowance(most=1000))
    assert max(pieces) <= CHUNK_BYTES
    assert len(listener.output.encode()) > LAST_KEPT


def test_an_attempt_shows_a_small_part_of_what_is_kept_of_all() -> None:
    """Thirty attempts that can't stop talking do not drive out what the others have said."""
    allowance = Allowance()
    taken = sum(allowance.take(10**9) for _ in range(3))
    assert taken == MOST_SHOWN
    assert (MOST_SHOWN + LAST_KEPT) * 30 < 2 * 2**30
