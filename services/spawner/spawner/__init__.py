"""The spawner: accepts tasks, starts a sandbox for each attempt, and removes sandboxes that have ended."""

import sandherd.bus  # noqa: F401  # before modules that import nats directly: it imports only parts of nats
