"""The message-relay: keeps messages to agents, and hands each to its worker until a receipt comes back."""

import sandherd.bus  # noqa: F401  # it loads nats lightly, so it comes before whoever here loads nats by itself
