"""The schema, as numbered SQL files that are only ever added to. `event_ingest.migrating` applies them.

A file's name ends with its kind: `0006_name.before.sql` or `0007_name.after.sql`.
"""
