"""event-ingest: the only writer of Postgres, and who answers about the past."""
