"""Checks the alert rules against the table of metrics and the runbook pages, and lists them on a page."""

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
SEVERITIES: Final = {"critical": "pages an operator", "warning": "is checked during working hours"}
_LABEL: Final = re.compile(r"\$labels\.(\w+)")
_FILLED_IN: Final = re.compile(r"\{\{[^}]*\$labels\.(\w+)[^}]*\}\}")
_HEAD: Final = """\
There is one page for each alert of `deploy/prometheus/rules`. It describes what the alert means, how to find the cause,
and what to do. `critical` alerts page an operator; `warning` alerts are checked during working hours.

The scrape configuration has to set three labels: `job` is the herd, so that one Prometheus can watch several herds;
`service` is `spawner`, `event-ingest`, `monitor`, `message-relay` or `gateway`; and `instance` is a replica. The
Prometheus of Compose and the PodMonitor of the chart set them. Each alert has a link to its page, which begins with the
path of this folder in the repository. The chart's value `monitoring.runbooks` replaces this path, for example by the
URL of your copy.
"""
_FOOT: Final = """\
## Where to run the commands

The commands on these pages send requests to the herd itself. So they work on every machine on which `sandherd` can
reach the broker with the credential of an operator. On the machine of `sandherd up` they need no settings. On other
machines, set `NATS_URL` and `SANDHERD_CREDENTIALS` ([compose.md](../compose.md), [helm.md](../helm.md)). For the log of
a service, use `sandherd services logs`, `docker compose logs` or `kubectl logs`. [telemetry.md](../telemetry.md)
describes its fields.
"""


class RuleError(ValueError):
    """A rule, or its page, is invalid."""


def alerts() -> Iterator[Json]:
    """All rules, checked. Raises `RuleError` and `promql.QueryError`."""
    for path in sorted(RULES.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                _read(rule)
                yield rule


def _read(rule: Json) -> None:
    name, notes, labels = rule["alert"], rule["annotations"], rule["labels"]
    known = promql.labels_of(rule["expr"]) | labels.keys()
    if promql.HERD not in known:
        raise RuleError(f"{name} does not have the label of its herd: keep {promql.HERD}")
    strange = set(_LABEL.findall(str(notes))) - known
    if strange:
        raise RuleError(f"{name} refers to labels that it does not have: {', '.join(sorted(strange))}")
    if labels["severity"] not in SEVERITIES:
        raise RuleError(f"{name}: {labels['severity']} is not a severity")
    if notes["runbook_url"] != f"docs/runbooks/{name}.md" or not (RUNBOOKS / f"{name}.md").exists():
        raise RuleError(f"{name} has no page docs/runbooks/{name}.md, or does not link to it")


def documents() -> dict[Path, str]:
    """The list of the alerts. Raises `RuleError` also for a page without an alert."""
    found = {rule["alert"]: rule for rule in alerts()}
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    if pages - found.keys():
        raise RuleError(f"there are no alerts for the pages {', '.join(sorted(pages - found.keys()))}")
    return {RUNBOOKS / "README.md": index(found)}


def index(found: dict[str, Json]) -> str:
    """The page that links to the others."""
    rows = (
        (f"[{name}]({name}.md)", rule["labels"]["severity"], rule.get("for", ""), _description(rule))
        for name, rule in found.items()
    )
    listed = table(("alert", "severity", "for", "meaning"), rows)
    return page("Runbooks", "deploy/prometheus/rules", _HEAD, listed, _FOOT)


def _description(rule: Json) -> str:
    """The description, with the names of labels in place of values that only a firing alert has."""
    return _FILLED_IN.sub(lambda match: code(match[1]), rule["annotations"]["description"])
