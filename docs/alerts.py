"""Reads the alert rules against the table of metrics and the pages of runbooks, and lists them on a page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import promql
import yaml
from pages import code, page, table

Json = dict[str, Any]
ROOT: Final = Path(__file__).parent.parent
RULES: Final = ROOT / "deploy" / "prometheus" / "rules"
RUNBOOKS: Final = ROOT / "docs" / "runbooks"
SEVERITIES: Final = {"critical": "somebody is called", "warning": "somebody looks in working hours"}
_LABEL: Final = re.compile(r"\$labels\.(\w+)")
_FILLED_IN: Final = re.compile(r"\{\{[^}]*\$labels\.(\w+)[^}]*\}\}")
_HEAD: Final = """\
One page for each alert of `deploy/prometheus/rules`: what it means, how to look, what to do. `critical` means that
somebody is called, `warning` that somebody looks in working hours.

Whoever scrapes the services sets three labels: `job` is the herd, so that one Prometheus may watch several, `service`
is `spawner`, `event-ingest`, `monitor` or `message-relay`, and `instance` a replica. Compose's Prometheus and the
chart's PodMonitor do. The link of an alert is this folder's path in the repository; the chart's value
`monitoring.runbooks` puts another place before the page's name, as that of your own copy.
"""
_FOOT: Final = """\
## Where to look from

The commands on these pages ask the herd itself, so they work wherever `sandherd` reaches the broker with the
credential of an operator: with `sandherd up` on the same machine at once, else with `NATS_URL` and
`SANDHERD_CREDENTIALS` set ([compose.md](../compose.md), [helm.md](../helm.md)). The log of a service is
`sandherd status`' folder `logs/`, `docker compose logs` or `kubectl logs`; its fields are in
[telemetry.md](../telemetry.md).
"""


class RuleError(ValueError):
    """A rule, or its page, is not as it should be."""


def alerts() -> Iterator[Json]:
    """Every rule, read and found well. Raises `RuleError` and `promql.QueryError`."""
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                _read(rule)
                yield rule


def _read(rule: Json) -> None:
    name, notes, labels = rule["alert"], rule["annotations"], rule["labels"]
    known = promql.labels_of(rule["expr"]) | labels.keys()
    if promql.HERD not in known:
        raise RuleError(f"{name} does not say which herd it is about: keep {promql.HERD}")
    strange = set(_LABEL.findall(str(notes))) - known
    if strange:
        raise RuleError(f"{name} speaks of labels that it has not: {', '.join(sorted(strange))}")
    if labels["severity"] not in SEVERITIES:
        raise RuleError(f"{name}: {labels['severity']} is no severity")
    if notes["runbook_url"] != f"docs/runbooks/{name}.md" or not (RUNBOOKS / f"{name}.md").exists():
        raise RuleError(f"{name} has no page docs/runbooks/{name}.md, or does not name it")


def documents() -> dict[Path, str]:
    """The list of the alerts. Raises `RuleError` for a page that no alert has, too."""
    found = {rule["alert"]: rule for rule in alerts()}
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    if pages - found.keys():
        raise RuleError(f"no alert has the pages {', '.join(sorted(pages - found.keys()))}")
    return {RUNBOOKS / "README.md": index(found)}


def index(found: dict[str, Json]) -> str:
    """The page that leads to the others."""
    rows = (
        (f"[{name}]({name}.md)", rule["labels"]["severity"], rule.get("for", ""), _said(rule))
        for name, rule in found.items()
    )
    listed = table(("alert", "severity", "for", "what it means"), rows)
    return page("Runbooks", "deploy/prometheus/rules", _HEAD, listed, _FOOT)


def _said(rule: Json) -> str:
    """The description, without what only an alert that fires can fill in."""
    return _FILLED_IN.sub(lambda match: code(match[1]), rule["annotations"]["description"])
