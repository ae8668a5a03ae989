"""Failures of a cluster: each leads to one of the defined faults, with a helpful text, and leaves nothing."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest

from sandherd.settings import Settings
from spawner.runtimes.boxes.box_files import HERD, STATE
from spawner.runtimes.boxes.provider import BoxState, Command, File, ProviderError, ProviderFault
from spawner.runtimes.contract import RuntimeFailedError
from spawner.runtimes.kubernetes.factory import open_kubernetes
from tests.doubles.kubernetes.api import Fault
from tests.doubles.kubernetes.authorization import forbidden
from tests.doubles.kubernetes.cluster import IMAGE, Cluster
from tests.doubles.kubernetes.provider import opened
from tests.doubles.kubernetes.store import ApiError, Json
from tests.integration.runtimes.clusters import PODS, breaks, change, left, listening, made, pod_of, until
from tests.integration.runtimes.conftest import Boxes

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
SECRET = "a-secret-4711"
ADMISSION = {
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true': "label the namespace",
    'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi': "LimitRange, or SANDBOX_MEM",
    'pods "x" is forbidden: pod rejected: RuntimeClass "gvisor" not found': "`runtime_class` in SANDHERD_KUBERNETES",
    'pods "x" is forbidden: no PriorityClass with name urgent was found': "`priority_class` in SANDHERD_KUBERNETES",
    'pods "x" is forbidden: error looking up service account a/b: serviceaccount "b" not found': "SERVICE_ACCOUNT",
    "pods \"x\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no": "check the policy",
}
"""Texts of servers, and a part of the remedy in the error."""
QUOTA = 'pods "x" is forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4'


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster of one test: its faults affect no other test."""
    with Cluster() as one:
        yield one


@pytest.fixture
async def pods(cluster: Cluster) -> AsyncIterator[Boxes]:
    async with made(cluster) as boxes:
        yield boxes


async def refused(boxes: Boxes, **changed: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await boxes.make(**changed)
    return caught.value


@pytest.mark.parametrize(
    ("error", "fault", "expected_text"),
    [
        (ApiError(403, "Forbidden", QUOTA), ProviderFault.QUOTA, ["exceeded quota: small", "SANDHERD_RUNTIME_LIMITS"]),
        (forbidden("create", "pods"), ProviderFault.REFUSED, ["role to create pods", "deploy/kubernetes/role.yaml"]),
        (ApiError(401, "Unauthorized", f"no such token: {SECRET}"), ProviderFault.REFUSED, ["KUBECONFIG"]),
        (
            ApiError(400, "BadRequest", 'admission webhook "policy" denied the request: no such image'),
            ProviderFault.REFUSED,
            ["admission webhook"],
        ),
        (ApiError(422, "Invalid", "spec.containers[0].image: Required value"), ProviderFault.REFUSED, ["Required"]),
        (ApiError(504, "Timeout", "request did not complete"), ProviderFault.TIMED_OUT, ["did not complete"]),
        *(
            (ApiError(403, "Forbidden", text), ProviderFault.REFUSED, [text, remedy])
            for text, remedy in ADMISSION.items()
        ),
    ],
)
async def test_refused_creation_states_why_and_leaves_nothing(
    cluster: Cluster, pods: Boxes, error: ApiError, fault: ProviderFault, expected_text: list[str]
) -> None:
    """The error of each refusal has its remedy; none is retried, and nothing is left."""
    breaks(cluster, Fault("POST", PODS, error, times=99))
    caught = await refused(pods)
    assert caught.fault is fault
    assert all(text in str(caught) for text in expected_text), str(caught)
    assert SECRET not in str(caught)
    assert fault is not ProviderFault.REFUSED or "missing" not in str(caught)
    assert [call for call in cluster.api.requested if call[0] == "POST"].__len__() == 1
    assert left(cluster) == []


async def test_throttled_request_waits_as_requested(cluster: Cluster, pods: Boxes) -> None:
    """A short wait in the header of the reply is waited for; a long one is left to the caller."""
    busy = ApiError(429, "TooManyRequests", "the server has received too many requests and has asked us to try again")
    breaks(cluster, Fault("POST", PODS, busy, headers={"Retry-After": "1"}, times=2))
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await pods.make()).alive
    assert loop.time() - began >= 2
    breaks(cluster, Fault("POST", PODS, busy, headers={"Retry-After": "600"}, times=99))
    caught = await refused(pods)
    assert (caught.fault, caught.wait) == (ProviderFault.RATE_LIMITED, 600)


@pytest.mark.parametrize("after", [False, True], ids=["not done", "done and not answered"])
@pytest.mark.parametrize("step", [("POST", PODS), ("PATCH", PODS), ("GET", PODS)])
async def test_failed_step_or_lost_reply_is_retried(
    cluster: Cluster, pods: Boxes, step: tuple[str, str], after: bool
) -> None:
    """In the end there is one pod, whose program was started once."""
    error = None if after else ApiError(500, "InternalError", "etcdserver: leader changed")
    breaks(cluster, Fault(*step, error, after=after, times=2))
    box = await pods.make("echo life >> lives; exec sleep 100")
    assert (box.alive, box.runs, len(left(cluster))) == (True, 1, 1)
    error_text = await pods.sh(box, "until [ -s lives ]; do sleep 0.05; done; cat lives")
    assert error_text.out == b"life\n"


async def test_abandoned_creation_is_continued_by_another_spawner(cluster: Cluster, pods: Boxes) -> None:
    """The next spawner writes the missing files of an abandoned pod and starts its program."""
    breaks(cluster, Fault("GET", "/exec", ApiError(503, "ServiceUnavailable", "apiserver not ready"), times=1))
    spec = pods.spec()
    with pytest.raises(ProviderError) as caught:
        await pods.provider.create(spec)
    assert caught.value.fault is ProviderFault.TRANSIENT
    found = await pods.provider.get(spec.name)
    assert found is not None
    assert (found.state, found.runs, found.alive) == (BoxState.CREATING, 0, True)
    other = await opened(cluster)()
    try:
        assert (await other.create(spec)).runs == 1
    finally:
        await other.close()


async def test_unschedulable_pod_is_given_up_in_time(cluster: Cluster) -> None:
    """The error has the scheduler's message, and the pod is removed."""
    cluster.now(lambda: setattr(cluster.kubelet, "memory", 1 << 20))
    async with made(cluster, pending=5) as boxes:  # within which its scheduler must report it
        caught = await refused(boxes)
    assert caught.fault is ProviderFault.QUOTA
    assert "Insufficient memory" in str(caught)
    assert left(cluster) == []


@pytest.mark.parametrize(
    ("error_text", "at_once"),
    [
        ("failed to authorize: failed to fetch anonymous token: 401 Unauthorized", True),
        ("dial tcp 10.0.0.1:443: i/o timeout", False),
    ],
)
async def test_unpullable_image_is_reported(cluster: Cluster, error_text: str, at_once: bool) -> None:
    """The error comes at once if no retry would help; else after the time for which a pod may wait."""
    cluster.now(lambda: setattr(cluster.kubelet, "pull_error", error_text))
    async with made(cluster, pending=60 if at_once else 5) as boxes:
        caught = await refused(boxes)
    assert caught.fault is ProviderFault.REFUSED
    assert IMAGE in str(caught)
    assert "SANDHERD_KUBERNETES_PULL_SECRETS" in str(caught)
    assert left(cluster) == []


async def test_evicted_pod_is_distinguished_from_an_oom_kill(cluster: Cluster, pods: Boxes) -> None:
    """An evicted pod is lost: nothing can be written, read or started in it."""
    box = await pods.make()
    message = "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 777784Ki."
    await cluster.later(cluster.kubelet.evict(pod_of(cluster, box.name), "Evicted", message))
    found = await pods.until(box, lambda one: one is not None and not one.alive)
    assert found is not None
    assert (found.state, found.runs) == (BoxState.FAILED, 1)
    assert found.end is not None
    assert (found.end.code, found.end.out_of_memory) == (None, False)
    assert "evicted" in found.end.reason
    assert "ephemeral-storage" in found.end.reason
    for requested in (
        pods.provider.start(box.name),
        pods.provider.write_files(box.name, [File(f"{STATE}/x", b"x")]),
        pods.provider.read(box.name, f"{STATE}/task.json", 1000),
    ):
        with pytest.raises(ProviderError) as caught:
            await requested
        assert caught.value.fault is ProviderFault.NOT_FOUND
    await pods.provider.remove(box.name)
    assert left(cluster) == []


async def test_pod_of_a_lost_node_is_reported(cluster: Cluster, pods: Boxes) -> None:
    """The cluster sets a condition when it removes the pod of a lost node."""
    box = await pods.make()
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "Taint"}
    lost = {"deletionTimestamp": "2026-11-21T12:00:00Z", "deletionGracePeriodSeconds": 2}
    change(cluster, box.name, {"metadata": lost, "status": {"conditions": [condition]}})
    found = await pods.provider.get(box.name)
    assert found is not None
    assert found.alive is False
    assert found.end is not None
    assert "node" in found.end.reason


async def test_externally_removed_pod_is_reported(cluster: Cluster, pods: Boxes) -> None:
    """The changes name the pod, and it is not found."""
    async with listening(pods) as received:
        box = await pods.make()
        await until(lambda: box.name in received)
        received.clear()
        await cluster.later(cluster.kubelet.delete(pod_of(cluster, box.name), 0))
        await until(lambda: box.name in received)
    assert await pods.provider.get(box.name) is None


@pytest.mark.parametrize("how", ["the history is lost", "the connection is cut", "the server is out of order"])
async def test_changes_continue_after_any_failure_of_the_watch(cluster: Cluster, pods: Boxes, how: str) -> None:
    """Changes during the failure are reported, also if the server no longer has them one by one."""
    box = await pods.make("until test -e end; do sleep 0.05; done; exit 3")
    async with listening(pods) as received:
        await until(lambda: box.name in received)
        received.clear()
        if how == "the history is lost":
            cluster.now(cluster.store.forget)
        else:
            cluster.now(cluster.api.cut)
        if how == "the server is out of order":  # it responds with 410 at once, instead of with an event
            breaks(cluster, Fault("GET", PODS, ApiError(410, "Expired", "too old resource version: 1 (2)"), times=1))
        await pods.sh(box, "touch end")
        await until(lambda: box.name in received)
    found = await pods.until(box, lambda one: one is not None and one.end is not None)
    assert found is not None
    assert found.end is not None
    assert found.end.code == 3


async def test_foreign_pod_of_the_same_name_is_left_alone(cluster: Cluster, pods: Boxes) -> None:
    """The creation is refused, and the pod stays unchanged."""
    spec = pods.spec(labels={HERD: "another"})
    await pods.provider.create(spec)
    with pytest.raises(ProviderError) as caught:
        await pods.provider.create(pods.spec(name=spec.name))
    assert caught.value.fault is ProviderFault.REFUSED
    assert len(left(cluster)) == 1


async def test_interrupted_command_is_reported(cluster: Cluster, pods: Boxes) -> None:
    """The error says that the command may have run, so that the caller can check."""
    box = await pods.make()
    running = asyncio.create_task(pods.sh(box, "touch began; sleep 100"))
    await pods.sh(box, "until test -e began; do sleep 0.05; done")
    await pods.provider.stop(box.name, 1)
    (ran,) = await asyncio.gather(running, return_exceptions=True)
    assert getattr(ran, "fault", None) is ProviderFault.TRANSIENT or getattr(ran, "code", None) == 137


async def test_unavailable_kubelet_is_reported(cluster: Cluster, pods: Boxes) -> None:
    """The error has the server's last message, though it no longer reads the request, and not KUBECONFIG."""
    box = await pods.make()
    why = "error dialing backend: dial tcp 10.0.0.7:10250: connect: connection refused"
    cluster.now(lambda: setattr(cluster.api, "no_kubelet", why))
    for _ in range(5):  # what is sent may arrive before the connection is closed
        with pytest.raises(ProviderError) as caught:
            await pods.provider.write_files(box.name, [File(f"{STATE}/more", b"x" * 1_000_000)])
        assert caught.value.fault is ProviderFault.TRANSIENT
        assert "10250: connect: connection refused; the kubelet of its node" in str(caught.value)
        assert "KUBECONFIG" not in str(caught.value)
    cluster.now(lambda: setattr(cluster.api, "no_kubelet", ""))


async def test_unreachable_cluster_is_reported_with_the_remedy(cluster: Cluster) -> None:
    """The error for an address without a server has a remedy."""
    settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig)
    text = cluster.kubeconfig.read_text().replace(cluster.host, "http://127.0.0.1:9")
    (cluster.folder / "elsewhere").write_text(text)
    with pytest.raises(RuntimeFailedError, match="check KUBECONFIG"):
        await open_kubernetes(settings.model_copy(update={"kubernetes_config": cluster.folder / "elsewhere"}), "h1")


async def test_opening_applies_the_network_policy_and_reports_gaps(cluster: Cluster) -> None:
    """A second opening changes nothing; a changed policy is restored; missing Sandboxes are refused."""
    settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, nats_url="nats://10.9.8.7:4222")
    settings = settings.model_copy(update={"git_proxy_url": "http://herd-git-proxy.agents.svc:9402"})
    for _ in range(2):
        await (await open_kubernetes(settings, "h1")).close()
        (policy,) = cluster.objects("networkpolicies")
        assert policy["metadata"]["name"] == "sandherd-h1"
        assert policy["spec"]["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.9.8.7/32"}}]
        (peer,), (port,) = (policy["spec"]["egress"][2][name] for name in ("to", "ports"))
        assert (port["port"], *peer["namespaceSelector"]["matchLabels"].values()) == (9402, "agents")
        cluster.now(
            lambda: cluster.store.patch("networkpolicies", "sandherd", "sandherd-h1", {"spec": {"egress": [{}]}})
        )
    with pytest.raises(RuntimeFailedError, match="SANDHERD_KUBERNETES_KIND=pod"):
        await open_kubernetes(settings.model_copy(update={"kubernetes_kind": "sandbox"}), "h1")
    with pytest.raises(RuntimeFailedError, match="SANDHERD_KUBERNETES_OWNER"):
        await open_kubernetes(settings.model_copy(update={"kubernetes_owner": "Deployment/none"}), "h1")
    with pytest.raises(RuntimeFailedError, match="SANDBOX_IMAGE"):
        await open_kubernetes(settings.model_copy(update={"sandbox_image": None}), "h1")


async def test_missing_right_is_reported(cluster: Cluster) -> None:
    """The deployed role permits all of the spawner's requests, and each permission is needed."""
    async with made(cluster) as boxes:
        rules = cluster.api.rules
        for verb in ("create", "patch", "list", "delete"):
            cluster.now(partial(setattr, cluster.api, "rules", without(rules, "pods", verb)))
            with pytest.raises(ProviderError, match=f"role to {verb} pods") as caught:
                await pods_life(boxes)
            assert caught.value.fault is ProviderFault.REFUSED
        cluster.now(partial(setattr, cluster.api, "rules", without(rules, "pods/exec", "create")))
        with pytest.raises(ProviderError, match="role to create and get pods/exec") as caught:
            await pods_life(boxes)
        assert caught.value.fault is ProviderFault.REFUSED
        cluster.now(lambda: setattr(cluster.api, "rules", rules))
        await pods_life(boxes)


def without(rules: Any, resource: str, verb: str) -> list[Json]:
    return [
        {**rule, "verbs": [one for one in rule["verbs"] if resource not in rule["resources"] or one != verb]}
        for rule in rules
    ]


async def pods_life(boxes: Boxes) -> None:
    box = await boxes.make()
    await boxes.provider.find({HERD: boxes.herd})
    await boxes.provider.remove(box.name)


async def test_concurrent_spawners_apply_the_network_policy(cluster: Cluster) -> None:
    """The older policy of a spawner that was first is corrected."""
    settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig, nats_url="nats://10.9.8.7:4222")
    await (await open_kubernetes(settings, "h1")).close()
    missing = ApiError(404, "NotFound", 'networkpolicies "sandherd-h1" not found')
    breaks(cluster, Fault("PATCH", "/networkpolicies", missing, times=1))
    later = settings.model_copy(update={"nats_url": "nats://10.9.8.8:4222"})
    await (await open_kubernetes(later, "h1")).close()
    (policy,) = cluster.objects("networkpolicies")
    assert policy["spec"]["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.9.8.8/32"}}]


async def test_sandboxes_are_removed_with_the_spawners_deployment(cluster: Cluster) -> None:
    """The cluster removes every sandbox of a deleted Deployment."""
    deployment: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "spawner"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}},
        },
    }
    owner = cluster.now(lambda: cluster.store.create("deployments", "sandherd", deployment))
    settings = Settings(sandbox_image=IMAGE, kubernetes_config=cluster.kubeconfig)
    settings = settings.model_copy(update={"kubernetes_owner": "Deployment/spawner"})
    boxes = Boxes((await open_kubernetes(settings, "h1"))._provider)
    try:
        box = await boxes.make("trap 'exit 0' TERM; while :; do sleep 0.1; done")
        assert len(cluster.objects("networkpolicies")) == 1
        await cluster.later(cluster.api._end("deployments", owner, 0))
        assert await boxes.until(box, lambda one: one is None) is None
    finally:
        await boxes.close()
    assert left(cluster) + cluster.objects("networkpolicies") == []


async def test_secret_is_in_no_object_event_or_url(cluster: Cluster, pods: Boxes) -> None:
    """No object, event of one, or URL of a request has a secret."""
    box = await pods.make(files=[File(f"{STATE}/joiner.creds", SECRET.encode())])
    await pods.provider.write_files(box.name, [File(f"{STATE}/more", SECRET.encode())])
    command = Command(argv=["sh", "-c", f"echo {SECRET}"], environment={"TOKEN": SECRET})
    assert (await pods.provider.run(box.name, command)).out.strip() == SECRET.encode()
    assert await pods.provider.read(box.name, f"{STATE}/joiner.creds", 1000) == SECRET.encode()
    assert SECRET not in str(cluster.store.objects) + str(cluster.store.history)
    assert SECRET not in str(cluster.api.requested)
    assert cluster.token not in str(cluster.api.requested) + repr(pods.provider)
