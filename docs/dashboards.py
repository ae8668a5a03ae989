"""Generates Grafana's dashboards from the few lines that deploy/grafana/*.yaml has for each panel.

A panel queries Prometheus, or the history in Postgres. Queries of Prometheus are checked against the table of metrics.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import promql
import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from sandherd.contracts.monitor_rules import RULES
from sandherd.telemetry.metrics import BY_NAME, MetricKind

Json = dict[str, Any]
Shows = Literal["number", "lines", "bars", "table"]
ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = ROOT / "deploy" / "grafana"
FOLDER: Final = ROOT / "deploy" / "helm" / "sandherd" / "files" / "dashboards"
"""The folder of the dashboards. It is in the chart, because a chart can only contain files of its own folder."""
_WIDTH: Final = 24
_SIZES: Final[Mapping[Shows, tuple[int, int]]] = {"number": (4, 4), "lines": (8, 8), "bars": (8, 8), "table": (12, 8)}
_TYPES: Final[Mapping[Shows, str]] = {"number": "stat", "lines": "timeseries", "bars": "timeseries", "table": "table"}
_SHARES: Final = {"half": 0.5, "95 of 100": 0.95}
"""The quantiles of a histogram, by legend."""
_SOURCE: Final = {"prometheus": "prometheus", "history": "grafana-postgresql-datasource"}
"""The kinds of Grafana's data sources."""


class Part(BaseModel):
    """A handwritten part; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Panel(Part):
    """One panel: what it shows, and its query."""

    title: str
    says: str
    shows: Shows = "lines"
    unit: str = "short"
    queries: dict[str, str] = {}
    """Queries of Prometheus, by legend."""
    spread: str | None = None
    """A histogram whose quantiles are shown, in place of queries."""
    by: str | None = None
    rules: Literal["housekeeping", "guardian"] | None = None
    """The kind of the monitor's rules that the description lists."""
    sql: str | None = None
    width: int | None = None

    @model_validator(mode="after")
    def _asks_one_thing(self) -> "Panel":
        if bool(self.queries) + bool(self.spread) + bool(self.sql) != 1:
            raise ValueError(f"{self.title}: give exactly one of queries, spread and sql")
        return self

    def asked(self) -> dict[str, str]:
        """The queries of Prometheus, by legend. Raises `promql.QueryError`."""
        asked = self.queries or (dict(_spread(self.spread, self.by)) if self.spread else {})
        for legend, query in asked.items():
            promql.legend_of(legend, query)
            promql.labels_of(query)
        return asked


class Row(Part):
    """Panels that belong together."""

    title: str
    panels: list[Panel]


class Choice(Part):
    """A variable that is selected at the top, from the results of a query of the history."""

    name: str
    says: str
    sql: str


class Board(Part):
    """One dashboard."""

    title: str
    says: str
    source: Literal["prometheus", "history"] = "prometheus"
    span: str = "now-6h"
    choices: list[Choice] = []
    rows: list[Row]


def documents() -> dict[Path, str]:
    """All dashboards, by path. Raises `ValueError` for an invalid source."""
    boards = {path.stem: Board(**yaml.safe_load(path.read_text("utf-8"))) for path in sorted(SOURCES.glob("*.yaml"))}
    return {
        FOLDER / f"{name}.json": json.dumps(dashboard(name, board), indent=1, ensure_ascii=False) + "\n"
        for name, board in boards.items()
    }


def dashboard(name: str, board: Board) -> Json:
    """A dashboard in Grafana's format."""
    return {
        "uid": f"sandherd-{name}",
        "title": f"Sandherd: {board.title}",
        "description": board.says,
        "tags": ["sandherd"],
        "schemaVersion": 41,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": board.span, "to": "now"},
        "links": [{"type": "dashboards", "tags": ["sandherd"], "title": "Sandherd", "asDropdown": True}],
        "templating": {"list": [*_variables(board)]},
        "panels": [*_placed(board)],
    }


# --- what is chosen at the top ---------------------------------------------------------------------------------------


def _variables(board: Board) -> Iterator[Json]:
    yield {"name": "source", "label": "Source", "type": "datasource", "query": _SOURCE[board.source]}
    if board.source == "prometheus":
        query = f"label_values(sandherd_ready, {promql.HERD})"
        asked = {"query": query, "refId": "herds"}
        # Only one herd can be selected: queries use the maximum over replicas, which is meaningless for several herds.
        yield _chosen(board, "herd", "Herd", asked)
    for choice in board.choices:
        yield _chosen(board, choice.name, choice.says, choice.sql)


def _chosen(board: Board, name: str, says: str, asked: Any) -> Json:
    return {
        "name": name,
        "label": says,
        "type": "query",
        "datasource": _datasource(board),
        "query": asked,
        "refresh": 2,
        "sort": 0 if board.choices else 1,
        "current": {},
    }


def _datasource(board: Board) -> Json:
    return {"type": _SOURCE[board.source], "uid": "${source}"}


# --- panels ----------------------------------------------------------------------------------------------------------


def _placed(board: Board) -> Iterator[Json]:
    """The rows from the top, each with its panels from the left. A panel that does not fit begins a new line."""
    number, top = 1, 0
    for row in board.rows:
        yield {"id": number, "type": "row", "title": row.title, "gridPos": _place(0, top, _WIDTH, 1), "panels": []}
        number, left, top, height = number + 1, 0, top + 1, 0
        for panel in row.panels:
            width, tall = panel.width or _SIZES[panel.shows][0], _SIZES[panel.shows][1]
            if left + width > _WIDTH:
                left, top, height = 0, top + height, 0
            yield {"id": number, **_panel(board, panel), "gridPos": _place(left, top, width, tall)}
            number, left, height = number + 1, left + width, max(height, tall)
        top += height


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"x": left, "y": top, "w": width, "h": height}


def _panel(board: Board, panel: Panel) -> Json:
    bars = {"drawStyle": "bars", "fillOpacity": 70, "stacking": {"mode": "normal", "group": "A"}}
    custom = {"bars": bars, "lines": {"fillOpacity": 10, "showPoints": "never"}}.get(panel.shows, {})
    return {
        "type": _TYPES[panel.shows],
        "title": panel.title,
        "description": _description(panel),
        "datasource": _datasource(board),
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": _options(panel.shows),
        "targets": [*_targets(board, panel)],
    }


def _description(panel: Panel) -> str:
    names = [row.name for row in RULES if row.kind == panel.rules]
    return f"{panel.says} The rules: {', '.join(names)} (docs/monitor.md)." if names else panel.says


def _options(shows: Shows) -> Json:
    if shows == "number":
        return {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
    if shows == "table":
        return {"showHeader": True, "cellHeight": "sm"}
    return {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def _targets(board: Board, panel: Panel) -> Iterator[Json]:
    once = panel.shows in {"number", "table"}
    for letter, (legend, query) in zip("ABCDEF", panel.asked().items(), strict=False):
        asked = {"expr": promql.of_herd(query), "legendFormat": legend, "instant": once, "range": not once}
        yield {"refId": letter, "datasource": _datasource(board), **asked}
    if panel.sql:
        shape = "table" if panel.shows in {"number", "table"} else "time_series"
        asked = {"rawSql": panel.sql.strip(), "rawQuery": True, "editorMode": "code", "format": shape}
        yield {"refId": "A", "datasource": _datasource(board), **asked}


def _spread(name: str, by: str | None) -> Iterator[tuple[str, str]]:
    """The queries for a histogram, by legend."""
    if BY_NAME[name].kind is not MetricKind.HISTOGRAM:
        raise promql.QueryError(f"{name} is not a histogram")
    kept = f"le, {by}" if by else "le"
    for words, share in _SHARES.items():
        legend = f"{words}, {{{{{by}}}}}" if by else words
        yield legend, f"histogram_quantile({share}, sum by ({kept}) (rate({name}_bucket[$__rate_interval])))"
