"""The output of an interactive program: what it may do to this terminal."""

import pytest

from sandherd.client.screen_output import ScreenFilter

OUTPUT = "\x1b]0;title\x07a\x1b[31mb\x1b]52;c;eA==\x1b\\c\x1b[21td\x1bPq\x1b\\e\x1b[2Jf\x9b21tg\x1b(Bh\x1b[?25l"


@pytest.mark.parametrize("size", [1, 2, 3, len(OUTPUT)])
def test_only_the_screen_is_controlled(size: int) -> None:
    """Titles, the clipboard, window operations and device strings are left out, wherever the output is split."""
    screen = ScreenFilter()
    pieces = [OUTPUT[start : start + size] for start in range(0, len(OUTPUT), size)]
    assert "".join(map(screen.feed, pieces)) == "a\x1b[31mbcde\x1b[2Jf21tg\x1b(Bh\x1b[?25l"
