"""docs/backup.md with the chart: the documented services are stopped, and the same number is started again."""

import re

from tests.integration.deploy.charts import RELEASE, ROOT, SERVICES, rendered


def test_backup_stops_and_restarts_all_services() -> None:
    """The release's label selects the services, and nothing else that would be scaled."""
    page = (ROOT / "docs/backup.md").read_text()
    stops, starts = re.findall(r"^\$ kubectl scale deployment -n sandherd -l (.*) --replicas=(.*)$", page, re.MULTILINE)
    label, _, release = stops[0].partition("=")
    assert (starts[0], release, stops[1]) == (stops[0], "sandherd", "0")
    chosen = [one for one in rendered() if one["metadata"].get("labels", {}).get(label) == RELEASE]
    replicas = [one["spec"]["replicas"] for one in chosen if one["kind"] == "Deployment"]
    assert replicas == [int(starts[1])] * len(SERVICES)
