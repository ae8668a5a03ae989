"""Tokens recognised by their format, independent of their owner. Every pattern is linear in the length of the text."""

import re
from typing import Final

from sandherd_worker.redaction_search import Span

_MAX_JWT_PART: Final = 1024
"""Maximum length of a JSON Web Token's first part, in characters: one word may contain many candidates, and each is
read up to this length."""
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
    (
        "eyJ",  # JSON Web Tokens
        rf"[A-Za-z0-9_-]{{8,{_MAX_JWT_PART}}}+\.eyJ[A-Za-z0-9_-]{{8,{8 * _MAX_JWT_PART}}}+\.[A-Za-z0-9_-]{{8,}}",
    ),
    ("S[UAO]", r"[A-Z2-7]{56}\b"),  # NATS seeds
)
"""The prefix of each kind, and the pattern that follows it."""


def _boundary(prefix: str) -> str:
    """A lookbehind after a token's prefix: it checks that a token may begin where the prefix begins.

    A token does not begin within a word, as in `task-…`, unless the characters before it are an escape of JSON or of a
    URL, or a terminal colour code.
    """
    before = r"\\[bfnrt]", r"\\u[0-9A-Fa-f]{4}", "%[0-9A-Fa-f]{2}", r"[0-9;\[]m"
    return "(?:" + "|".join((f"(?<![A-Za-z0-9]{prefix})", *(f"(?<={one}{prefix})" for one in before))) + ")"


_KEY_NAME: Final = r"(?:[A-Z +]|%20)*PRIVATE(?:[ +]|%20)KEY"
"""The type of a private key in its header and footer. In a URL a space is `+` or `%20`."""
_SHAPES: Final = (
    *(f"{prefix}{_boundary(prefix)}{rest}" for prefix, rest in _TOKENS),
    rf"-----BEGIN{_KEY_NAME}-----[\s\S]*?(?:-----END{_KEY_NAME}-----|\Z)",
)
"""The patterns of all tokens, and of private keys. Each begins with a literal character, so that the regex engine
quickly skips text without one of these characters."""
CANDIDATE: Final = (
    r"-(?<=sk-)[A-Za-z0-9_-]{20}|_(?<=gh[pousr]_)[A-Za-z0-9]{20}|_(?<=github_pat_)[A-Za-z0-9_]{20}"
    r"|-(?<=glpat-)[A-Za-z0-9_-]{16}|K(?<=AK)IA[0-9A-Z]{16}|S(?<=AS)IA[0-9A-Z]{16}|_(?<=dtn_)[A-Za-z0-9]{16}"
    r"|x(?=ox[abposr]-)|z(?<=AIz)a|J(?<=eyJ)|S[UAO][A-Z2-7]{56}|B(?<=-----B)EGIN"
)
"""Matches somewhere in every token, and has only ASCII characters. It is twice as fast as `_SHAPES`, because each
alternative begins with a character that is rare in ordinary text."""
_CANDIDATE: Final = re.compile(CANDIDATE)
_URL_USER: Final = r"(?<=://)[^\s/:@]{1,256}:[^\s/@]{1,256}(?=@)"
"""User and password in a URL."""
_SHAPE: Final = re.compile("|".join(_SHAPES))
_SHAPE_OR_URL_USER: Final = re.compile(
    "|".join((*_SHAPES, _URL_USER))
)  # slow: it has a lookbehind, so it is tried at every character
_KEY_HEAD: Final = re.compile(rf"-----BEGIN{_KEY_NAME}-----")
_KEY_FOOT: Final = re.compile(rf"-----END{_KEY_NAME}-----")
_PARTIAL_KEY_HEAD: Final = re.compile(r"-----BEGIN[A-Z +%20]*-{0,5}\Z")
_MAX_HEAD: Final = 128
_PARTIAL_TOKEN: Final = re.compile(
    _boundary("")
    + r"(?:sk-|gh[pousr]_|github_pat_|glpat-|AKIA|ASIA|dtn_|xox[abposr]-|AIza|eyJ|S[UAO][A-Z2-7]{8,}|(?<=:)//)\S*\Z"
)


def tokens(text: str) -> list[Span]:
    """The spans of the tokens of this text."""
    if "://" in text and "@" in text:
        return [match.span() for match in _SHAPE_OR_URL_USER.finditer(text)]
    if _CANDIDATE.search(text) is None:
        return []
    return [match.span() for match in _SHAPE.finditer(text)]


def open_key(text: str) -> int | None:
    """The start of a key, or of its header, that is not complete yet; None if there is none."""
    if "-----BEGIN" not in text:
        return None
    closed = max((found.end() for found in _KEY_FOOT.finditer(text)), default=0)
    head = _KEY_HEAD.search(text, closed) or _PARTIAL_KEY_HEAD.search(text, max(closed, len(text) - _MAX_HEAD))
    return None if head is None else head.start()


def may_be_token(word: str) -> bool:
    """Whether the last word of a text may be the beginning of a token."""
    return _PARTIAL_TOKEN.search(word) is not None
