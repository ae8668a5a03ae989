"""Plans of sandboxes: forwarded variables, secrets, and the profile's mounts."""

from datetime import UTC, datetime, timedelta

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.requests import Mount, Profile
from sandherd.contracts.specs import SandboxLimits
from sandherd.settings import Settings
from spawner.records.store import StoredRecord
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.runtimes.registry import open_runtimes
from spawner.sandboxes.sandbox_plans import SandboxPlans
from spawner.sandboxes.sandbox_record import SandboxRecord

NOW = datetime(2026, 11, 21, tzinfo=UTC)
DATA = Mount(source="data", target="/data")
SETTINGS = Settings(
    forward_env=frozenset({"KEY", "ABSENT"}),
    sandbox_mounts=frozenset({"data"}),
    profiles={"kind": Profile(forward_env=frozenset({"TOKEN"}), mounts=(DATA,))},
)
OWN = {"KEY": "one-secret", "TOKEN": "another-secret", "OTHER": "nobody's"}


class NoMint:
    """Issues a constant credential, and revokes none."""

    def mint_joiner(self, project: str, sandbox: str, life: float, serial: int = 0) -> str:
        return "joiner"

    def joiner_key(self, project: str, sandbox: str, serial: int) -> str:
        raise AssertionError

    def mint_worker(self, project: str, sandbox: str, public_key: str, life: float) -> tuple[str, datetime]:
        raise AssertionError


def planned(settings: Settings = SETTINGS, **spec: object) -> tuple[SandboxPlan, SandboxRecord]:
    requested = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), **spec)  # type: ignore[arg-type]  # by name
    record = SandboxRecord(
        project="p1", traceparent=f"00-{'a' * 32}-{'b' * 16}-01", sandbox="sbx-1", runtime="docker", spec=requested,
        limits=SandboxLimits(), requested_at=NOW, expires_at=NOW + timedelta(hours=1),
    )  # fmt: skip
    return SandboxPlans.of(settings, OWN, "seed").make(StoredRecord(record, 1), None, NoMint(), NOW), record


def test_variables_are_forwarded_by_name_as_secrets() -> None:
    """The herd's and the profile's are; an unset one is absent, and no other is passed on."""
    plan, record = planned(profile="kind")
    assert plan.spec.env == {"KEY": "one-secret", "TOKEN": "another-secret"}
    assert plan.spec.secret_env == {"KEY", "TOKEN"}
    assert "secret" not in record.model_dump_json(exclude={"spec": {"secret_env"}})
    assert planned()[0].spec.env == {"KEY": "one-secret"}


def test_variable_of_a_task_overrides_a_named_secret() -> None:
    """The variable stays as it was: if it was not a secret, it does not become one."""
    plan, _ = planned(env={"KEY": "mine"})
    assert (plan.spec.env, plan.spec.secret_env) == ({"KEY": "mine"}, frozenset())


def test_agent_gets_only_the_collector_of_sandboxes() -> None:
    """No collector is set by default, whatever the services use; a task's own variables win."""
    assert planned(SETTINGS.model_copy(update={"otlp_endpoint": "http://inside:4318"}))[0].spec.env.keys() == {"KEY"}
    open_to = SETTINGS.model_copy(update={"sandbox_otlp_endpoint": "http://collector:4318"})
    plan, _ = planned(open_to, env={"OTEL_LOGS_EXPORTER": "none"})
    assert plan.spec.env["OTEL_EXPORTER_OTLP_ENDPOINT"] == "http://collector:4318"
    assert plan.spec.env["OTEL_RESOURCE_ATTRIBUTES"] == "sandherd.project=p1,sandherd.sandbox=sbx-1"
    assert plan.spec.env["OTEL_LOGS_EXPORTER"] == "none"
    assert plan.spec.secret_env == {"KEY"}


def test_profile_adds_its_mounts() -> None:
    """The present settings count; without a profile there is none."""
    assert planned(profile="kind")[0].mounts == (DATA,)
    assert planned()[0].mounts == ()


async def test_unknown_runtime_is_refused_with_the_installed_ones() -> None:
    """The error precedes the opening of any runtime."""
    with pytest.raises(RuntimeFailedError, match=r"no runtime 'moon'; installed here: .*docker.*process") as caught:
        await open_runtimes(Settings().model_copy(update={"runtime": "moon"}))
    assert caught.value.fault is RuntimeFault.REFUSED
