"""What a sandbox gets of the spawner's own: variables by their names, as secrets, and what its profile mounts."""

from datetime import UTC, datetime, timedelta

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.requests import Mount, Profile
from sandherd.contracts.specs import Limits
from sandherd.settings import Settings
from spawner.records.store import Held
from spawner.runtimes.choosing import open_runtimes
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.sandboxes.planning import Plans
from spawner.sandboxes.record import SandboxRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DATA = Mount(source="data", target="/data")
SETTINGS = Settings(
    forward_env=frozenset({"KEY", "ABSENT"}),
    sandbox_mounts=frozenset({"data"}),
    profiles={"kind": Profile(forward_env=frozenset({"TOKEN"}), mounts=(DATA,))},
)
OWN = {"KEY": "one-secret", "TOKEN": "another-secret", "OTHER": "nobody's"}


class NoMint:
    """Says nothing of anybody."""

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        return "joiner"

    def joiner_key(self, project: str, sandbox: str, serial: int) -> str:
        raise AssertionError

    def mint_worker(self, project: str, sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        raise AssertionError


def planned(settings: Settings = SETTINGS, **spec: object) -> tuple[SandboxPlan, SandboxRecord]:
    asked = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), **spec)  # type: ignore[arg-type]  # by name
    record = SandboxRecord(
        project="p1", traceparent=f"00-{'a' * 32}-{'b' * 16}-01", sandbox="sbx-1", runtime="docker", spec=asked,
        limits=Limits(), requested_at=NOW, expires_at=NOW + timedelta(hours=1),
    )  # fmt: skip
    return Plans.of(settings, OWN).make(Held(record, 1), None, NoMint(), NOW), record


def test_variables_are_forwarded_by_name_as_secrets() -> None:
    """Those of the herd, and those of the profile; what is not set here is not there, and nothing else goes along."""
    plan, record = planned(profile="kind")
    assert plan.spec.env == {"KEY": "one-secret", "TOKEN": "another-secret"}
    assert plan.spec.secret_env == {"KEY", "TOKEN"}
    assert "secret" not in record.model_dump_json(exclude={"spec": {"secret_env"}})
    assert planned()[0].spec.env == {"KEY": "one-secret"}


def test_what_a_task_says_itself_goes_before() -> None:
    """And stays what it was: no secret, if it was none."""
    plan, _ = planned(env={"KEY": "mine"})
    assert (plan.spec.env, plan.spec.secret_env) == ({"KEY": "mine"}, frozenset())


def test_an_agent_is_told_of_a_collector_that_sandboxes_may_reach_and_of_no_other() -> None:
    """Off by default, whatever the services export to; no secret; and a task's own variables go before."""
    assert planned(SETTINGS.model_copy(update={"otlp_endpoint": "http://inside:4318"}))[0].spec.env.keys() == {"KEY"}
    open_to = SETTINGS.model_copy(update={"sandbox_otlp_endpoint": "http://collector:4318"})
    plan, _ = planned(open_to, env={"OTEL_LOGS_EXPORTER": "none"})
    assert plan.spec.env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert plan.spec.env["OTEL_RESOURCE_ATTRIBUTES"] == "sandherd.project=p1,sandherd.sandbox=sbx-1"
    assert plan.spec.env["OTEL_LOGS_EXPORTER"] == "none"
    assert plan.spec.secret_env == {"KEY"}


def test_a_profile_mounts() -> None:
    """What stands in the settings now; nothing without a profile."""
    assert planned(profile="kind")[0].mounts == (DATA,)
    assert planned()[0].mounts == ()


async def test_a_runtime_that_there_is_none_of_is_said_with_those_that_there_are() -> None:
    """Before anything is opened."""
    with pytest.raises(RuntimeFailedError, match=r"no runtime 'moon'; there is: .*docker.*process") as caught:
        await open_runtimes(Settings().model_copy(update={"runtime": "moon"}))
    assert caught.value.fault is RuntimeFault.REFUSED
