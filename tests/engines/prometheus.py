"""A real Prometheus of Debian's, and promtool: unpacked, not installed."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from sandherd.stack.nats import free_port
from tests.engines.packages import unpacked
from tests.patience import PATIENCE

Json = dict[str, Any]
RULES: Final = Path(__file__).parents[2] / "deploy" / "prometheus" / "rules"


def program(name: str) -> Path:
    """The path of `prometheus` or `promtool`. Raises `subprocess.CalledProcessError` without the package."""
    return unpacked("prometheus") / "usr" / "bin" / name


def promtool(*words: str | Path) -> str:
    """Run promtool on files that must be valid; returns its output."""
    done = subprocess.run([program("promtool"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules() -> list[Json]:
    """Every rule in our files."""
    groups = [group for path in sorted(RULES.glob("*.yaml")) for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus that scrapes every second."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The response of its API."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def find(self, query: str) -> list[Json]:
        """The series of a query now."""
        found: list[Json] = self.ask("query", query=query)["result"]
        return found

    def numbers(self, query: str) -> list[float]:
        """The values of a query; those that are no number (such as a share of nothing) are left out."""
        values = [float(series["value"][1]) for series in self.find(query)]
        return [value for value in values if value == value]  # noqa: PLR0124  # NaN alone differs from itself

    def alerts(self) -> set[tuple[str, str]]:
        """The pending or firing alerts, with their states."""
        return {(alert["labels"]["alertname"], alert["state"]) for alert in self.ask("alerts")["alerts"]}

    def until(self, holds: Callable[[], Any], what: Callable[[], str]) -> None:
        """Wait until the condition holds; else the test fails with the present values."""
        end = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < end, what()
            time.sleep(0.1)  # noqa: TID251  # nothing announces it


@contextmanager
def prometheus(job: str, targets: Mapping[str, str]) -> Iterator[Prometheus]:
    """A Prometheus that scrapes these services (host:port by name) as one herd, with our rules."""
    with tempfile.TemporaryDirectory(prefix="prometheus-") as directory:
        (Path(directory) / "prometheus.yml").write_text(yaml.safe_dump(_configuration(job, targets)))
        url = f"127.0.0.1:{free_port()}"
        command = [
            *(str(program("prometheus")), "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
            *("--log.level=warn", f"--web.listen-address={url}"),
        ]
        with (Path(directory) / "log").open("wb") as log:
            process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log)
        found = Prometheus(f"http://{url}")
        try:
            found.until(lambda: process.poll() is not None or _is_ready(found), lambda: "prometheus is not ready")
            assert process.poll() is None, (Path(directory) / "log").read_text()
            yield found
        finally:
            process.kill()
            process.wait()


def _configuration(job: str, targets: Mapping[str, str]) -> Json:
    scraped = [{"targets": [address], "labels": {"service": name}} for name, address in targets.items()]
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "3s"},
        "rule_files": [str(RULES / "*.yaml")],
        "scrape_configs": [{"job_name": job, "static_configs": scraped}],
    }


def _is_ready(found: Prometheus) -> bool:
    try:
        with urlopen(f"{found.url}/-/ready", timeout=2):
            return True
    except (URLError, OSError):
        return False


if __name__ == "__main__":
    program("promtool")
