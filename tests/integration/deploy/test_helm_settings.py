"""Settings in the chart's values: it refuses those that the settings refuse, and accepts the others."""

import json

import pytest

from sandherd.contracts.errors import ContractError
from sandherd.settings import load
from tests.integration.deploy.charts import Json, refusal, template_result

REFUSED = {
    "kubernetes_egress": [
        "llm/app",
        "llm/app=gateway@http",
        "10.0.0.0/33",
        "10.0.0.0/8@0",
        "10.0.0.0/8@65536",
        "::g/8",
        ":::",
        "1::2::3",
        "10.0.0.1/8@443",
    ],
    "kubernetes_ingress": ["bad value", "Team", "team/=x", "10.0.0.256", "10.1.0.0/15"],
    "daytona_allowed_networks": ["everywhere", "10.0.0.0/33", "10.0.0.1/8"],
    "branch_prefixes": ["Bug", "a" * 31],
}


@pytest.mark.parametrize(("name", "text"), [(name, text) for name, texts in REFUSED.items() for text in texts])
def test_what_the_settings_refuse_the_chart_refuses(name: str, text: str) -> None:
    """Otherwise a service would find the error at its start, in a pod that is restarted repeatedly."""
    with pytest.raises(ContractError):
        load({name: [text]}, {})
    assert f"settings.{name}.0" in refusal({"settings": {name: [text]}})


MOUNT = {"source": "/srv/models", "target": "/models"}
TOGETHER: list[tuple[Json, str]] = [
    ({"profiles": {"Big one": {}}}, "settings.profiles"),
    ({"kubernetes_placements": {"Big one": {}}}, "settings.kubernetes_placements"),
    ({"branch_prefixes": ["feature", "fix=bug"]}, "settings.branch_prefixes"),
    ({"branch_prefixes": ["fix=bug", "fix=error"]}, "settings.branch_prefixes"),
    ({"profiles": {"big": {"mounts": [MOUNT]}}}, "settings.profiles.big.mounts"),
    ({"profiles": {"big": {"mounts": [MOUNT]}}, "sandbox_mounts": ["/srv/mod"]}, "settings.profiles.big.mounts"),
    ({"profiles": {"big": {"mounts": [MOUNT | {"source": "cache"}]}}, "sandbox_mounts": ["/cache"]}, "big.mounts"),
    ({"merge_policy": "when_permitted"}, "settings.merge_policy"),
]


@pytest.mark.parametrize(("settings", "where"), TOGETHER, ids=[json.dumps(settings)[:60] for settings, _ in TOGETHER])
def test_what_the_settings_refuse_together_the_chart_refuses(settings: Json, where: str) -> None:
    """Names of profiles, and values that depend on others, are checked."""
    with pytest.raises(ContractError):
        load(settings, {})
    assert where in refusal({"settings": settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"branch_prefixes": ["fix=bug|error", "feature"], "profiles": {"big": {}}},
        {"profiles": {"big": {"mounts": [MOUNT]}}, "sandbox_mounts": ["/srv"]},
        {"profiles": {"big": {"mounts": [MOUNT | {"source": "cache"}]}}, "sandbox_mounts": ["/srv", "cache"]},
        {"kubernetes_ingress": ["10.2.0.0/15", "255.255.255.255", "2001:db8::1", "::ffff:10.0.0.1", "::/0"]},
    ],
)
def test_what_the_settings_take_together_the_chart_takes(settings: Json) -> None:
    """The chart accepts values that are close to refused ones."""
    load(settings, {})
    assert template_result({"settings": settings}).returncode == 0


@pytest.mark.parametrize("text", ["llm", "llm/app=gateway@8080", "10.0.0.0/8@443", "203.0.113.7", "2001:db8::/32@443"])
def test_what_the_settings_take_the_chart_takes(text: str) -> None:
    """The value is rendered as it was given."""
    load({"kubernetes_egress": [text]}, {})
    assert template_result({"settings": {"kubernetes_egress": [text]}}).returncode == 0


def test_a_number_that_only_the_settings_know_is_refused() -> None:
    """Such a number is a size of the Runtime API."""
    with pytest.raises(ContractError):
        load({"remote_resource_factor": 3}, {})
    assert "settings.remote_resource_factor" in refusal({"settings": {"remote_resource_factor": 3}})
