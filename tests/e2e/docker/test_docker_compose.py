"""The images and docker-compose.yml are built, started and used on a real engine.

Images of third parties are Debian with the same programs, under the names in the file. Telemetry is not run, as no
package here has its programs; nor is the firewall between networks, for which this engine has no rules.
"""

import asyncio
import json
import os
import re
import resource
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from aiodocker import Docker
from aiodocker.containers import DockerContainer
from packaging.utils import canonicalize_name

from sandherd.bus.auth.permissions import SERVICES
from sandherd.stack.nats import free_port
from tests.e2e.line import ROOT, SANDHERD
from tests.engines import images
from tests.engines.compose import Compose
from tests.engines.docker import Engine
from tests.patience import PATIENCE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
VERSION: Final = version("sandherd")
LARGEST: Final = {"spawner": 180_000_000, "gateway": 120_000_000, "cli": 60_000_000}
LARGE: Final = 100_000_000


@pytest.fixture(scope="module")
def built(docker_engine: Engine) -> dict[str, str]:
    """The names of every service's image, and of stand-ins for those of third parties."""
    images.make_python(docker_engine)
    others = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    images.make_nats(docker_engine, others["nats"]["image"])
    images.make_postgres(docker_engine, others["postgres"]["image"])
    with images.build_context() as context:
        made = {name: images.build(docker_engine, name, context, VERSION) for name in images.SERVICES}
        images.build_sandbox(docker_engine, context, VERSION)
    return made


@pytest.fixture(scope="module")
def compose(docker_engine: Engine, built: dict[str, str]) -> Iterator[Compose]:
    """All of Compose, started."""
    assert built
    socket = docker_engine.host.removeprefix("unix://")
    found = Compose(
        docker_engine,
        DOCKER_GID=str(Path(socket).stat().st_gid),
        DOCKER_SOCKET=socket,
        NATS_PORT=str(free_port()),
        NATS_WEBSOCKET_PORT=str(free_port()),
        # An engine can't grant more than it has itself.
        SANDHERD_OPEN_FILES=str(min(65_536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    )
    (group, _build, up), *_ = steps("Start")
    assert (group.partition("=")[0], up) == ("export DOCKER_GID", "docker compose up -d")
    try:
        found.checked_output("up", "-d")
        yield found
    finally:
        found("down", "--volumes", "--timeout", "10")


@pytest.fixture
async def docker(docker_engine: Engine) -> AsyncIterator[Docker]:
    client = Docker(docker_engine.host)
    yield client
    await client.close()


async def container(docker: Docker, service: str) -> DockerContainer:
    """The container of a service."""
    labels = ["com.docker.compose.project=herd", f"com.docker.compose.service={service}"]
    return (await docker.containers.list(all=True, filters={"label": labels}))[0]


async def shown(docker: Docker, service: str) -> dict[str, Any]:
    """The engine's description of the container."""
    return dict(await (await container(docker, service)).show())


async def output_in(docker: Docker, service: str, script: str) -> str:
    """The output of a script in the container of a service, run as its user."""
    execution = await (await container(docker, service)).exec(["/bin/sh", "-c", script])
    output = b""
    async with execution.start() as stream:
        while (message := await stream.read_out()) is not None:
            output += message.data
    return output.decode()


async def last_check(docker: Docker, service: str) -> dict[str, Any]:
    """The output of a service's last health check; one that took too long has another output."""
    return dict((await shown(docker, service))["State"]["Health"]["Log"][-1])


async def until_healthy(docker: Docker) -> None:
    """Wait until every service's own health check succeeds."""
    async with asyncio.timeout(PATIENCE):
        for service in SERVICES:
            while (await shown(docker, service))["State"]["Health"]["Status"] != "healthy":
                await asyncio.sleep(0.2)


LOOK: Final = """
import asyncio, http.client, importlib.metadata, json, pathlib, ssl, sys, sysconfig
import sandherd.bus
site = pathlib.Path(sysconfig.get_path("purelib"))
specs = [module.__spec__ for module in sys.modules.values() if getattr(module, "__spec__", None)]
print(json.dumps({
    "installed": [found.name for found in importlib.metadata.distributions(path=[str(site)])],
    "left": [str(one) for one in site.rglob("*.pyc") if not (one.parents[1] / f"{one.name.split('.')[0]}.py").exists()],
    "not compiled": [spec.name for spec in specs if spec.cached and not pathlib.Path(spec.cached).exists()],
}))
"""


@pytest.mark.parametrize("service", images.SERVICES)
async def test_image_is_small_and_read_only(docker: Docker, built: dict[str, str], service: str) -> None:
    """A numeric user owns no file; there is no pip and no compiler, one layer of packages, and an init process."""
    found = await docker.images.inspect(built[service])
    base = await docker.images.inspect(images.python_image())
    assert found["Size"] - base["Size"] < LARGEST.get(service, LARGE)
    config = found["Config"]
    assert config["User"] == "10001:10001"
    assert config["Entrypoint"][0] == "/opt/sandherd/bin/dumb-init"
    assert config["Labels"]["org.opencontainers.image.version"] == VERSION
    assert "INDEX_URL" not in json.dumps(config)
    look = "id -u; find / -xdev -writable -type f -not -path '/proc/*' 2>/dev/null; command -v pip gcc uv; true"
    assert (await ran_in(docker, built[service], "/bin/sh", "-c", look)).split() == ["10001"]


CLONE: Final = """
set -e
id -u
cd /tmp
git init -q --bare served.git
git --git-dir=served.git -c user.name=a -c user.email=a@example.org commit-tree -m one \
  $(git --git-dir=served.git mktree </dev/null) > commit
git --git-dir=served.git update-ref refs/heads/main $(cat commit)
git --git-dir=served.git bundle create -q main.bundle main
git clone -q --bare main.bundle from-bundle.git && git clone -q -b main file:///tmp/served.git checkout
git -C checkout rev-parse HEAD | cmp - commit && echo cloned
test $(grep -c BEGIN /etc/ssl/certs/ca-certificates.crt) -gt 100 && echo authorities
git ls-remote https://127.0.0.1:9/none.git 2>&1 || true
"""


@pytest.mark.parametrize("image", ["spawner", "sandbox"])
async def test_image_has_git_for_https(docker: Docker, built: dict[str, str], image: str) -> None:
    """Its user, with a read-only root, uses bundles, local repositories, and https, which fails only for its port."""
    host = {"NetworkMode": "none", "CapDrop": ["ALL"], "ReadonlyRootfs": True, "Tmpfs": {"/tmp": "mode=1777"}}
    name = built.get(image, f"sandherd/{image}:{VERSION}")
    shown = await ran_in(docker, name, "/bin/sh", "-c", CLONE, host=host)
    assert shown.split()[:3] == ["10001", "cloned", "authorities"], shown
    assert re.search("(Failed|Could not|Couldn't) .*connect", shown), shown
    assert "is not a git command" not in shown


async def test_only_the_spawner_has_git(docker: Docker, built: dict[str, str]) -> None:
    """No other service has git; the spawner's part of the image is smaller than 15 MB."""
    for service in images.SERVICES:
        found = await ran_in(docker, built[service], "/bin/sh", "-c", "command -v git; true")
        assert found.split() == (["/usr/bin/git"] if service == "spawner" else [])
    history: Any = await docker.images.history(built["spawner"])
    (layer,) = [one["Size"] for one in history if "COPY /programs/" in one["CreatedBy"]]
    assert 3_000_000 < layer < 15_000_000


@pytest.mark.parametrize("service", images.SERVICES)
async def test_image_has_only_its_packages_all_compiled(docker: Docker, built: dict[str, str], service: str) -> None:
    """An image has no other service's package; the base's modules are compiled as well as the packages."""
    seen = json.loads(await ran_in(docker, built[service], "/opt/sandherd/bin/python", "-c", LOOK))
    assert seen["left"] == seen["not compiled"] == []
    contents = json.loads((images.DOCKERFILE.parent / "contents.json").read_text())
    ours = {"sandherd", *({"sandherd-worker"} if service == "spawner" else ())}
    ours |= set() if service == "cli" else {f"sandherd-{service}"}
    names = {canonicalize_name(name) for name in seen["installed"]}
    assert ours <= names <= ours | set(contents[service])


async def ran_in(docker: Docker, image: str, *command: str, host: dict[str, Any] | None = None) -> str:
    """The output of a command in a container of this image, whose root is writable: the files' modes count."""
    options: dict[str, Any] = {"Image": image, "Entrypoint": list(command)}
    options["HostConfig"] = host or {"NetworkMode": "none", "CapDrop": ["ALL"]}
    made = await docker.containers.create(options)
    try:
        await made.start()
        await made.wait(timeout=PATIENCE)
        return "".join(await made.log(stdout=True, stderr=True))
    finally:
        await made.delete(force=True)


async def test_documented_steps_start_compose(docker: Docker, compose: Compose) -> None:
    """Every service becomes healthy, and the further steps of docs/compose.md work, to a task's whole history."""
    await until_healthy(docker)
    (credential, where, run, audit), (inside,) = steps("Submit tasks")
    with tempfile.TemporaryDirectory(prefix="composed-") as folder:
        where = where.replace(":4222", f":{compose.environ['NATS_PORT']}")
        options = await follow(compose, Path(folder), credential, where, run, audit)
        assert "task.completed" in options
        assert "created greeting" in options
    assert "Say hello" in await follow(compose, ROOT / "build", inside)


def steps(heading: str, document: str = "compose.md") -> list[list[str]]:
    """The commands of each block below a heading of this document."""
    page = (ROOT / "docs" / document).read_text()
    part = re.split(r"^## ", page.partition(f"## {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```console\n(.*?)^```", part, flags=re.MULTILINE | re.DOTALL)
    return [[line.removeprefix("$ ") for line in block.splitlines()] for block in blocks]


async def follow(compose: Compose, folder: Path, *commands: str) -> str:
    """Run these in a shell whose `docker compose` is this project's docker-compose; returns their output."""
    docker = compose.write_docker(folder)
    path = f"{docker.parent}:{SANDHERD.parent}:{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        "/bin/sh", "-exc", "\n".join(commands), cwd=folder,
        env={"PATH": path, "SANDHERD_HOME": str(folder / "home")},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, f"{out.decode()[-2000:]}{err.decode()[-3000:]}"
    return out.decode()


async def test_second_up_changes_nothing(docker: Docker, compose: Compose) -> None:
    """Keys, streams and tables exist; the one-shot services exit with 0, and no service is restarted.

    The steps are those of docs/upgrade.md.
    """
    ((_build, up, after_it),) = steps("Compose", "upgrade.md")
    before = {service: (await shown(docker, service))["State"]["StartedAt"] for service in SERVICES}
    compose.checked_output(*up.removeprefix("docker compose ").split())
    after = {service: (await shown(docker, service))["State"]["StartedAt"] for service in SERVICES}
    assert after == before
    for once, expected_text in (("identity", "unchanged"), ("provisioner", "unchanged"), ("migration", "up to date")):
        assert (await shown(docker, once))["State"]["ExitCode"] == 0
        assert expected_text in "".join(await (await container(docker, once)).log(stdout=True, stderr=True))
    assert "up to date" in compose.checked_output(*after_it.removeprefix("docker compose ").split())


@pytest.mark.usefixtures("compose")
async def test_no_process_is_root_and_secrets_are_per_service(docker: Docker) -> None:
    """Each process has a numeric user and its own credential; only the spawner also has its keys."""
    seen = {}
    for service in SERVICES:
        assert (await shown(docker, service))["HostConfig"]["ReadonlyRootfs"]
        user, *seen[service] = (await output_in(docker, service, "id -u; find /run/sandherd* /herd -type f")).split()
        assert user == "10001"
    names = ("account.json", "claims.creds", "connections.creds", "joiner.nk", "operator-signing.nk", "worker.nk")
    keys = {f"/run/sandherd-keys/{name}" for name in (*names, "people.json")}
    for service in SERVICES:
        assert set(seen[service]) == {"/run/sandherd/nats.creds"} | (keys if service == "spawner" else set())


@pytest.mark.usefixtures("compose")
async def test_broker_monitoring_is_unreachable_from_its_network(docker: Docker) -> None:
    """A sandbox on the broker's network could otherwise read every connection and its subscriptions."""
    look = "import socket; [print(port, socket.socket().connect_ex(('nats', port)) == 0) for port in (4222, 8222)]"
    assert await output_in(docker, "monitor", f'python -c "{look}"') == "4222 True\n8222 False\n"


@pytest.mark.usefixtures("compose")
async def test_service_without_its_broker_is_unhealthy(docker: Docker) -> None:
    """The health check shows the problem of /readyz; when the broker is back the service is healthy again."""
    broker = await container(docker, "nats")
    await broker.stop(t=10)
    async with asyncio.timeout(PATIENCE):
        while "broker: no connection" not in (await last_check(docker, "monitor"))["Output"]:
            await asyncio.sleep(0.2)
    assert (await last_check(docker, "monitor"))["ExitCode"] != 0
    await broker.start()
    await until_healthy(docker)


@pytest.mark.usefixtures("compose")
async def test_broker_that_does_not_store_is_restarted(docker: Docker) -> None:
    """Every write fails, but the server responds: its health check ends it, and the engine restarts it."""
    await until_healthy(docker)
    before = (await shown(docker, "nats"))["State"]["Pid"]
    # As its own user: root may need another capability for that.
    fail = ["prlimit", f"--pid={before}", "--fsize=4096:4096"]
    subprocess.run(fail, check=True, user=10001, group=10001, extra_groups=[])  # noqa: ASYNC221  # takes no time
    async with asyncio.timeout(PATIENCE):
        while (await shown(docker, "nats"))["State"]["Pid"] in {before, 0}:
            await asyncio.sleep(0.2)
        while (await shown(docker, "nats"))["State"]["Health"]["Status"] != "healthy":
            await asyncio.sleep(0.2)
    assert (await output_in(docker, "store-guard", "head -n 1 /run/store-guard/state")).strip() == "ok"
    await until_healthy(docker)


async def test_stopped_service_exits_with_zero(docker: Docker, compose: Compose) -> None:
    """The init process passes SIGTERM to the service, which ends with status 0 before it would be killed."""
    compose.checked_output("stop", "--timeout", "30", *SERVICES)
    for service in SERVICES:
        state = (await shown(docker, service))["State"]
        assert (state["ExitCode"], state["OOMKilled"]) == (0, False), service
