"""What the Helm chart has from the code: facts for its templates, the schema of its values, and the alerts."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from sandherd.bus.permissions import SERVICES
from sandherd.contracts import schemas
from sandherd.contracts.streams import CONSUMERS
from sandherd.settings import CONFIG_VARIABLE, Settings, environment_names
from spawner.runtimes.kubernetes import manifests, rights

Json = dict[str, Any]
ROOT: Final = Path(__file__).parent.parent
CHART: Final = ROOT / "deploy" / "helm" / "sandherd"
SET_BY_THE_CHART: Final = (
    "nats_url",
    "credentials",
    "home",
    "database_url",
    "http_host",
    "http_port",
    "identity_dir",
    "otlp_endpoint",
    "sandbox_nats_url",
    "sandbox_image",
    "kubernetes_namespace",
)
"""Settings that follow from other values of the chart; its templates give them as variables."""
_OF_NO_USE: Final = frozenset({"http_port_file", "toolchains", "kubernetes_config"})
"""Paths that a pod does not have."""
_MIGRATIONS: Final[Json] = {"before": ["migrate", "before"], "after": ["migrate", "after", "--wait", "300"]}
"""What event-ingest is told before new code runs, and after it, when pods of the old code may still be ending."""
_BY_NAME: Final = frozenset({"properties", "patternProperties", "$defs"})
_UNSAID: Final = frozenset({"title", "default"})
_RULES: Final = ROOT / "deploy" / "prometheus" / "rules"
_DASHBOARDS: Final = ROOT / "deploy" / "grafana" / "dashboards"
_HEAD: Final = "# Made by `make docs` from {source}; change that instead.\n"


def documents(made: Mapping[Path, str]) -> dict[Path, str]:
    """Every file of the chart that is made, and what should stand in it; some are copies of what is made elsewhere."""
    dashboards = {CHART / "files" / "dashboards" / path.name: text for path, text in _all_in(_DASHBOARDS, made).items()}
    alerts = rules(_all_in(_RULES, made).values())
    return dashboards | {
        CHART / "files" / "facts.yaml": _HEAD.format(source="docs/chart.py and the code") + as_yaml(facts()),
        CHART / "files" / "rules.yaml": _HEAD.format(source="deploy/prometheus/rules") + as_yaml(alerts),
        CHART / "values.schema.json": as_json(schema()),
    }


def _all_in(folder: Path, made: Mapping[Path, str]) -> dict[Path, str]:
    """The files of a folder with their texts: as they are made now, else as they lie there."""
    there = {path: path.read_text(encoding="utf-8") for path in folder.glob("*") if path.suffix in {".yaml", ".json"}}
    return dict(sorted((there | {path: text for path, text in made.items() if path.parent == folder}).items()))


def facts() -> Json:
    """What templates would otherwise have to know by heart."""
    variables = environment_names()
    return {
        "services": [str(service) for service in SERVICES],
        "config_variable": CONFIG_VARIABLE,
        "variables": {name: variables[name].name for name in SET_BY_THE_CHART},
        "rules": rights.RULES,
        "sandbox_labels": manifests.MANAGED,
        "consumers": {
            str(service): [
                {"name": consumer.name, "stream": consumer.stream}
                for consumer in CONSUMERS
                if consumer.service is service
            ]
            for service in SERVICES
        },
        "migrations": _MIGRATIONS,
    }


def rules(texts: Iterable[str]) -> Json:
    """The alerts of all files, as one."""
    return {"groups": [group for text in texts for group in yaml.safe_load(text)["groups"]]}


def schema() -> Json:
    """The schema that is written by hand, with the settings and the services put in."""
    written: Json = yaml.safe_load((CHART.parent / "values.schema.yaml").read_text(encoding="utf-8"))
    properties = written["properties"]
    names = [str(service) for service in SERVICES]
    properties["services"] |= {"required": names, "properties": {name: _of("Service") for name in names}}
    credentials = properties["credentials"]
    credentials["properties"] |= {name: _of("Key") for name in names}
    credentials["required"] = sorted(credentials["properties"])
    written["$defs"] |= _settings()
    return written


def _of(kind: str) -> Json:
    return {"$ref": f"#/$defs/{kind}"}


def _settings() -> Json:
    """The definitions that a setting of a chart rests on; secrets and what the chart sets are not among them."""
    whole = _plain(Settings.model_json_schema())
    variables, said = environment_names(), schemas.field_docs(Settings)
    left_out = {name for name, variable in variables.items() if variable.secret} | {*SET_BY_THE_CHART, *_OF_NO_USE}
    properties = {
        name: {"description": said.get(name, ""), **field}
        for name, field in sorted(whole.pop("properties").items())
        if name not in left_out
    }
    settings = {"type": "object", "additionalProperties": False, "required": ["runtime"], "properties": properties}
    return {**whole["$defs"], "Settings": settings}


def _plain(given: Any) -> Any:
    """A schema as whoever is refused can read it: what may be left out need not be allowed to be null as well."""
    if isinstance(given, list):
        return [_plain(one) for one in given]
    if not isinstance(given, dict):
        return given
    rest = [one for one in given.get("anyOf", ()) if one != {"type": "null"}]
    if len(rest) == 1:
        given = {**rest[0], **{key: value for key, value in given.items() if key != "anyOf"}}
    return {
        key: {name: _plain(one) for name, one in value.items()} if key in _BY_NAME else _plain(value)
        for key, value in given.items()
        if key not in _UNSAID
    }


def as_json(document: Json) -> str:
    """JSON for people, too."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def as_yaml(document: Json) -> str:
    """YAML without anchors."""
    return yaml.dump(document, Dumper=rights.Plain, sort_keys=False, width=120, allow_unicode=True)
