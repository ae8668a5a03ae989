"""Parses the output of scripts that run in boxes. An agent may have overwritten their files. Pure."""


def parse_number(text: str, max_digits: int) -> int | None:
    """A number in the output of a script; None for other text, and for a number that no script writes."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= max_digits else None
