"""Grafana's dashboards, read by Grafana's own schema (its Foundation SDK), as no package has Grafana itself."""

import json
from collections.abc import Iterator
from enum import Enum, EnumType
from itertools import combinations
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Dashboard

Json = dict[str, Any]
FOLDER: Final = Path(__file__).parents[3] / "deploy" / "helm" / "sandherd" / "files" / "dashboards"
BOARDS: Final = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
UNITS: Final = {value for value in vars(units).values() if isinstance(value, str)}
SHAPES: Final = {"time_series", "table"}
plugins.register_default_plugins()


def read(board: Json) -> list[str]:
    """What Grafana does not know in it: fields that are lost on the way, and values that are none of its own."""
    known = Dashboard.from_json(json.loads(json.dumps(board)))
    return [*lost(board, json.loads(json.dumps(known, cls=JSONEncoder)), ""), *strange(known)]


def lost(before: Any, after: Any, where: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after[name], f"{where}/{name}") if name in after else [f"{where}/{name}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{where}/{number}")
    elif before != after:
        yield where


def strange(part: Any) -> Iterator[str]:
    """Values of fields that Grafana has a list for, and that are not in it."""
    if isinstance(part, list | dict):
        for one in part.values() if isinstance(part, dict) else part:
            yield from strange(one)
    elif type(part).__module__.startswith("grafana_foundation_sdk.models") and not isinstance(part, Enum):
        hints = get_type_hints(type(part))
        for name, value in vars(part).items():
            for kind in (hint for hint in get_args(hints[name]) or [hints[name]] if isinstance(hint, EnumType)):
                known = {member.value for member in vars(kind).values() if isinstance(member, Enum)}
                if isinstance(value, str | int) and value not in known:
                    yield f"{name}: {value}"
            yield from strange(value)


@pytest.mark.parametrize("name", BOARDS)
def test_grafana_schema_covers_every_dashboard_field(name: str) -> None:
    """Every field of board, variables, panels, options and queries is known, and every enumerated value and unit."""
    assert read(BOARDS[name]) == []
    for panel in BOARDS[name]["panels"]:
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (("options",), {"graphMod": "none"}),
        (("options",), {"colorMode": "colour"}),
        (("targets", 0), {"legend": "x"}),
        (("fieldConfig", "defaults"), {"units": "s"}),
    ],
)
def test_unknown_field_of_a_dashboard_is_found(place: tuple[str | int, ...], wrong: Json) -> None:
    """A wrong field or value of a panel is one finding."""
    board = json.loads(json.dumps(BOARDS["herd"]))
    part = next(panel for panel in board["panels"] if panel["type"] == "stat")
    for step in place:
        part = part[step]
    part.update(wrong)
    assert len(read(board)) == 1


def test_there_are_five_dashboards() -> None:
    """Each has a stable uid for links, and a description for each panel."""
    assert BOARDS.keys() == {"herd", "sandbox", "ingest", "monitor", "broker"}
    for name, board in BOARDS.items():
        assert board["uid"] == f"sandherd-{name}"
        assert all(panel["description"] for panel in board["panels"] if panel["type"] != "row")


@pytest.mark.parametrize("name", BOARDS)
def test_dashboard_shows_one_herd_at_a_time(name: str) -> None:
    """Queries take the maximum over replicas; of two herds that would be the larger one, labelled as both."""
    for variable in BOARDS[name]["templating"]["list"]:
        assert not {"multi", "includeAll"} & variable.keys(), variable["name"]


@pytest.mark.parametrize("name", BOARDS)
def test_panels_do_not_overlap(name: str) -> None:
    """Panels are within Grafana's 24 columns, each with an id and distinct query letters."""
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert all(0 <= place["x"] <= place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters)
        assert letters or panel["type"] == "row"


def test_history_query_has_the_shape_of_its_panel() -> None:
    """Grafana's schema does not cover these queries: lines and bars need a row for each moment, others a table."""
    for panel in BOARDS["sandbox"]["panels"]:
        for target in panel.get("targets", ()):
            assert target.keys() == {"refId", "datasource", "rawSql", "rawQuery", "editorMode", "format"}
            assert target["format"] in SHAPES
            assert (target["format"] == "time_series") == (panel["type"] == "timeseries")
