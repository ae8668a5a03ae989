"""Loads settings: each value comes from a parameter, else the environment, else a YAML file, else the default."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from sandherd.contracts.errors import Code, ContractError
from sandherd.settings.client import ClientSettings, variables_of
from sandherd.settings.fields import Alias
from sandherd.settings.text_values import CONFIG_VARIABLE, MASK, as_text, describe_error, from_yaml

if TYPE_CHECKING:
    from sandherd.settings.model import Settings

SettingsT_co = TypeVar("SettingsT_co", bound=ClientSettings, covariant=True)


class SettingSource(StrEnum):
    """The source of a value, highest precedence first."""

    PARAMETER = "parameter"
    ENVIRONMENT = "environment"
    YAML = "yaml"
    DEFAULT = "default"


@dataclass(frozen=True)
class LoadedSettings(Generic[SettingsT_co]):
    """The settings, and the source of each."""

    settings: SettingsT_co
    sources: Mapping[str, SettingSource]
    variables: Mapping[str, str] = field(default_factory=dict)
    """For each value from the environment, the name of its variable."""

    def rows(self) -> list[tuple[str, str, str, SettingSource]]:
        """`(setting, variable, value, source)` of each setting. Values of secrets are masked."""
        from sandherd.settings.model import environment_names

        rows = []
        for name, env in environment_names().items():
            hidden = env.secret and self.sources[name] is not SettingSource.DEFAULT
            text = MASK if hidden else as_text(getattr(self.settings, name))
            rows.append((name, self.variables.get(name, env.name), text, self.sources[name]))
        return rows


def load(
    parameters: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
    yaml_file: Path | None = None,
) -> "LoadedSettings[Settings]":
    """Read all settings. The YAML file is `yaml_file`, or else the file that `SANDHERD_CONFIG` names.

    Raises `ContractError` for an invalid value, with the setting and the source of the value.
    """
    from sandherd.settings.model import Settings

    environ = os.environ if environ is None else environ
    return _load(Settings, parameters or {}, environ, yaml_file or _named_file(environ))


def load_client(
    parameters: Mapping[str, Any], environ: Mapping[str, str], yaml_file: Path | None = None
) -> LoadedSettings[ClientSettings]:
    """Like `load`, but without a YAML file it reads only the settings of a client, which takes less time."""
    if yaml_file is not None or _named_file(environ) is not None:
        return load(parameters, environ, yaml_file)
    return _load(ClientSettings, parameters, environ, None)


def _named_file(environ: Mapping[str, str]) -> Path | None:
    path = environ.get(CONFIG_VARIABLE)
    return Path(path) if path else None


def _load(
    model: type[SettingsT_co], parameters: Mapping[str, Any], environ: Mapping[str, str], yaml_file: Path | None
) -> LoadedSettings[SettingsT_co]:
    values: dict[str, Any] = {}
    sources = dict.fromkeys(model.model_fields, SettingSource.DEFAULT)
    in_environment = _from_environment(model, environ)
    for source, layer in (
        (SettingSource.YAML, from_yaml(yaml_file)),
        (SettingSource.ENVIRONMENT, {name: value for name, (_, value) in in_environment.items()}),
        (SettingSource.PARAMETER, {name: value for name, value in parameters.items() if value is not None}),
    ):
        values |= layer
        sources |= dict.fromkeys(layer, source)
    names = {name: env.name for name, env in variables_of(model).items()}
    used = {name: variable for name, (variable, _) in in_environment.items()}
    try:
        return LoadedSettings(model(**values), sources, used)
    except ValidationError as error:
        raise _setting_error(model, error, sources, (yaml_file, names | used)) from None


def _from_environment(model: type[ClientSettings], environ: Mapping[str, str]) -> dict[str, tuple[str, Any]]:
    """The settings in the environment: setting → (variable, value). Its own variable comes before its aliases."""
    values = {}
    for name, env in variables_of(model).items():
        for alias in (Alias(env.name), *env.aliases):
            text = environ.get(alias.name)
            if text and (converted := alias.convert(text)):
                values[name] = alias.name, _structured(model, name, alias.name, converted)
                break
    return values


def _structured(model: type[ClientSettings], name: str, variable: str, text: str) -> Any:
    """The value of a variable. For a structured setting, the text is parsed as YAML, of which JSON is a part."""
    if not isinstance(model.model_fields[name].get_default(call_default_factory=True), dict | BaseModel):
        return text
    import yaml  # as in `from_yaml`

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ContractError(
            Code.INVALID_FIELD,
            f"setting {name}: this is neither YAML nor JSON: {describe_error(error)} (from environment, {variable})",
            field=name,
            remedy=f"set {variable} to another value, or unset it",
        ) from None


def _setting_error(
    model: type[ClientSettings],
    error: ValidationError,
    sources: Mapping[str, SettingSource],
    origins: tuple[Path | None, Mapping[str, str]],
) -> ContractError:
    """The error for an invalid setting, with the source of the value and a remedy.

    It does not contain the value, which may be a secret. `origins` is the YAML file, and the variable of each setting.
    """
    path, variables = origins
    problem = ContractError.from_validation(error).problem
    name = (problem.field or "").partition(".")[0]
    if name not in model.model_fields:
        similar = get_close_matches(name, model.model_fields, n=1, cutoff=0.6)
        remedy = f"did you mean {similar[0]}?" if similar else "docs/configuration.md lists all settings"
        return ContractError(Code.INVALID_FIELD, f"there is no setting {name!r} (in {path})", field=name, remedy=remedy)
    variable = variables[name]
    location, remedy = {
        SettingSource.PARAMETER: ("parameter", "give another value"),
        SettingSource.ENVIRONMENT: (f"environment, {variable}", f"set {variable} to another value, or unset it"),
        SettingSource.YAML: (f"yaml, {path}", f"change {name} in {path}"),
        SettingSource.DEFAULT: ("default", f"set {variable}"),
    }[sources[name]]
    return ContractError(Code.INVALID_FIELD, f"setting {problem.message} (from {location})", field=name, remedy=remedy)
