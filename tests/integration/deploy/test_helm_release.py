"""The rendered chart is run: real services on a real broker and database, configured like their pods."""

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandherd.bus.auth.setup_permissions import INBOX
from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import write_secret
from sandherd.bus.identity.deployment import Deployment
from sandherd.bus.identity.minter import Registrar
from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.commands import CommandHarness, RetryPolicy, TaskSpec
from sandherd.contracts.requests import TaskView
from spawner.runtimes.kubernetes import rbac
from tests.doubles.kubernetes.cluster import Cluster
from tests.integration.deploy.charts import SERVICES, of_kind, rendered
from tests.integration.deploy.installed import Installed, until


@pytest.fixture
async def installed(postgres: str) -> AsyncIterator[Installed]:
    folder = Path(tempfile.mkdtemp(prefix="installed-"))
    with Cluster() as cluster:
        found = Installed(folder, cluster, postgres)
        try:
            await found.begin()
            yield found
        finally:
            await found.close()
            for log in folder.glob("*.log"):  # shown where the test fails
                print(f"{log.name}:\n{log.read_text()[-2000:]}")
            shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(900)
async def test_a_release_works(installed: Installed) -> None:
    """Every probe has the right reply, `helm test` shows what is unhealthy, and a task completes in a pod.

    It is one test, as everything needs one start: the jobs first, then each service as its own pod says.
    """
    await all_ready(installed)
    await what_comes_after_new_code_is_done(installed)
    await keda_finds_what_waits(installed)
    await a_task_is_done_with_the_rights_of_the_role(installed)
    await a_lost_consumer_is_seen_by_the_readiness_probe(installed)
    await a_lost_service_is_named_by_the_test(installed)


async def all_ready(installed: Installed) -> None:
    for name in SERVICES:
        await until(lambda name=name: well(installed, name), f"{name} is not ready")  # type: ignore[misc]  # of a lambda
        for kind in ("startupProbe", "livenessProbe"):
            assert (await installed.probe(name, kind))[0] == 200
        status, text = await installed.get(name, "/metrics")
        assert (status, "sandherd_ready 1.0" in text) == (200, True)
    status, output = await installed.test()
    assert status == 0, output
    assert output.count(": ready\n") == len(SERVICES)


async def what_comes_after_new_code_is_done(installed: Installed) -> None:
    """Check the second kind of migrations, while the services of this version are connected."""
    done = await asyncio.to_thread(installed.node.run, installed.pods["migrate-after"])
    assert done.returncode == 0, done.stdout + done.stderr


async def well(installed: Installed, name: str) -> bool:
    assert installed.children[name].alive, f"{name} has ended"
    return (await installed.probe(name, "readinessProbe"))[0] == 200


async def keda_finds_what_waits(installed: Installed) -> None:
    """Check KEDA's request for each named consumer: with the account's key, found as the notes say."""
    account = await installed.account("HERD")
    values = {"enabled": True, "monitor": f"127.0.0.1:{installed.monitor}", "account": account}
    for scaled in of_kind(rendered({"autoscaling": values}), "ScaledObject"):
        assert scaled["spec"]["triggers"]
        for trigger in scaled["spec"]["triggers"]:
            wanted = trigger["metadata"]
            query = f"acc={wanted['accountID']}&consumers=true&config=true"
            (found,) = await installed.jsz(f"http://{wanted['natsServerMonitoringEndpoint']}/jsz?{query}")
            assert found["id"] == wanted["accountID"]
            (stream,) = [one for one in found["stream_detail"] if one["name"] == wanted["stream"]]
            (consumer,) = [one for one in stream["consumer_detail"] if one["name"] == wanted["consumer"]]
            assert consumer["num_pending"] + consumer["num_ack_pending"] >= 0


async def a_task_is_done_with_the_rights_of_the_role(installed: Installed) -> None:
    """Check that the Role permits each call of the spawner: a cluster would refuse any other."""
    creds = installed.herd / "creds/client-default/nats.creds"
    context = Context(nats_url=installed.url, credentials=creds, home=installed.folder, project="default")
    async with Herd.connect(context) as herd:
        harness = CommandHarness(argv=["/bin/sh", "-c", "echo done"])
        task = await herd.submit(TaskSpec(text="do it", harness=harness, retry=RetryPolicy(max_attempts=1)))
        views: list[TaskView] = []

        async def ended() -> bool:
            with suppress(HerdError):  # it does not exist yet
                views[:] = [await herd.task(task)]
            return bool(views and views[0].ended_at)

        await until(ended, "the task does not end")
        assert views[0].state == "completed", views[0]
        await until(lambda: gone(installed), "its pod stays")
    used = {found for method, path in installed.cluster.api.requested if (found := right(method, path))}
    allowed = {
        (group, resource, verb)
        for rule in rbac.RULES
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("", "pods", "create"), ("", "pods", "delete"), ("networking.k8s.io", "networkpolicies", "create")} <= used
    assert used <= allowed


async def gone(installed: Installed) -> bool:
    return await asyncio.to_thread(lambda: installed.cluster.objects("pods") == [])


def right(method: str, path: str) -> tuple[str, str, str] | None:
    """The group, resource and verb of a call. Discovery of kinds is not in our rules."""
    plain, _, query = path.partition("?")
    found = re.fullmatch(r"/(?:api|apis/([^/]+))/[^/]+/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?(?:/([^/]+))?", plain)
    if found is None:
        return None
    group, _, resource, name, sub = found.groups()
    verbs = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete" if name else "deletecollection"}
    looking = "get" if name else "watch" if "watch=" in query else "list"
    return group or "", f"{resource}/{sub}" if sub else resource, verbs.get(method, looking)


async def a_lost_consumer_is_seen_by_the_readiness_probe(installed: Installed) -> None:
    """Check that a service without its consumer is not restarted, but gets no requests, although it is healthy."""
    path = installed.folder / "all.creds"
    write_secret(path, Registrar(Deployment(installed.herd).identity).mint_stream_admin())
    async with Bus.open(
        installed.url, name="t", identity=ConnectionIdentity.file(path), inbox=INBOX, connect_timeout=10
    ) as bus:
        await bus.js.delete_consumer("EVENTS", "event-ingest")

    async def red() -> bool:
        status, text = await installed.probe("event-ingest", "readinessProbe")
        return status == 503 and "event-ingest" in text

    await until(red, "nobody saw it")
    status, output = await installed.test()
    assert status == 1
    assert "NOT READY" in output
    assert output.count(": ready\n") == len(SERVICES) - 1


async def a_lost_service_is_named_by_the_test(installed: Installed) -> None:
    await installed.children["monitor"].kill()
    status, output = await installed.test()
    assert status == 1
    assert "no answer" in output
    assert output.count(": ready\n") == len(SERVICES) - 2
