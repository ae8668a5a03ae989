"""The client computes contents from diffs, writes casts, and shows hits of a search."""

import difflib
import hashlib
import json
import random
from datetime import UTC, datetime, timedelta

import pytest

from sandherd.cli.render.comparison import marked
from sandherd.cli.render.console import Paint
from sandherd.client.errors import HerdError
from sandherd.client.file_history import FileHistory
from sandherd.client.replay import cast_lines, replay_frames, with_pauses, without_repetitions
from sandherd.client.unified_diff import DiffMismatchError, apply_diff
from sandherd.contracts.requests import FileVersion, OutputChunk, SearchHit, TextMatch, TranscriptEntry

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def unified(before: str, after: str) -> str:
    """A diff as workers write it, with the marks of texts without a line end."""
    lines = difflib.unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), "a/f", "b/f")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def test_a_diff_applied_is_the_text_after() -> None:
    """Checked with 300 random pairs of texts: with and without line ends, empty, and with lines like marks."""
    draw = random.Random(7)
    lines = ["a\n", "b\n", "\n", "--- a\n", "+++ b\n", "@@ -1 +1 @@\n", "\\ No newline\n", " x\n"]
    for _ in range(300):
        before = "".join(draw.choices(lines, k=draw.randint(0, 12)))
        after = "".join(one for one in draw.choices(lines, k=draw.randint(0, 12)))
        before, after = (text.removesuffix("\n") if draw.random() < 0.5 else text for text in (before, after))
        assert apply_diff(before, unified(before, after)) == after


@pytest.mark.parametrize(
    "diff",
    ["@@ -9,1 +9,1 @@\n-a\n+b\n", "@@ -1,3 +1,1 @@\n-a\n", "@@ -1 +1 @@\n-b\n+c\n", f"@@ -1,{'9' * 9} +1 @@\n-a\n"],
)
def test_a_diff_of_another_text_is_refused(diff: str) -> None:
    """Lines that are not there, hunks that end too early, and positions beyond the end."""
    with pytest.raises(DiffMismatchError):
        apply_diff("a\n", diff)


def version(number: int, diff: str | None, content: str | None, change: str = "modified") -> FileVersion:
    digest = None if content is None else hashlib.sha256(content.encode()).hexdigest()
    return FileVersion.model_validate(
        {"file_path": "f", "number": number, "change_type": change, "time": NOW, "stream_sequence": number,
         "diff": diff, "content_sha256": digest}
    )  # fmt: skip


async def diff_in(one: FileVersion) -> str | None:
    return one.diff


async def test_a_version_has_its_content_only_if_that_is_certain() -> None:
    """From its creation on, verified by the digest; not with a missing diff, another digest, or without a creation."""
    first, second = "one\n", "one\ntwo\n"
    created = version(1, unified("", first), first, "created")
    changed = version(2, unified(first, second), second)
    found = await FileHistory([created, changed], diff_in).at(None)
    assert (found.content, found.verified, found.diff) == (second, True, changed.diff)
    assert (await FileHistory([created, changed], diff_in).at(1)).content == first
    without_digest = await FileHistory([created, version(2, changed.diff, None)], diff_in).at(2)
    assert (without_digest.content, without_digest.verified) == (second, False)
    for versions in (
        [version(1, None, first, "created"), changed],
        [created, version(2, changed.diff, "other")],
        [changed],
        [created, version(2, None, None, "deleted")],
    ):
        assert (await FileHistory(versions, diff_in).at(None)).content is None
    with pytest.raises(HerdError, match="no version 3"):
        await FileHistory([created, changed], diff_in).at(3)


def test_a_cast_is_valid_and_sends_no_control_sequence() -> None:
    """Asciicast v2: a header, then [time, "o", text] in order; colours remain, what controls a terminal does not."""
    hostile = "\x1b]52;c;aGk=\x07\x1b[31mred\x1b[0m\x1b[2J\r\n"
    output = [OutputChunk(stream_sequence=1, time=NOW + timedelta(seconds=9), text=hostile)]
    entries = [
        TranscriptEntry(stream_sequence=2, time=NOW, kind="call", title="Bash\x1b[2J", text="ls"),
        TranscriptEntry(stream_sequence=3, time=NOW + timedelta(seconds=1), kind="message", text="\x9b31mhi"),
    ]
    shown = replay_frames(output, entries)
    header, *events = [json.loads(line) for line in cast_lines(shown, title="s\x1b[2J", speed=2)]
    assert (header["version"], header["timestamp"]) == (2, int(NOW.timestamp()))
    assert all(type(header[name]) is int and header[name] > 0 for name in ("width", "height"))
    assert [event[1] for event in events] == ["o"] * 3
    assert [event[0] for event in events] == [0, 0.5, 2.5]
    texts = "".join(event[2] for event in events)
    assert "red" in texts
    for sequence in ("\x1b]", "\x1b[2J", "\x9b", "\x07"):
        assert sequence not in texts
        assert sequence not in header["title"]
    assert "\n" not in texts.replace("\r\n", "")
    assert [pause for pause, _ in with_pauses(shown, speed=1000)] == [0.0, 0.001, 0.008]
    assert list(cast_lines([], title="x"))[1:] == []


def test_a_hit_on_a_screen_has_its_words_and_no_control_character() -> None:
    """Matches are painted; the text is in one line, and inert."""
    snippet = "a \x1b[2J\nneedle  b\tneedle"
    matches = [TextMatch(start=7, end=13), TextMatch(start=17, end=23)]
    hit = SearchHit(id="i", stream_sequence=1, time=NOW, project="p", entity="sbx-1", type="agent.message",
                    kind="message", snippet=snippet, matches=matches)  # fmt: skip
    assert [snippet[one.start : one.end] for one in matches] == ["needle", "needle"]
    shown = marked(hit, Paint(on=True))
    assert shown.count("\x1b[1mneedle\x1b[0m") == 2
    assert shown.replace("\x1b[1m", "").replace("\x1b[0m", "").isprintable()


def test_output_of_a_program_is_played_once() -> None:
    """It is also the result of its call, and the end of the attempt: of these only the kind is shown."""
    output = [OutputChunk(stream_sequence=1, time=NOW, text="hi\r\nthere\r\n")]
    entries = [
        TranscriptEntry(stream_sequence=2, time=NOW, kind="result", text="hi\nthere"),
        TranscriptEntry(stream_sequence=3, time=NOW, kind="end", text="hi\nthere"),
        TranscriptEntry(stream_sequence=4, time=NOW, kind="result", text="more"),
    ]
    played = [one.text for one in without_repetitions(replay_frames(output, entries))]
    assert played == ["hi\r\nthere\r\n", "[result]\n", "[end]\n", "[result]\nmore\n"]
