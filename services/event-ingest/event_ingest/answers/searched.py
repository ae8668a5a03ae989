"""Texts that are looked for in the history."""

from sandherd.contracts.errors import Code, ContractError


def check_searched(text: str | None, field: str) -> None:
    """Raise `ContractError` naming the field for a text that Postgres can't hold, and so can't look for."""
    if text is not None and "\0" in text:
        raise ContractError(Code.INVALID_FIELD, f"{field}: a NUL is in it", field=field)
