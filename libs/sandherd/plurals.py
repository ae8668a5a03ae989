"""Numbers with their nouns, as text for users."""


def pluralize(number: int, one: str, several: str | None = None) -> str:
    """The number with its noun, as `1 task` or `2 tasks`. `several` is a plural that has more than an `s` appended."""
    return f"{number} {one if number == 1 else several or one + 's'}"
