"""Makes the output of git safe to show, because a server chooses parts of it."""

import base64
from collections.abc import Sequence


def secrets_of(username: str, password: str) -> tuple[str, ...]:
    """The forms in which a server may return a password: as text, and in base64."""
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    return password, pair, base64.b64encode(password.encode()).decode()


def printed_text(printed: bytes, secrets: Sequence[str] = ()) -> str:
    """The output as text without these secrets. Control characters are replaced, except line feeds and tabs."""
    text = printed.decode(errors="replace")
    for secret in secrets:
        text = text.replace(secret.rstrip("="), "***")  # base64 may be printed without its padding
    return "".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)
