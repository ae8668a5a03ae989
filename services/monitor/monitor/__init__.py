"""The monitor: finds sandboxes that are dead, idle or too old, and agents that go round in circles."""

import sandherd.bus  # noqa: F401  # it loads nats lightly, so it comes before whoever here loads nats by itself
