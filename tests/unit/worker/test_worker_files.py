"""The tracker of files: what breaks the watch breaks no task."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from sandherd_worker.files import FileTracker
from sandherd_worker.redaction import Redactor
from sandherd_worker.sound import sound


async def test_a_name_that_is_no_utf_8_is_said_and_breaks_nothing(
    tmp_path: Path, listener: Any, emitter: Any, spool: Any, said: Any, eventually: Any
) -> None:
    """The watch can't tell of it and ends; the look at everything finds it, and what can't be said is U+FFFD."""
    work = tmp_path / "work"
    work.mkdir()

    async def say(event: Any) -> None:
        await listener.say(event)
        await emitter.emit(event)

    tracker = FileTracker(work, tmp_path / "shadow", Redactor(), say, emitter.put_aside)
    await tracker.start()
    (good := work / "good").touch()
    # What happens before the watch has begun is not told, so it happens until something is.
    await eventually(lambda: listener.events or good.write_text(str(time.time_ns())) == 0, "the watch has begun")
    name = os.fsencode(work) + b"/bad\xff\xfe"
    await asyncio.to_thread(Path(os.fsdecode(name)).write_text, "b\n")
    await eventually(tracker._watching[0].done, "the watch has ended")
    (work / "after").write_text("c\n")
    await tracker.finish()
    bad = next(event.data for event in said(spool) if "bad" in event.data.file_path)
    assert (bad.file_path, bad.change_type) == ("bad\ufffd\ufffd", "created")
    assert "+++ b/bad\ufffd\ufffd" in bad.full_diff
    assert {event.data.file_path[:3] for event in said(spool)} == {"aft", "bad", "goo"}


def test_sound_text_stays_and_the_rest_is_replaced() -> None:
    """One sign for each that can't be kept, so that a position in the text stays what it was."""
    assert sound("a € \U0001f600\n") == "a € \U0001f600\n"
    assert sound("a\x00b\udcffc\ud83d") == "a\ufffdb\ufffdc\ufffd"
