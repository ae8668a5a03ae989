"""docs/backup.md on the chart: what it stops is what has to stand still, and as much of it is started again."""

import re

from tests.integration.deploy.charts import RELEASE, ROOT, SERVICES, rendered


def test_the_services_are_stopped_and_as_many_are_started_again() -> None:
    """By the label of a release, which nothing else has that would be scaled."""
    page = (ROOT / "docs/backup.md").read_text()
    stops, starts = re.findall(r"^\$ kubectl scale deployment -n sandherd -l (.*) --replicas=(.*)$", page, re.MULTILINE)
    label, _, release = stops[0].partition("=")
    assert (starts[0], release, stops[1]) == (stops[0], "sandherd", "0")
    chosen = [one for one in rendered() if one["metadata"].get("labels", {}).get(label) == RELEASE]
    replicas = [one["spec"]["replicas"] for one in chosen if one["kind"] == "Deployment"]
    assert replicas == [int(starts[1])] * len(SERVICES)
