"""The screens of `top` and `--watch`."""

import os
import pty

import pytest

from sandherd.cli.render.list_watch import show_screen


def test_screen_leaves_what_was_scrolled_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown in place of what the terminal shows; the lines above it are not erased (ESC[3J)."""
    controller, place = pty.openpty()
    with os.fdopen(place, "w", encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", stream)
        show_screen("title", ["NAME"], [["last"]], wide=False)
        shown = ""
        while "last" not in shown:
            shown += os.read(controller, 65536).decode()
    os.close(controller)
    assert "\x1b[2J" in shown
    assert "\x1b[3J" not in shown
