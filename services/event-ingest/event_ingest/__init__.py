"""event-ingest: the only writer of Postgres, and who answers about the past."""

import sandherd.bus  # noqa: F401  # it loads nats lightly, so it comes before whoever here loads nats by itself
