"""The tables of `sql.md`: the views, and their columns."""

from pages import code, table

from event_ingest.sql_views import SCHEMA, VIEWS, View


def views() -> str:
    """A section for each view."""
    return "\n".join(_section(view) for view in VIEWS)


def _section(view: View) -> str:
    rows = ((code(column.name), column.sql_type, column.meaning) for column in view.columns)
    return f"### `{SCHEMA}.{view.name}`\n\n{view.row}\n\n{table(('column', 'type', 'meaning'), rows)}"
