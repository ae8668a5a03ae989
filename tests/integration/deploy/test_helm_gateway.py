"""The HTTP API in the chart: its Service, and what `gateway` in the values adds."""

from typing import Any

from gateway.downloads import MAX_BYTES
from tests.integration.deploy.charts import PODS, called, of_kind, refusal, rendered, variables

INGRESS: dict[str, Any] = {"enabled": True, "host": "api.example.org", "tlsSecret": "api-tls", "className": "nginx"}


def test_api_has_a_service_and_knows_its_names() -> None:
    """Clients in the cluster reach it by the names of its Service, and no other service has the port."""
    objects = rendered({"gateway": {"hosts": ["more.example"]}})
    (port,) = called(objects, "Service", "gateway-api")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (80, "api")
    (container,) = called(objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"]
    environment = variables(container)
    names = f"{PODS}-gateway-api"
    assert environment["SANDHERD_GATEWAY_HOSTS"] == f"{names},{names}.agents,{names}.agents.svc,more.example"
    assert (environment["SANDHERD_GATEWAY_HOST"], environment["SANDHERD_GATEWAY_PORT"]) == ("0.0.0.0", "8080")
    (other,) = called(objects, "Deployment", "monitor")["spec"]["template"]["spec"]["containers"]
    assert "SANDHERD_GATEWAY_PORT" not in variables(other)
    assert not of_kind(objects, "Ingress", "HorizontalPodAutoscaler")


def test_downloads_fit_into_the_temporary_folder() -> None:
    """The gateway stores files there while it sends them; Kubernetes evicts a pod whose folder exceeds its limit."""
    pod = called(rendered({}), "Deployment", "gateway")["spec"]["template"]["spec"]
    (folder,) = [volume["emptyDir"] for volume in pod["volumes"] if volume["name"] == "tmp"]
    assert int(folder["sizeLimit"].removesuffix("Mi")) * 1024 * 1024 > MAX_BYTES


def test_ingress_has_tls_or_is_refused() -> None:
    """Tokens are sent with each request, so there is no Ingress without a certificate, also for the pages."""
    objects = rendered({"gateway": {"ingress": INGRESS}})
    spec = called(objects, "Ingress", "gateway-api")["spec"]
    assert spec["tls"] == [{"hosts": ["api.example.org"], "secretName": "api-tls"}]
    assert [path["path"] for path in spec["rules"][0]["http"]["paths"]] == ["/"]
    (container,) = called(objects, "Deployment", "gateway")["spec"]["template"]["spec"]["containers"]
    assert "api.example.org" in variables(container)["SANDHERD_GATEWAY_HOSTS"]
    for missing in ("host", "tlsSecret"):
        assert "set host and tlsSecret" in refusal({"gateway": {"ingress": {**INGRESS, missing: ""}}})


def test_policy_and_scaling_are_the_gateways() -> None:
    """Its API port is open to the named peers; with scaling, the Deployment begins with the minimum of replicas."""
    peers = [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}]
    objects = rendered({"gateway": {"from": peers, "autoscaling": {"enabled": True, "min": 3, "max": 9, "cpu": 50}}})
    (rule,) = called(objects, "NetworkPolicy", "api")["spec"]["ingress"]
    assert (rule["from"], rule["ports"]) == (peers, [{"protocol": "TCP", "port": "api"}])
    scaler = called(objects, "HorizontalPodAutoscaler", "gateway")["spec"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 9)
    assert called(objects, "Deployment", "gateway")["spec"]["replicas"] == 3
    assert called(objects, "Deployment", "monitor")["spec"]["replicas"] == 2
    assert "more than max" in refusal({"gateway": {"autoscaling": {"enabled": True, "min": 9, "max": 3, "cpu": 50}}})


def test_sign_in_by_a_provider_is_the_gateways() -> None:
    """Only the gateway gets the client's secret, as a file, and reaches the provider; the spawner knows the issuer."""
    values = {
        "gateway": {"oidc": {"secret": "sign-in", "to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}},
        "settings": {"oidc_issuer": "https://id.example.org", "oidc_grants": ["engineers=p1:work"]},
    }
    objects = rendered(values)
    pods = {name: called(objects, "Deployment", name)["spec"]["template"]["spec"] for name in ("gateway", "spawner")}
    environment = {name: variables(pod["containers"][0]) for name, pod in pods.items()}
    assert environment["gateway"]["SANDHERD_OIDC_CLIENT_SECRET_FILE"] == "/run/sandherd-oidc/client-secret"
    assert "SANDHERD_OIDC_CLIENT_SECRET_FILE" not in environment["spawner"]
    mounted = {volume["name"]: volume.get("secret", {}).get("secretName") for volume in pods["gateway"]["volumes"]}
    assert mounted["oidc"] == "sign-in"
    (rule,) = called(objects, "NetworkPolicy", "oidc")["spec"]["egress"]
    assert rule["to"] == [{"ipBlock": {"cidr": "198.51.100.0/24"}}]
    assert not [one for one in of_kind(rendered({}), "NetworkPolicy") if one["metadata"]["name"].endswith("oidc")]
