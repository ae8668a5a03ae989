"""Redaction of text that arrives in pieces: text that may begin a secret is held until the rest has arrived."""

from typing import Final

from sandherd_worker.redaction import Redactor, render
from sandherd_worker.redaction_shapes import may_be_token, open_key

_LONGEST_WORD: Final = 4096
_LONGEST_PENDING: Final = 16 * 1024
_REMEMBERED: Final = 512
"""How many characters of released text are searched again, together with the next piece."""


class StreamRedactor:
    """A `Redactor` for one stream. The concatenated output is the stream without its secrets."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._pending = ""
        self._released_tail = ""
        """The end of the released text, unredacted: a secret may have begun in it."""
        self._ends_in_mark = False
        """Whether the released text ends in a mark of a secret: the rest of that secret gets no second mark."""

    def feed(self, text: str) -> str:
        """Take a piece and return the text that may be released."""
        self._pending += text
        return self._release(self._unfinished())

    def pause(self) -> str:
        """No text has arrived for a moment: releases an incomplete word, unless it may be part of a secret."""
        return "" if self._suspicious() else self._release(len(self._pending))

    def finish(self) -> str:
        """The rest of the text, redacted."""
        return self._release(len(self._pending))

    def abandon(self) -> str:
        """Discard what was not released, and return it unredacted."""
        pending, self._pending = self._pending, ""
        return pending

    def _release(self, end: int) -> str:
        """Release the text up to `end`, or up to a secret that continues after it: parts of it would not be found."""
        if end <= 0:  # the usual case within a word: without it each piece would cost a search of the text before it
            return ""
        whole, start = self._released_tail + self._pending, len(self._released_tail)
        spans = self._redactor.spans(whole)
        place = start + end
        place = max(start, next((begin for begin, end in spans if begin < place < end), place))
        spans = [(begin, min(end, place)) for begin, end in spans if begin < place]
        out = render(whole[:place], spans, start, marked=self._ends_in_mark)
        if place > start:
            self._ends_in_mark = bool(spans) and spans[-1][1] == place
        self._released_tail, self._pending = whole[max(0, place - _REMEMBERED) : place], whole[place:]
        return out

    def _unfinished(self) -> int:
        """The position in the pending text where a secret may begin that is incomplete; its length if none does."""
        key = open_key(self._pending)
        if len(self._pending) > _LONGEST_PENDING:
            longest = len(self._pending) - _LONGEST_WORD
            return len(self._pending) if key is not None else min(longest, self._partial_start(sure=False))
        start = min(len(self._pending) - len(_last_word(self._pending)), self._partial_start(sure=False))
        return start if key is None else min(start, key)

    def _partial_start(self, *, sure: bool) -> int:
        """The position where a known secret begins at the end of the pending text; its length if none does."""
        window = (self._released_tail + self._pending)[-max(_LONGEST_WORD, self._redactor.longest) :]
        begun = self._redactor.partial_start(window, sure=sure)
        return len(self._pending) if begun is None else max(0, len(self._pending) - len(window) + begun)

    def _suspicious(self) -> bool:
        if open_key(self._pending) is not None or may_be_token(_last_word(self._pending)):
            return True
        return self._partial_start(sure=True) < len(self._pending)


def _last_word(text: str) -> str:
    """The text after the last whitespace; empty if the text ends with whitespace."""
    return text.rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
