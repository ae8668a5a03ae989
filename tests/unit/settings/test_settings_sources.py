"""Settings: parameter, environment, YAML, default, in this order, for every one of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from sandherd.contracts.errors import ContractError
from sandherd.settings import CONFIG_VARIABLE, MASK, LoadedSettings, Settings, SettingSource, environment_names, load
from sandherd.settings.client import ClientSettings

NAMES = sorted(Settings.model_fields)
LIMITS = {"memory_mb": 512, "cpu_seconds": 60, "open_files": 64, "processes": 8}
PLACEMENTS: list[Any] = [
    {
        "runtime_class": name,
        "node_selector": {"a.b/c": "d"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "priority_class": "agents",
        "affinity": {"nodeAffinity": {}},
        "spread": ["topology.kubernetes.io/zone"],
    }
    for name in ("gvisor", "kata", "runc")
]
STRUCTURED: dict[str, list[Any]] = {
    "project_limits": [{"one": 1}, {"two": 2}, {"three": None}],
    **{name: [{"one": 1}, {"one": 2}, {"three": 3}] for name in ("runtime_limits", "history_project_days")},
    "history_type_days": [{"agent.thinking": 1}, {"agent.usage": 2}, {"agent.turn_started": 3}],
    "rules": [{"loop": {"repeats": 5}}, {"idle": {"after": 700}, "loop": "off"}, {"dead": {"after": 30.5}}],
    "budgets": [
        {"herd": {"day": one, "month": {}}, "project": {"day": {}, "month": {}}, "task": {"turns": 5}}
        for one in ({"turns": 1}, {"tokens": 2}, {"cost_micro_usd": 3})
    ],
    "profiles": [{name: {"limits": LIMITS, "env": {"A": name}, "warm": 1}} for name in ("small", "usual", "large")],
    "kubernetes_placement": PLACEMENTS,
    "kubernetes_placements": [{"small": one} for one in PLACEMENTS],
    "kubernetes_namespaces": [{"one": "a"}, {"one": "a", "two": "b-c"}, {"three-3": "d"}],
    "constraints": [
        {"paths": paths, "commands": commands, "permitted": permitted}
        for paths, commands, permitted in ((["a"], [], []), ([], ["npm publish"], []), (["b/*"], [], ["force_push"]))
    ],
    "caps": [LIMITS | {"processes": number} for number in (8, 9, 10)],
    "remote_resource_factor": [2, 4, 8],
    "remote_keep_alive": [False, False, False],
    **dict.fromkeys(("conflict_follow_up", "database_pooled", "remote_pause_on_close", "share_mirrors"), [True] * 3),
    "remote_runtime_class": ["sysbox", "gvisor", "sysbox"],
    "traced_requests": [0.0, 0.5, 1.0],
    **{key: ["http://one:43", "https://two", "http://c:4/d"] for key in ("s3_endpoint", "sandbox_otlp_endpoint")},
    "remote_api_url": ["https://one.example", "https://two.example/api", "http://three.example:8000"],
}
NAMED: dict[str, list[Any]] = {
    **{key: [["a.example"], ["a", "b.example"], ["c"]] for key in ("gateway_hosts", "lfs_hosts", "webhook_hosts")},
    **{key: ["https://one.ex", "http://localhost:87", "https://c.ex:84"] for key in ("gateway_url", "github_app_host")},
    "oidc_issuer": ["https://one.example", "https://two.example/realms/a", "http://127.0.0.1:9"],
    "oidc_scopes": [["openid"], ["a", "b"], ["email"]],
    "oidc_grants": [["a=p1:read"], ["a=p1:work", "b c=p2:operate"], ["x=p1:approve"]],
    **{key: ["/one", "s3://two-three", "s3://herd.a/a/b_c"] for key in ("history_archive", "artifact_store")},
    "artifact_key": [f"{'A' * 43}=", f"{'b' * 43}=", f"{'0' * 43}="],
    "s3_region": ["one", "eu-central-1", "us-west-2"],
    "runtimes": [["docker"], ["daytona"], ["process"]],
    "forward_env": [["ONE"], ["ONE", "TWO"], ["THREE"]],
    "repository_hosts": [["one.example"], ["http://two.example:3000"], ["a.example", "b.example:8443"]],
    "forges": [["gitlab=https://a.example"], ["gitea=http://b.example:3000/git"], ["forgejo=https://c.example"]],
    "github_app_id": ["12345", "Iv1.abc", "Iv23li"],
    "github_app_workflows": [True, True, True],
    "git_proxy_url": ["http://one.example:9402", "https://two.example", "http://[::1]:80"],
    "git_proxy_listen": ["127.0.0.1:9402", "[::1]:1", "0.0.0.0:80"],
    "branch_prefixes": [["fix=bug|crash"], ["agents/fix=bug", "agents/change"], ["change"]],
    "signing_committer": ["A <a@one.example>", "B B <b@two.example>", "Ä <c@x>"],
    "repository_approval": [["*.yml"], ["ci/**", "Makefile"], ["x"]],
    "pull_request_labels": [["agent"], ["agent", "needs review"], ["bot"]],
    "pull_request_reviewers": [["ada"], ["ada", "grace"], ["bob-1"]],
    "assessor_model": ["anthropic:one", "openai:two/three", "openai:four:latest"],
    "assessor_url": ["https://one.example/v1", "http://two.example:8000", "https://three.example"],
    "pull_requests": ["draft", "ready", "draft"],
    "merge_policy": ["never", "never", "never"],
    "session_url": ["https://one.example/{project}/{task}", "http://two.example/{task}", "https://three.example"],
    "sandbox_mounts": [["data"], ["/srv/data", "data"], ["/srv"]],
    "sandbox_allow": [["one.example"], ["*.example:443", "198.51.100.0/24"], ["[2001:db8::1]:80"]],
    "sandbox_endpoints": [["127.0.0.1:11434"], ["[::1]:80", "db.internal:5432"], ["10.0.0.1:1"]],
    "sandbox_deny": [["198.51.100.0/24"], ["2001:db8::/32"], ["198.51.100.7/32", "203.0.113.0/24"]],
    "nats_url": ["nats://broker:4222", "tls://a:1,tls://b:2", "wss://broker"],
    "sandbox_nats_url": ["nats://broker:4222", "tls://a:1,tls://b:2", "wss://broker"],
    "sandbox_uid_first": [100_000, 200_000, 300_000],
    "sandbox_uid_count": [16, 1_000, 100_000],
    "flood_messages": [1_001, 2_000, 3_000],
    "flood_project_messages": [1_001, 2_000, 3_000],
    "docker_host": ["unix:///run/docker.sock", "tcp://engine:2375", "https://engine:2376"],
    "docker_platform": ["linux/arm64", "linux/arm/v7", "linux/amd64"],
    "docker_user": ["1:2", "1001:1001", "65534:65534"],
    **{key: [False, True, False] for key in ("docker_read_only", "kubernetes_read_only")},
    "daytona_api_url": ["https://one/api", "http://two:3000/api", "https://three"],
    "daytona_block_network": [True, False, True],
    "daytona_ephemeral": [True, False, True],
    "daytona_allowed_networks": [["10.0.0.0/8"], ["10.0.0.0/8", "2001:db8::/32"], ["192.0.2.1/32"]],
    "daytona_volumes": [["v1:/data"], ["v1:/data:part", "v2:/more"], ["v3:/x"]],
    "kubernetes_owner": ["Deployment/one", "Deployment/two", "StatefulSet/one"],
    "kubernetes_pull_secrets": [["one"], ["one", "two"], ["two"]],
    "kubernetes_user": ["1:1", "1:2", "2:2"],
    "kubernetes_cpu": ["2", "500m", "1.5"],
    "kubernetes_ingress": [["10.0.0.0/8", "team"], ["team/app=web"], ["nobody"]],
    "kubernetes_dns": [["169.254.20.10/32"], ["kube-system/k8s-app=dns"], ["openshift-dns"]],
    "notifications": [["recovery"], ["intervention_failed"], []],
    "conductor": ["report", "ask", "pause"],
    "conductor_ignore": [["*.lock"], ["*.snap"], []],
    "kubernetes_dns_ports": [[5353], [53, 5353], [8053]],
    "kubernetes_ports": [[8000], [8000, 9000], [9000]],
    "kubernetes_egress": [["10.0.0.0/8"], ["10.0.0.0/8@443"], ["2001:db8::/32"]],
}
"""Values of settings that take no word of any kind."""


def three(name: str) -> list[Any]:
    """Three values of a setting that are allowed, each another one, and none of them its default."""
    if name in STRUCTURED | NAMED:
        return (STRUCTURED | NAMED)[name]
    annotation = Settings.model_fields[name].annotation
    choices = [choice for choice in get_args(annotation) if isinstance(choice, str)]
    if choices:
        return [choices[index % len(choices)] for index in (0, 2, 1)]
    kinds = {annotation, *get_args(annotation), *(inner for arg in get_args(annotation) for inner in get_args(arg))}
    if int in kinds:
        return [11, 12, 13]
    return [11.5, 12.5, 13.5] if float in kinds else ["value-one", "value-two", "value-three"]


def written(value: Any) -> str:
    """A value as it stands in a variable."""
    if isinstance(value, str | list):
        return ",".join([value] if isinstance(value, str) else map(str, value))
    return json.dumps(value)


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_none=True)
    return str(value) if isinstance(value, Path) else value


def found(loaded: LoadedSettings[ClientSettings], name: str) -> tuple[Any, SettingSource]:
    return plain(getattr(loaded.settings, name)), loaded.sources[name]


@pytest.mark.parametrize("name", NAMES)
def test_the_stronger_source_wins(name: str, tmp_path: Path) -> None:
    """Each source is weaker than the one before it, and its name stands beside the value."""
    in_yaml, in_environment, given = three(name)
    variable = environment_names()[name].name
    text = written(in_environment)
    file = tmp_path / "herd.yaml"
    file.write_text(yaml.safe_dump({name: in_yaml}))
    environ = {CONFIG_VARIABLE: str(file)}
    assert load(environ={}).sources[name] is SettingSource.DEFAULT
    assert found(load(environ=environ), name) == (in_yaml, SettingSource.YAML)
    assert found(load(environ={}, yaml_file=file), name) == (in_yaml, SettingSource.YAML)
    assert found(load(environ=environ | {variable: text}), name) == (in_environment, SettingSource.ENVIRONMENT)
    assert found(load({name: given}, environ | {variable: text}), name) == (given, SettingSource.PARAMETER)
    assert found(load({name: None}, environ | {variable: ""}), name) == (in_yaml, SettingSource.YAML)


def test_a_named_file_is_stronger_than_the_variable(tmp_path: Path) -> None:
    """`--config` names the file that is read, whatever `SANDHERD_CONFIG` says."""
    (tmp_path / "one.yaml").write_text("max_sandboxes: 1")
    (tmp_path / "two.yaml").write_text("max_sandboxes: 2")
    loaded = load(environ={CONFIG_VARIABLE: str(tmp_path / "one.yaml")}, yaml_file=tmp_path / "two.yaml")
    assert loaded.settings.max_sandboxes == 2


ALIASES: dict[str, dict[str, tuple[str, Any]]] = {
    "SANDBOX_SNAPSHOT": {"daytona_snapshot": ("agents-7", "agents-7")},
    "SANDBOX_DISK_GB": {
        "sandbox_disk_mb": ("2.5", 2560),
        "daytona_disk_gb": ("2.5", 3),
        "kubernetes_storage_gb": ("2.5", 2.5),
    },
}
"""Usual names, and what each sets: a text of it, and the value that the setting has then."""


@pytest.mark.parametrize(("alias", "name"), [(alias, name) for alias, names in ALIASES.items() for name in names])
def test_usual_name_sets_the_setting(alias: str, name: str, tmp_path: Path) -> None:
    """The usual name is shown as the source; the setting's own variable and a parameter win, the file does not."""
    text, value = ALIASES[alias][name]
    own = environment_names()[name].name
    file = tmp_path / "herd.yaml"
    in_yaml, in_environment, given = three(name)
    file.write_text(yaml.safe_dump({name: in_yaml}))
    loaded = load({}, {alias: text}, file)
    assert found(loaded, name) == (value, SettingSource.ENVIRONMENT)
    assert {(row[1], row[3]) for row in loaded.rows() if row[0] == name} == {(alias, SettingSource.ENVIRONMENT)}
    both = load({}, {alias: text, own: written(in_environment)}, file)
    assert found(both, name) == (in_environment, SettingSource.ENVIRONMENT)
    assert {row[1] for row in both.rows() if row[0] == name} == {own}
    assert found(load({name: given}, {alias: text}), name) == (given, SettingSource.PARAMETER)


@pytest.mark.parametrize("text", ["much", "nan", "inf", "-1"])
def test_invalid_value_of_a_usual_name_names_it(text: str) -> None:
    """The error names what is to be changed."""
    with pytest.raises(ContractError, match="environment, SANDBOX_DISK_GB") as raised:
        load({}, {"SANDBOX_DISK_GB": text})
    assert "set SANDBOX_DISK_GB" in (raised.value.problem.remedy or "")


@pytest.mark.parametrize(
    ("alias", "text", "values"),
    [
        ("SANDBOX_DISK_GB", "0", {"sandbox_disk_mb": 0, "kubernetes_storage_gb": 8, "daytona_disk_gb": None}),
        ("SANDBOX_DISK_GB", "0.1", {"sandbox_disk_mb": 103, "kubernetes_storage_gb": 8, "daytona_disk_gb": 1}),
        ("SANDBOX_DISK_GB", "5000", {"sandbox_disk_mb": 5_120_000, "kubernetes_storage_gb": 8}),
        ("SANDBOX_SNAPSHOT", "not one of Daytona's", {"daytona_snapshot": None}),
    ],
)
def test_usual_name_does_not_set_what_can_not_have_its_value(alias: str, text: str, values: dict[str, Any]) -> None:
    """Such as 0, no limit, for the process runtime, where others have no such value and are not used."""
    loaded = load({}, {alias: text})
    assert {name: getattr(loaded.settings, name) for name in values} == values
    own = environment_names()["kubernetes_storage_gb"].name
    with pytest.raises(ContractError, match=own):
        load({}, {own: "0"})


def test_merge_policy_without_pull_requests_is_refused() -> None:
    """None would be opened: the operator states whether that is wanted."""
    policy = {"SANDHERD_MERGE_POLICY": "when_permitted"}
    with pytest.raises(ContractError, match="SANDHERD_PULL_REQUESTS"):
        load(environ=policy)
    for mode in ("none", "draft", "ready"):
        assert load(environ=policy | {"SANDHERD_PULL_REQUESTS": mode}).settings.merge_policy == "when_permitted"


def test_no_two_settings_have_one_variable() -> None:
    """And each has one."""
    names = [env.name for env in environment_names().values()]
    assert len(set(names)) == len(names) == len(NAMES)


@pytest.mark.parametrize("text", ['{"small": {"warm": 2}}', "small: {warm: 2}", "small:\n  warm: 2\n"])
def test_a_setting_with_parts_is_json_or_yaml(text: str) -> None:
    """In a variable it may be written either way."""
    assert load(environ={"SANDHERD_PROFILES": text}).settings.profiles["small"].warm == 2


_NAMING = {"id", "target", "snapshot", "user"}
BAD = {name: "{" if name in STRUCTURED else "a.b" if name in {"project", "runtime"} else "no number" for name in NAMES}
BAD |= {
    "docker_network": "a network",
    "docker_platform": "arm64",
    "sandbox_image": "an image",
    "docker_host": "/run/docker.sock",
}
BAD |= {"pull_request_reviewers": "a b", "forward_env": "A=1", "sandbox_mounts": "/srv/../etc"}
BAD |= {"sandbox_nats_url": "nats://a:1,http://b", "nats_url": "nats://a:1,http://b"}
BAD |= {"daytona_api_key": "a key", "daytona_jwt_token": "a token", "daytona_api_url": "https://user:hush@host/api"}
BAD |= {"github_app_id": "an App", "github_token": "a token"}
BAD |= {name: "a name" for name in NAMES if name.startswith("daytona_") and name.rpartition("_")[2] in _NAMING}
"""A text that is no value of the setting, where there is such a text."""
TAKES_ANY = {"credentials", "database_url", "forge_tokens", "gateway_host", "gateway_port_file", "signing_key"}
TAKES_ANY |= {"gateway_webhook_secrets", "git_credentials", "sandbox_nats_cert", "sandbox_nats_key", "toolchains"}
TAKES_ANY |= {"github_app_key", "home", "http_host", "http_port_file", "identity_dir", "kubernetes_config"}
TAKES_ANY |= {"oidc_client_id", "oidc_client_secret_file", "oidc_groups_claim", "otlp_endpoint", "pull_request_body"}
TAKES_ANY |= {"pull_request_labels", "pull_request_title", "remote_command", "repository_approval", "sandbox_nats_ca"}


@pytest.mark.parametrize(
    "url",
    [
        "",
        "nats://",
        "nats://:4222",
        "nats://[::1",
        "nats://a:b:c",
        "nats://a:99999",
        "nats://\x1b[31m\nx",
        "nats://a:1,",
    ],
)
def test_address_of_no_broker_is_refused(url: str) -> None:
    """The error precedes any connection and names the setting."""
    with pytest.raises(ContractError, match=r"setting nats_url: .*with a host"):
        load({"nats_url": url}, {})


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("127.0.0.1:4222", "nats://127.0.0.1:4222"),
        ("a:1, b:2", "nats://a:1,nats://b:2"),
        ("ws://[::1]:4", "ws://[::1]:4"),
    ],
)
def test_the_scheme_of_an_address_may_be_left_out(url: str, read: str) -> None:
    """As with the NATS tools."""
    assert load({"nats_url": url}, {}).settings.nats_url == read


@pytest.mark.parametrize("name", sorted(set(NAMES) - TAKES_ANY))
def test_a_bad_value_names_setting_source_and_remedy(name: str, tmp_path: Path) -> None:
    """From whichever source it comes."""
    variable = environment_names()[name].name
    file = tmp_path / "herd.yaml"
    file.write_text(yaml.safe_dump({name: BAD[name]}))
    attempts: list[tuple[Callable[[], LoadedSettings[Settings]], str, str]] = [
        (lambda: load({name: BAD[name]}, {}), "parameter", "another value"),
        (lambda: load({}, {variable: BAD[name]}), f"environment, {variable}", f"set {variable}"),
        (lambda: load({}, {}, file), f"yaml, {file}", f"change {name} in {file}"),
    ]
    for refused, source, remedy in attempts:
        with pytest.raises(ContractError, match=f"setting {name}") as raised:
            refused()
        problem = raised.value.problem
        assert source in problem.message
        assert problem.field == name
        assert remedy in (problem.remedy or "")


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("max_sandboxs: 3", "did you mean max_sandboxes?"),
        ("1: 2", "there is no setting '1'"),
        ("- a", "it has to be a mapping"),
        ("a: [", "line 1: "),
        ("database_url: [hush", "line 1: "),
    ],
)
def test_invalid_settings_file_is_reported_by_name(text: str, expected_text: str, tmp_path: Path) -> None:
    """The error has the file's name and the fault, and none of its content."""
    file = tmp_path / "herd.yaml"
    file.write_text(text)
    with pytest.raises(ContractError) as raised:
        load(environ={}, yaml_file=file)
    problem = raised.value.problem
    assert expected_text in f"{problem.message}; {problem.remedy}"
    assert str(file) in problem.message
    assert "hush" not in problem.message


def test_missing_settings_file_is_reported(tmp_path: Path) -> None:
    """A missing file is never taken for an empty one."""
    with pytest.raises(ContractError, match=r"gone\.yaml: No such file"):
        load(environ={CONFIG_VARIABLE: str(tmp_path / "gone.yaml")})


def test_secrets_are_not_shown() -> None:
    """Neither a secret setting nor a password in an address; nor a bad value in its own refusal."""
    environ = {"DATABASE_URL": "postgresql://user:hush@host/db", "NATS_URL": "nats://user:hush@a:1,nats://hush@b:2"}
    rows = {name: (value, source) for name, _, value, source in load(environ=environ).rows()}
    assert rows["database_url"] == (MASK, SettingSource.ENVIRONMENT)
    assert rows["nats_url"][0] == f"nats://{MASK}@a:1,nats://{MASK}@b:2"
    with pytest.raises(ContractError) as raised:
        load(environ={"SANDHERD_MAX_SANDBOXES": "hush"})
    assert "hush" not in str(raised.value)


def test_shown_setting_is_accepted_as_input() -> None:
    """A setting with parts is shown as JSON that its variable accepts."""
    environ = {"SANDHERD_PROFILES": json.dumps(STRUCTURED["profiles"][0]), "SANDHERD_CAPS": json.dumps(LIMITS)}
    loaded = load(environ=environ)
    shown = {variable: value for _, variable, value, _ in loaded.rows() if variable in environ}
    assert load(environ=shown).settings == loaded.settings


@pytest.mark.parametrize(
    ("source", "allowed", "taken"),
    [
        ("data", "data", True),
        ("data", "", False),
        ("/srv/data/sets", "other,/srv/data", True),
        ("/srv/database", "/srv/data", False),
        ("srv", "/srv", False),
    ],
)
def test_profile_mounts_only_what_is_permitted(source: str, allowed: str, taken: bool) -> None:
    """A volume is permitted by name, a folder by path; the refusal names both settings."""
    profiles = json.dumps({"usual": {"mounts": [{"source": source, "target": "/data"}]}})
    environ = {"SANDHERD_PROFILES": profiles, "SANDHERD_SANDBOX_MOUNTS": allowed}
    if taken:
        assert load(environ=environ).settings.profiles["usual"].mounts[0].source == source
        return
    with pytest.raises(ContractError, match=f"usual mounts {source}, which is not in sandbox_mounts") as raised:
        load(environ=environ)
    assert raised.value.problem.field == "profiles"


@pytest.mark.parametrize("target", ["/", "//", "data", "/sandherd/state", "/opt/sandherd", "/proc/x", "/a/../sandherd"])
def test_mount_over_a_sandboxs_own_paths_is_refused(target: str) -> None:
    """The root, its own folders, the worker and the kernel's file systems are protected."""
    profiles = json.dumps({"usual": {"mounts": [{"source": "data", "target": target}]}})
    with pytest.raises(ContractError, match="profiles"):
        load(environ={"SANDHERD_PROFILES": profiles, "SANDHERD_SANDBOX_MOUNTS": "data"})
