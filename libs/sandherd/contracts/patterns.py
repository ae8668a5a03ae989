"""Patterns of text, each with its rule in words, which a refusal states in place of the regular expression."""

from typing import Final

_RULES: Final[dict[str, str]] = {}


def explained(pattern: str, rule: str) -> str:
    """The pattern. `rule` completes the sentence `it has to be …`."""
    _RULES[pattern] = rule
    return pattern


def rule_of(pattern: str) -> str:
    """What text of this pattern has to be."""
    return _RULES.get(pattern, f"text that matches {pattern}")


NO_NUL: Final = explained(r"^[^\x00]*$", "text without NUL characters")
PRINTABLE: Final = explained(r"^[^\x00-\x1f\x7f]*$", "text without line breaks and control characters")
NO_SPACE: Final = explained(r"^[^\x00-\x20\x7f]*$", "text without spaces and control characters")
