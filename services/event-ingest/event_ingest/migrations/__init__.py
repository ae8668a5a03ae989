"""The schema, as numbered SQL files; applied files are never changed. `event_ingest.migrator` applies them.

A file's name ends with its kind: `0006_name.before.sql` or `0007_name.after.sql`.
"""
