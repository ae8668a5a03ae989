"""Regular expressions for text fields, each with a rule in words, which an error states in place of the expression."""

from typing import Final

_RULES: Final[dict[str, str]] = {}


def explained(pattern: str, rule: str) -> str:
    """Register the rule of a pattern, and return the pattern. `rule` completes the sentence `it has to be …`."""
    _RULES[pattern] = rule
    return pattern


def rule_of(pattern: str) -> str:
    """The rule in words of a pattern, or else the pattern itself."""
    return _RULES.get(pattern, f"text that matches {pattern}")


NO_NUL: Final = explained(r"^[^\x00]*$", "text without NUL characters")
PRINTABLE: Final = explained(r"^[^\x00-\x1f\x7f]*$", "text without line breaks and control characters")
NO_SPACE: Final = explained(r"^[^\x00-\x20\x7f]*$", "text without spaces and control characters")
STORED_NAME_PATTERN: Final = explained(
    r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
    "1 to 64 letters, digits, underscores or dashes, starting with a letter or digit",
)
IMAGE_PATTERN: Final = explained(
    r"^[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}$",
    "an image's name, such as python:3.12: up to 255 letters, digits and . _ / : @ -",
)
