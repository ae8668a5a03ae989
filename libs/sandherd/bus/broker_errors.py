"""The errors that nats-py's functions raise while the broker is unavailable."""

from typing import Final

import nats.errors

BROKER_ERRORS: Final = (nats.errors.Error, OSError)
"""Errors of a connection, a request or a JetStream operation.

They include `nats.js.errors.Error`, which derives from `nats.errors.Error`, and `TimeoutError`, which is an `OSError`.
"""
READ_ERRORS: Final = (*BROKER_ERRORS, KeyError, ValueError)
"""Errors of a read that decodes the broker's reply itself, such as a batched direct get."""
