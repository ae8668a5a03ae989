"""The schema, as numbered SQL files that are only ever added to. `event_ingest.migrating` applies them."""
