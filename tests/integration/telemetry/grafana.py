"""Queries of dashboards as Grafana sends them: with variables and the macros of its Postgres source filled in."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

DASHBOARDS: Final = Path(__file__).parents[3] / "deploy" / "helm" / "sandherd" / "files" / "dashboards"
FROM, TO = "now() - interval '1 hour'", "now() + interval '1 minute'"


@dataclass(frozen=True)
class PanelQuery:
    """A query of one panel."""

    board: str
    panel: str
    text: str

    def __str__(self) -> str:
        return f"{self.board}: {self.panel}"


def boards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))}


def queries_of(field: str) -> Iterator[PanelQuery]:
    """Every query of every panel in this field of a target: `expr`, or `rawSql`."""
    for name, board in boards().items():
        for panel in board["panels"]:
            for target in panel.get("targets", ()):
                if field in target:
                    yield PanelQuery(name, panel["title"], target[field])


def of_prometheus(query: str, herd: str) -> str:
    """The query with the dashboard's variables filled in; its time span is longer than any test may take."""
    for name, value in {"$__rate_interval": "30m", "$__range": "30m", "$herd": herd}.items():
        query = query.replace(name, value)
    return query


def of_postgres(sql: str, chosen: Mapping[str, str]) -> str:
    """The statement that Grafana makes of this query."""
    sql = sql.replace("$__interval", "1m")
    sql = re.sub(r"\$__timeFilter\(([^)]*)\)", rf"\1 BETWEEN {FROM} AND {TO}", sql)
    sql = re.sub(r"\$__timeGroupAlias\(([^,]*), *1m\)", r'floor((extract(epoch from \1))/60)*60 AS "time"', sql)
    for name, value in chosen.items():
        literal = "'" + value.replace("'", "''") + "'"
        sql = sql.replace(f"${{{name}:sqlstring}}", literal)
    assert "$" not in sql, sql
    return sql
