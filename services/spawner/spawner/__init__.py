"""The spawner: accepts tasks, starts a sandbox for each attempt, and removes sandboxes that have ended."""

import sandherd.bus  # noqa: F401  # it imports nats lightly, so it precedes modules that import nats directly
