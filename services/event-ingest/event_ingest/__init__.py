"""event-ingest: the only writer of Postgres, and the service that answers requests about the history."""

import sandherd.bus  # noqa: F401  # loads nats without its unused parts: import it before nats
