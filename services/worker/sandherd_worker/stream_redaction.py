"""Redaction of text that comes in pieces: what may be the beginning of a secret waits for its rest."""

from typing import Final

from sandherd_worker.redaction import Redactor, render
from sandherd_worker.redaction_shapes import looks_like_a_token, open_key

_LONGEST_WORD: Final = 4096
_LONGEST_HELD: Final = 16 * 1024
_REMEMBERED: Final = 512
"""How much of what was shown is looked at again, with what comes."""


class StreamRedactor:
    """A `Redactor` for one stream. What comes out, put together, is the stream without its secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""
        self._shown = ""
        """The last of what was released, as it came: a secret may have begun in it."""
        self._marked = False

    def feed(self, text: str) -> str:
        """Take a piece and return what may go out by now."""
        self._held += text
        return self._release(self._unfinished())

    def pause(self) -> str:
        """Nothing has come for a moment: an unfinished word may go out, unless it looks like part of a secret."""
        return "" if self._suspicious() else self._release(len(self._held))

    def finish(self) -> str:
        """All that is left."""
        return self._release(len(self._held))

    def abandon(self) -> str:
        """What has not gone out yet, as it came, and will not."""
        held, self._held = self._held, ""
        return held

    def _release(self, end: int) -> str:
        """No secret is cut in two: its halves would be known no more."""
        if not self._held:
            return ""
        whole, start = self._shown + self._held, len(self._shown)
        spans = self._redactor.spans(whole)
        place = start + end
        place = max(start, next((begin for begin, end in spans if begin < place < end), place))
        spans = [(begin, min(end, place)) for begin, end in spans if begin < place]
        out = render(whole[:place], spans, start, marked=self._marked)
        if place > start:
            self._marked = bool(spans) and spans[-1][1] == place
        self._shown, self._held = whole[max(0, place - _REMEMBERED) : place], whole[place:]
        return out

    def _unfinished(self) -> int:
        """Where what may become a secret begins."""
        key = open_key(self._held)
        if len(self._held) > _LONGEST_HELD:
            return len(self._held) - (0 if key is not None else _LONGEST_WORD)
        start = min(len(self._held) - len(_last_word(self._held)), self._begun(sure=False))
        return start if key is None else min(start, key)

    def _begun(self, *, sure: bool) -> int:
        """Where a known secret begins at the end of what is held; its length if none does."""
        window = (self._shown + self._held)[-max(_LONGEST_WORD, self._redactor.longest) :]
        begun = self._redactor.begun(window, sure=sure)
        return len(self._held) if begun is None else max(0, len(self._held) - len(window) + begun)

    def _suspicious(self) -> bool:
        if open_key(self._held) is not None or looks_like_a_token(_last_word(self._held)):
            return True
        return self._begun(sure=True) < len(self._held)


def _last_word(text: str) -> str:
    """What stands after the last blank; nothing if the text ends with one."""
    return text.rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
