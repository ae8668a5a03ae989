"""Keeping secrets out of what is said: the values that are known, and the shapes of tokens that are common."""

import base64
import json
import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import quote

MARK: Final = "[redacted]"

_SHORTEST_SECRET: Final = 4
_SHORTEST_LINE: Final = 16
"""A line of a secret of several lines (a key) counts as one by itself from this length on."""

_TOKENS: Final = (
    ("sk-", r"[A-Za-z0-9_-]{20,}"),  # Anthropic (sk-ant-…), OpenAI and others
    ("gh[pousr]_", r"[A-Za-z0-9]{20,}"),  # GitHub
    ("github_pat_", r"[A-Za-z0-9_]{20,}"),
    ("glpat-", r"[A-Za-z0-9_-]{16,}"),  # GitLab
    ("AKIA", r"[0-9A-Z]{16}"),  # AWS key ids
    ("ASIA", r"[0-9A-Z]{16}"),
    ("dtn_", r"[A-Za-z0-9]{16,}"),  # Daytona
    ("xox[abposr]-", r"[A-Za-z0-9-]{10,}"),  # Slack
    ("AIza", r"[0-9A-Za-z_-]{35}"),  # Google
    ("eyJ", r"[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),  # JSON Web Tokens
    ("S[UAO]", r"[A-Z2-7]{56}\b"),  # NATS seeds
)
"""How each kind begins, and how it goes on."""


def _boundary(begin: str) -> str:
    """Looks back over such a beginning to where a token may begin.

    That is not within a word, as in `task-…`, unless what looks like one is an escape of JSON or of a URL, or the
    colour of a terminal.
    """
    before = r"\\[bfnrt]", r"\\u[0-9A-Fa-f]{4}", "%[0-9A-Fa-f]{2}", r"[0-9;\[]m"
    return "(?:" + "|".join((f"(?<![A-Za-z0-9]{begin})", *(f"(?<={one}{begin})" for one in before))) + ")"


_KEY_NAME: Final = r"(?:[A-Z +]|%20)*PRIVATE(?:[ +]|%20)KEY"
"""What stands in the head and the foot of a key; in a URL a blank is written otherwise."""
_SHAPES: Final = (
    *(f"{begin}{_boundary(begin)}{rest}" for begin, rest in _TOKENS),
    rf"-----BEGIN{_KEY_NAME}-----[\s\S]*?(?:-----END{_KEY_NAME}-----|\Z)",
)
"""Each begins with a letter of its own: where none of these stands, the search for all of them passes on at once."""
_USER: Final = r"(?<=://)[^\s/:@]{1,256}:[^\s/@]{1,256}(?=@)"
"""User and password in a URL."""
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_FOR_HTML: Final = {ord(one): f"\\u{ord(one):04x}" for one in "<>&\u2028\u2029"}
_OPEN_KEY: Final = re.compile(
    rf"-----BEGIN(?:[A-Z +%20]*-{{0,5}}\Z|{_KEY_NAME}-----(?![\s\S]*-----END{_KEY_NAME}-----))"
)
"""A key, or the head of one, whose end has not come yet."""
_UNFINISHED: Final = re.compile(
    _boundary("")
    + r"(?:sk-|gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|dtn_|xox[abposr]-|AIza|eyJ|S[UAO][A-Z2-7]{8,}|(?<=:)//)\S*\Z"
)
_LONGEST_WORD: Final = 4096
_LONGEST_HELD: Final = 16 * 1024


class Redactor:
    """Replaces secrets by `MARK`. A secret shorter than 4 characters can't be told from ordinary text and stays."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        found = {form for secret in secrets for form in _forms(secret) if len(form) >= _SHORTEST_SECRET}
        self.known: Final = tuple(sorted(found, key=len, reverse=True))
        shapes = (*map(re.escape, self.known), *_SHAPES)
        self._usual = re.compile("|".join(shapes))
        self._with_urls = re.compile("|".join((*shapes, _USER)))  # looks back, so it is tried at every letter: slow

    def text(self, text: str) -> str:
        """The text without its secrets."""
        return self._pattern(text).sub(MARK, text)

    def before(self, text: str, place: int) -> int:
        """Where the secret begins that has this place in its middle; the place itself if none has."""
        spans = (found.span() for found in self._pattern(text).finditer(text))
        return next((start for start, end in spans if start < place < end), place)

    def value(self, value: Any) -> Any:
        """A JSON-like value without the secrets in its strings and keys; anything else in it is left as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _pattern(self, text: str) -> re.Pattern[str]:
        return self._with_urls if "://" in text and "@" in text else self._usual


def _forms(secret: str) -> Iterable[str]:
    """A secret as it may appear: as it is, as part of JSON or of a URL, in base 64, and line by line."""
    yield quote(secret, safe="", errors="surrogatepass")
    if len(secret) >= _SHORTEST_LINE:
        yield base64.b64encode(secret.encode("utf-8", "surrogateescape")).decode().rstrip("=")
    yield secret
    for form in _as_some_write_it(secret):
        yield form
        yield from _in_json(form)
    for line in secret.splitlines():
        if len(line) >= _SHORTEST_LINE:
            yield from (line, *_in_json(line))


def _in_json(text: str) -> tuple[str, str]:
    """A string as JSON has it, in ASCII alone and in all letters."""
    return json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


def _as_some_write_it(text: str) -> Iterable[str]:
    """As JSON, also with what some languages escape beside what they must."""
    for form in _in_json(text):
        yield form
        yield _ESCAPE.sub(lambda found: found[0][:2] + found[0][2:].upper(), form)
        yield form.translate(_FOR_HTML)
        yield form.replace("/", r"\/")


class StreamRedactor:
    """The same for text that comes in pieces: what may be the beginning of a secret waits for its rest."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._held = ""

    def feed(self, text: str) -> str:
        """Take a piece and return what may go out by now."""
        self._held += text
        return self._release(self._cut())

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
        out, self._held = self._held[:end], self._held[end:]
        return self._redactor.text(out)

    def _cut(self) -> int:
        """Where the part begins that has to wait. No secret is cut in two there: its halves would be known no more."""
        return self._redactor.before(self._held, self._unfinished())

    def _unfinished(self) -> int:
        """Where what may become a secret begins."""
        key = _OPEN_KEY.search(self._held)
        if len(self._held) > _LONGEST_HELD:
            return len(self._held) - (0 if key else _LONGEST_WORD)
        start = len(self._held) - max(len(_last_word(self._held)), self._begun())
        return min(start, key.start()) if key else start

    def _begun(self) -> int:
        """How many characters at the end are the beginning of a known secret."""
        longest = 0
        for secret in self._redactor.known:
            for length in range(min(len(secret) - 1, len(self._held)), longest, -1):
                if self._held.endswith(secret[:length]):
                    longest = length
                    break
        return longest

    def _suspicious(self) -> bool:
        if _OPEN_KEY.search(self._held) or _UNFINISHED.search(_last_word(self._held)):
            return True
        return self._begun() >= _SHORTEST_SECRET


def _last_word(text: str) -> str:
    """What stands after the last blank; nothing if the text ends with one."""
    return text.rsplit(None, 1)[-1] if text and not text[-1].isspace() else ""
