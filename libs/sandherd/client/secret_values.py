"""Checks the values of secret variables. A short value can't be redacted from events and outputs."""

from collections.abc import Mapping

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.contracts.redacted_values import MIN_SECRET_LENGTH


def check_secret_values(values: Mapping[str, str]) -> None:
    """Raise `HerdError` for a value that is too short to be redacted. The error does not contain the value."""
    short = [name for name, value in values.items() if len(value) < MIN_SECRET_LENGTH]
    if short:
        raise HerdError.of(
            Code.INVALID_FIELD,
            f"the value of {short[0]} has fewer than {MIN_SECRET_LENGTH} characters, which any text may contain: "
            "it can't be kept out of events",
            field="secret_env",
            remedy="use a longer secret; if the value is not secret, give it as an ordinary variable (--env, `env`)",
        )
