"""Which distribution a name belongs to, and a runtime's own settings."""

from collections.abc import Iterator
from importlib.metadata import Distribution, DistributionFinder, EntryPoint
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr

from sandherd.plugins import HARNESSES, RUNTIMES, PluginError, choice, grouped, installed, load_harness
from sandherd.settings import Settings
from sandherd.settings.fields import OWN_RUNTIMES
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.plugin import RuntimeContext


class Named(Distribution):
    """A distribution that has a name and a version."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: 1.2\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def discover(cls, *, context: DistributionFinder.Context | None = None, **_more: Any) -> Iterator[Distribution]:
        yield from ()


def entry(name: str, distribution: str, group: str = RUNTIMES, value: str = "json:loads") -> Any:
    return EntryPoint(name, value, group)._for(Named(distribution))  # type: ignore[attr-defined]  # as metadata does


class MoonOptions(BaseModel):
    size: int
    key: SecretStr | None = None


def opening(**environ: str) -> RuntimeContext:
    return RuntimeContext(name="far-moon", settings=Settings(), herd="h1", worker=(), environ=environ)


def test_built_in_runtimes_are_registered_as_plugins() -> None:
    """All are found by their entry points, and no other is built in."""
    assert {name for name, plugin in installed(RUNTIMES).items() if plugin.is_builtin} == set(OWN_RUNTIMES)


def test_no_distribution_replaces_a_built_in_plugin() -> None:
    """The built-in name wins, whichever distribution uses it too."""
    (plugin,) = grouped(RUNTIMES, [entry("process", "acme"), entry("process", "sandherd_spawner")]).values()
    assert (plugin.origin, plugin.problem, plugin.is_builtin) == ("sandherd_spawner 1.2", None, True)


def test_name_of_several_distributions_is_refused() -> None:
    """Both are named; another name of one of them is not affected."""
    entries = [entry("moon", "acme"), entry("moon", "umbrella"), entry("sun", "acme"), entry("Two Words", "acme")]
    found = grouped(RUNTIMES, entries)
    with pytest.raises(PluginError, match=r"'moon' of acme 1\.2 and umbrella 1\.2: several distributions"):
        found["moon"].load()
    assert found["sun"].load()("[1]") == [1]
    assert "the name is invalid" in str(found["Two Words"].problem)
    assert choice(found) == "sun"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("nowhere_at_all:THING", "acme 1.2 can't be imported: ModuleNotFoundError"),
        ("json:nothing", "acme 1.2 can't be imported: AttributeError"),
        ("json:loads", "expected a HarnessKind, found function"),
        ("sandherd.contracts.harness_kinds:CLAUDE", "its options have the kind 'claude'"),
    ],
)
def test_invalid_harness_is_reported_with_its_distribution(value: str, why: str) -> None:
    """The error names the reason, whatever the entry point leads to."""
    (plugin,) = grouped(HARNESSES, [entry("wizard", "acme", HARNESSES, value)]).values()
    with pytest.raises(PluginError, match=why):
        load_harness(plugin)


def test_runtime_has_settings_of_its_own() -> None:
    """They come from variables with its name; an invalid one is named, without its value."""
    context = opening(SANDHERD_RUNTIME_FAR_MOON_SIZE="3", SANDHERD_RUNTIME_FAR_MOON_KEY="s3cret")
    assert context.options(MoonOptions).size == 3
    with pytest.raises(RuntimeFailedError, match="SANDHERD_RUNTIME_FAR_MOON_SIZE: size: it is required"):
        opening().options(MoonOptions)
    with pytest.raises(RuntimeFailedError, match="SANDHERD_RUNTIME_FAR_MOON_SIZE") as refused:
        opening(SANDHERD_RUNTIME_FAR_MOON_SIZE="s3cret").options(MoonOptions)
    assert "s3cret" not in str(refused.value)
