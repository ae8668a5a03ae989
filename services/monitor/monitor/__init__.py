"""The monitor: finds sandboxes that are dead, idle, too old or flooding, and agents that loop."""

import sandherd.bus  # noqa: F401  # loads nats without its unused parts: import it before nats
