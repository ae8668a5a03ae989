"""Where each value comes from: a parameter, else the environment, else the YAML file, else the default."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import Code, ContractError
from sandherd.settings.model import Settings, environment_names
from sandherd.settings.texts import CONFIG_VARIABLE, MASK, as_text, from_yaml, why_unreadable


class Source(StrEnum):
    """Where a value came from, strongest first."""

    PARAMETER = "parameter"
    ENVIRONMENT = "environment"
    YAML = "yaml"
    DEFAULT = "default"


@dataclass(frozen=True)
class Loaded:
    """The settings, and where each came from."""

    settings: Settings
    sources: Mapping[str, Source]

    def shown(self) -> list[tuple[str, str, str, Source]]:
        """`(setting, variable, value, source)` of each, secrets masked."""
        rows = []
        for name, env in environment_names().items():
            hidden = env.secret and self.sources[name] is not Source.DEFAULT
            text = MASK if hidden else as_text(getattr(self.settings, name))
            rows.append((name, env.name, text, self.sources[name]))
        return rows


def load(
    parameters: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    yaml_file: Path | None = None,
) -> Loaded:
    """Read the settings; without `yaml_file`, also from the one that `SANDHERD_CONFIG` names, if there is one.

    Raises `ContractError` naming the setting and the source of a value that is not allowed.
    """
    values: dict[str, Any] = {}
    environ = os.environ if environ is None else environ
    named = environ.get(CONFIG_VARIABLE)
    yaml_file = yaml_file or (Path(named) if named else None)
    sources = dict.fromkeys(Settings.model_fields, Source.DEFAULT)
    for source, layer in (
        (Source.YAML, from_yaml(yaml_file)),
        (Source.ENVIRONMENT, _from_environment(environ)),
        (Source.PARAMETER, {name: value for name, value in (parameters or {}).items() if value is not None}),
    ):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    try:
        return Loaded(Settings(**values), sources)
    except ValidationError as error:
        raise _refusal(error, sources, yaml_file) from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = environment_names()
    given = {name: environ[env.name] for name, env in names.items() if environ.get(env.name)}
    return {name: _structured(name, names[name].name, text) for name, text in given.items()}


def _structured(name: str, variable: str, text: str) -> Any:
    """What stands in a variable; of a setting with parts, as YAML (and so as JSON)."""
    if not isinstance(Settings.model_fields[name].get_default(call_default_factory=True), dict | BaseModel):
        return text
    import yaml  # as in `from_yaml`

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ContractError(
            Code.INVALID_FIELD,
            f"setting {name}: this is neither YAML nor JSON: {why_unreadable(error)} (from environment, {variable})",
            field=name,
            remedy=f"set {variable} to another value, or unset it",
        ) from None


def _refusal(error: ValidationError, sources: Mapping[str, Source], path: Path | None) -> ContractError:
    """The refusal, with where the value came from and what is to be mended. The value itself may be a secret."""
    problem = ContractError.from_validation(error).problem
    name = (problem.field or "").partition(".")[0]
    if name not in Settings.model_fields:
        close = get_close_matches(name, Settings.model_fields, n=1, cutoff=0.6)
        remedy = f"did you mean {close[0]}?" if close else "docs/configuration.md lists all settings"
        return ContractError(Code.INVALID_FIELD, f"there is no setting {name!r} (in {path})", field=name, remedy=remedy)
    variable = environment_names()[name].name
    place, remedy = {
        Source.PARAMETER: ("parameter", "give another value"),
        Source.ENVIRONMENT: (f"environment, {variable}", f"set {variable} to another value, or unset it"),
        Source.YAML: (f"yaml, {path}", f"change {name} in {path}"),
        Source.DEFAULT: ("default", f"set {variable}"),
    }[sources[name]]
    return ContractError(Code.INVALID_FIELD, f"setting {problem.message} (from {place})", field=name, remedy=remedy)
