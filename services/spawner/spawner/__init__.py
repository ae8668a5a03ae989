"""The spawner: takes tasks, starts a sandbox for each, and ends what has ended."""

import sandherd.bus  # noqa: F401  # it loads nats lightly, so it comes before whoever here loads nats by itself
