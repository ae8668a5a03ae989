"""Named secrets in records and plans: which of them contain a value."""

from datetime import UTC, datetime

import pytest

from sandherd.bus.stream_configs import bucket_config
from sandherd.cli.parse.task_spec import references
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import SandboxLimits, SandboxSpec
from sandherd.contracts.streams import BUCKETS
from spawner.named_secrets.secret_record import SecretRecord
from spawner.sandboxes.sandbox_plans import with_named_values
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import ResolvedSpec, SpawnPolicy, resolve

NOW = datetime(2026, 11, 20, tzinfo=UTC)
INLINE = SandboxSpec(env={"A": "inline value"}, secret_env=frozenset({"A"}), secrets={"B": "k"})


def sandbox(spec: SandboxSpec | None) -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox="sbx-1", runtime="process", limits=SandboxLimits(), requested_at=NOW, spec=spec,
        values={"B": "named value"},
    )  # fmt: skip


@pytest.mark.parametrize("spec", [None, INLINE, SandboxSpec(secrets={"B": "k"})])
def test_sandbox_has_sealed_secret_values_until_its_end(spec: SandboxSpec | None) -> None:
    """The values are in the sealed part of the record, with the spec's own secrets, and are erased with it."""
    record = sandbox(spec)
    sealed = record.secret_part()
    assert sealed is not None
    stored = SandboxRecord.model_validate_json(record.without_secret_part().model_dump_json(exclude_defaults=True))
    assert "value" not in stored.model_dump_json(exclude_defaults=True).replace('"values"', "")
    assert stored.with_secret_part(sealed) == record
    assert record.forgetting().secret_part() is None


def test_secret_without_its_value_is_stored_in_plain() -> None:
    """A record without its value has no secret part. Each new value has its own key."""
    record = SecretRecord(project="p1", secret="k", version="0f", value="the value", created_at=NOW, updated_at=NOW)
    assert (record.secret_part(), record.key, record.vault_key) == ("the value", "p1.k", "p1.k.0f")
    assert "the value" not in record.without_secret_part().model_dump_json()


def test_worker_gets_values_and_no_secret_names() -> None:
    """A worker of the previous version knows no names of secrets. It redacts values like those of `secret_env`."""
    given = with_named_values(INLINE, {"B": "named value"})
    assert given.env == {"A": "inline value", "B": "named value"}
    assert given.secret_env == {"A", "B"}
    assert "secrets" not in given.to_json()
    assert SandboxSpec.model_validate_json(given.to_json()) == given


def test_variable_has_one_source() -> None:
    """A spec that sets it twice is refused; a secret overrides the profile's variable."""
    with pytest.raises(ValueError, match="in both secrets and env: B"):
        SandboxSpec(env={"B": "x"}, secrets={"B": "k"})
    menu = SpawnPolicy(
        frozenset({"process"}),
        "process",
        SandboxLimits(),
        SandboxLimits(),
        profiles={"small": Profile(env={"B": "x", "C": "y"})},
    )
    resolved = resolve(SandboxSpec(profile="small", secrets={"B": "k"}), menu)
    assert isinstance(resolved, ResolvedSpec)
    assert resolved.env == {"C": "y"}


def test_mcp_server_may_get_a_named_secret() -> None:
    """The options refer to the secret by the name of its variable, as to any other secret variable."""
    harness = {"kind": "claude", "mcp_servers": {"gh": {"command": "gh", "secret_env": ["B"]}}}
    assert TaskSpec.model_validate({"text": "x", "harness": harness, "secrets": {"B": "k"}}).secrets == {"B": "k"}
    with pytest.raises(ValueError, match="needs variables that are not in env: B"):
        TaskSpec.model_validate({"text": "x", "harness": harness})
    assert "secrets" not in TaskSpec(text="x", harness=CommandHarness(argv=["true"])).model_dump()


def test_option_names_variable_and_secret() -> None:
    """A single name is that of the variable and of the secret."""
    assert references(["TOKEN=team-key", "KEY"]) == {"TOKEN": "team-key", "KEY": "KEY"}


@pytest.mark.parametrize("name", ["secrets", "secret_keys"])
def test_secret_buckets_have_the_configured_replicas(name: str) -> None:
    """Buckets are on disk, with one value per key and no republish; only keys are erased message by message."""
    (bucket,) = (bucket for bucket in BUCKETS if bucket.name == name)
    config = bucket_config(bucket, replicas=3)
    assert (config.num_replicas, config.max_msgs_per_subject, config.republish) == (3, 1, None)
    assert config.storage == "file"
    assert bool(config.deny_delete) == (name == "secrets")
