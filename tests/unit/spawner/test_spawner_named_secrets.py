"""Named secrets in records and plans, pure: where a value is, and where it is not."""

from datetime import UTC, datetime

import pytest

from sandherd.bus.stream_configs import bucket_config
from sandherd.client.cli.spec import references
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.requests import Profile
from sandherd.contracts.specs import Limits, SandboxSpec
from sandherd.contracts.streams import BUCKETS
from spawner.named_secrets.record import SecretRecord
from spawner.resolving import Menu, Resolved, resolve
from spawner.sandboxes.planning import with_named_values
from spawner.sandboxes.record import SandboxRecord

NOW = datetime(2026, 11, 20, tzinfo=UTC)
INLINE = SandboxSpec(env={"A": "inline value"}, secret_env=frozenset({"A"}), secrets={"B": "k"})


def sandbox(spec: SandboxSpec | None) -> SandboxRecord:
    return SandboxRecord(
        project="p1", sandbox="sbx-1", runtime="process", limits=Limits(), requested_at=NOW, spec=spec,
        values={"B": "named value"},
    )  # fmt: skip


@pytest.mark.parametrize("spec", [None, INLINE, SandboxSpec(secrets={"B": "k"})])
def test_a_sandbox_has_its_values_until_its_end_and_never_in_clear(spec: SandboxSpec | None) -> None:
    """They are part of what is sealed, beside a spec with secrets of its own, and go with it."""
    record = sandbox(spec)
    sealed = record.secret_part()
    assert sealed is not None
    stored = SandboxRecord.model_validate_json(record.without_secret_part().model_dump_json(exclude_defaults=True))
    assert "value" not in stored.model_dump_json(exclude_defaults=True).replace('"values"', "")
    assert stored.with_secret_part(sealed) == record
    assert record.forgetting().secret_part() is None


def test_a_secret_without_its_value_is_what_is_stored_in_clear() -> None:
    """Each value that is set has a key of its own."""
    record = SecretRecord(project="p1", secret="k", version="0f", value="the value", created_at=NOW, updated_at=NOW)
    assert (record.secret_part(), record.key, record.vault_key) == ("the value", "p1.k", "p1.k.0f")
    assert "the value" not in record.without_secret_part().model_dump_json()


def test_a_worker_is_given_values_and_no_names() -> None:
    """A worker of the version before knows no names; it redacts the values like those of `secret_env`."""
    given = with_named_values(INLINE, {"B": "named value"})
    assert given.env == {"A": "inline value", "B": "named value"}
    assert given.secret_env == {"A", "B"}
    assert "secrets" not in given.to_json()
    assert SandboxSpec.model_validate_json(given.to_json()) == given


def test_a_variable_has_one_source() -> None:
    """A spec that gives it twice is refused; over a profile's the secret counts."""
    with pytest.raises(ValueError, match="that env gives, too: B"):
        SandboxSpec(env={"B": "x"}, secrets={"B": "k"})
    menu = Menu(
        frozenset({"process"}), "process", Limits(), Limits(), profiles={"small": Profile(env={"B": "x", "C": "y"})}
    )
    resolved = resolve(SandboxSpec(profile="small", secrets={"B": "k"}), menu)
    assert isinstance(resolved, Resolved)
    assert resolved.env == {"C": "y"}


def test_a_tool_server_may_be_given_a_named_secret() -> None:
    """By the variable's name, like any other."""
    harness = {"kind": "claude", "mcp_servers": {"gh": {"command": "gh", "secret_env": ["B"]}}}
    assert TaskSpec.model_validate({"text": "x", "harness": harness, "secrets": {"B": "k"}}).secrets == {"B": "k"}
    with pytest.raises(ValueError, match="wants variables that env lacks: B"):
        TaskSpec.model_validate({"text": "x", "harness": harness})
    assert "secrets" not in TaskSpec(text="x", harness=CommandHarness(argv=["true"])).model_dump()


def test_the_option_names_variable_and_secret() -> None:
    """Or one name for both."""
    assert references(["TOKEN=team-key", "KEY"]) == {"TOKEN": "team-key", "KEY": "KEY"}


@pytest.mark.parametrize("name", ["secrets", "secret_keys"])
def test_secrets_and_their_keys_have_as_many_replicas_as_asked_for(name: str) -> None:
    """On disk, one value for each key, nothing published again; only keys are erased message by message."""
    (bucket,) = (bucket for bucket in BUCKETS if bucket.name == name)
    config = bucket_config(bucket, replicas=3)
    assert (config.num_replicas, config.max_msgs_per_subject, config.republish) == (3, 1, None)
    assert config.storage == "file"
    assert bool(config.deny_delete) == (name == "secrets")
