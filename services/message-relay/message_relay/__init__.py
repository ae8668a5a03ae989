"""The message-relay: stores messages to agents and delivers each to its worker until the worker returns a receipt."""

import sandherd.bus  # noqa: F401  # loads nats without its unused parts: import it before nats
