"""A node for tests: the command of a rendered pod is started as a process, with its files, variables and port."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.nats import free_port
from tests.integration.deploy.charts import Json
from tests.patience import PATIENCE

ENTRY = {"cli": "sandherd"}
"""The command of an image is `sandherd-<service>`, except for this one."""


class Node:
    """The node of the pods. `secrets` are folders by names of Secrets, as `kubectl create secret` takes them."""

    def __init__(self, folder: Path, objects: list[Json], secrets: Mapping[str, Path]) -> None:
        self._folder = folder
        self._maps = {one["metadata"]["name"]: one["data"] for one in objects if one["kind"] == "ConfigMap"}
        self._secrets = secrets
        self.ports: dict[str, int] = {}
        """The port of each pod's component, in place of the same port for probes in a cluster."""

    def command(self, pod: Json) -> ChildCommand:
        """The only container of a pod as a process that gets only the pod's settings."""
        (container,) = pod["spec"]["containers"]
        places = {mount["mountPath"]: self._files(pod, mount["name"]) for mount in container["volumeMounts"]}
        home = places.pop("/tmp")  # what a test passes, such as a kubeconfig, may be below ours
        variables = {one["name"]: self._value(one) for one in container.get("env", [])}
        variables = {name: placed(value, places) for name, value in variables.items()}
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        for port in container.get("ports", []):
            number = free_port()
            if port["name"] == "http":
                self.ports[component] = number
            (named,) = [name for name, value in variables.items() if value == str(port["containerPort"])]
            variables[named] = str(number)
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), **variables}
        log = self._folder / f"{component}.log"
        return ChildCommand(arguments=self._arguments(container), log=log, environment=environment)

    def run(self, pod: Json) -> subprocess.CompletedProcess[str]:
        """Run a pod that ends by itself."""
        command = self.command(pod)
        return subprocess.run(
            command.arguments,
            env=dict(command.environment or {}),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def start(self, pod: Json) -> ChildProcess:
        """Start a pod that continues."""
        child = ChildProcess(self.command(pod))
        child.start()
        return child

    def _arguments(self, container: Json) -> list[str]:
        image = container["image"].rpartition("/")[2].partition(":")[0]
        beside = Path(sys.executable).parent
        if "command" in container:
            program, *rest = container["command"]
            return [str(beside / program), *rest, *map(self._address, container.get("args", []))]
        return [str(beside / ENTRY.get(image, f"sandherd-{image}")), *container.get("args", [])]

    def _address(self, text: str) -> str:
        """The local address for an address such as `herd-sandherd-monitor:8000`."""
        found = [port for name, port in self.ports.items() if text.rpartition(":")[0].endswith(f"-{name}")]
        return f"127.0.0.1:{found[0]}" if found else text

    def _files(self, pod: Json, name: str) -> Path:
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == name]
        if "secret" in volume:
            return self._secrets[volume["secret"]["secretName"]]
        folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._folder))
        if "configMap" in volume:
            for key, text in self._maps[volume["configMap"]["name"]].items():
                (folder / key).write_text(text)
        return folder

    def _value(self, variable: Json) -> str:
        if "value" in variable:
            return str(variable["value"])
        wanted: dict[str, str] = variable["valueFrom"]["secretKeyRef"]
        return (self._secrets[wanted["name"]] / wanted["key"]).read_text().strip()


def placed(value: str, places: Mapping[str, Path]) -> str:
    """The local path for a path in the pod."""
    for mounted, folder in places.items():
        if value == mounted or value.startswith(f"{mounted}/"):
            return str(folder) + value.removeprefix(mounted)
    return value
