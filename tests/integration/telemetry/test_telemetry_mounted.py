"""Compose, the chart and the documented commands load the same dashboards and alerts."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml

from tests.engines.prometheus import RULES, program, promtool, rules
from tests.integration.telemetry.conftest import ROOT
from tests.integration.telemetry.grafana import DASHBOARDS, boards

COMPOSE: Final[Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
PAGE: Final = ROOT / "docs" / "monitoring.md"
CHART: Final = ROOT / "deploy" / "helm" / "sandherd" / "files"


def mounted(service: str) -> dict[str, Path]:
    """The paths in this repository that are mounted, by their paths in the container."""
    volumes = [volume.split(":") for volume in COMPOSE[service].get("volumes", ()) if volume.startswith("./")]
    return {there: ROOT / here for here, there, *_ in volumes}


def test_prometheus_of_compose_has_the_rules_it_names() -> None:
    """The rules are mounted at the path that the configuration reads."""
    files = mounted("prometheus")
    config = yaml.safe_load(files["/etc/prometheus/prometheus.yml"].read_text())
    assert config["rule_files"] == ["rules/*.yaml"]
    assert files["/etc/prometheus/rules"].resolve() == RULES


def test_documented_commands_load_rules_and_dashboards(tmp_path: Path) -> None:
    """Without Compose or Helm, and with other folders, promtool finds every rule."""
    for folder in ("etc/prometheus", "etc/grafana/provisioning/dashboards", "var/lib/grafana"):
        (tmp_path / folder).mkdir(parents=True)
    section = PAGE.read_text().partition("### Without Compose and Helm")[2].partition("\n## ")[0]
    commands = re.findall(r"^\$ (.*)$", section, re.MULTILINE)
    script = re.sub(r" (/etc|/var)/", rf" {tmp_path}\1/", "\n".join(commands))
    environ = {"PATH": f"{program('promtool').parent}:/usr/bin:/bin"}
    done = subprocess.run(
        ["sh", "-e"], input=script, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{len(rules())} rules found" in done.stdout
    (provider,) = yaml.safe_load((tmp_path / "etc/grafana/provisioning/dashboards/sandherd.yaml").read_text())[
        "providers"
    ]
    loaded = {path.stem for path in (tmp_path / provider["options"]["path"].removeprefix("/")).glob("*.json")}
    assert loaded == boards().keys()


def test_grafana_of_compose_finds_dashboards_and_data_sources() -> None:
    """The provider reads the mounted folder, and each kind of data source exists."""
    files = mounted("grafana")
    provisioning = files["/etc/grafana/provisioning"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "sandherd.yaml").read_text())["providers"]
    assert files[provider["options"]["path"]].resolve() == DASHBOARDS
    datasources = [yaml.safe_load(path.read_text()) for path in sorted((provisioning / "datasources").glob("*.yaml"))]
    sources = {source["type"]: source for one in datasources for source in one["datasources"]}
    chosen = {choice["query"] for board in boards().values() for choice in board["templating"]["list"][:1]}
    assert sources.keys() == chosen
    assert sources["prometheus"]["url"] == "http://prometheus:9090"
    assert "HISTORY_READER_PASSWORD" in COMPOSE["grafana"]["environment"]


def test_chart_contains_the_same_rules_and_dashboards() -> None:
    """Promtool accepts all alerts, and Compose's dashboards are included; tests/integration/deploy renders them."""
    groups = [group for path in sorted(RULES.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]]
    assert groups
    assert yaml.safe_load((CHART / "rules.yaml").read_text())["groups"] == groups
    promtool("check", "rules", CHART / "rules.yaml")
    assert DASHBOARDS == CHART / "dashboards"
    assert boards()
