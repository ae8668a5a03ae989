"""docs/helm.md, and docs/upgrade.md with it: running their commands creates all that is required."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.integration.deploy.charts import ROOT, Json, pods
from tests.patience import PATIENCE

PAGE = (ROOT / "docs/helm.md").read_text()
UPGRADE = (ROOT / "docs/upgrade.md").read_text().partition("\n## Helm\n")[2].partition("\n## ")[0]
STUB = """#!{python}
import json, os, pathlib, subprocess, sys
words = sys.argv[1:]
with open("{log}", "a") as log:
    log.write(json.dumps([pathlib.Path(sys.argv[0]).name, *words]) + "\\n")
if words[:1] == ["upgrade"] and "deploy/helm/sandherd" in words:
    first = words[1] == "--install"
    how = ["template", *words[2:]] if first else ["template", "--is-upgrade", *words[1:]]
    done = subprocess.run(["{helm}", *how], capture_output=True, text=True)
    pathlib.Path("{made}" if first else "{again}").write_text(done.stdout)
    sys.stderr.write(done.stderr)
    sys.exit(done.returncode)
"""
"""A kubectl and a helm that write down their arguments; our own chart is really rendered."""


NEED_A_BROKER = ("sandherd run", "port-forward", "sandherd provision")
"""Commands that are not run here; test_deploy_setting_up.py runs `provision --identity`."""


class Followed:
    """The result of following the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        log, made, again = folder / "log", folder / "made.yaml", folder / "again.yaml"
        bin_ = folder / "bin"
        bin_.mkdir()
        for name in ("kubectl", "helm"):
            helm = Path(sys.executable).parent / "helm"
            (bin_ / name).write_text(STUB.format(python=sys.executable, log=log, made=made, again=again, helm=helm))
            (bin_ / name).chmod(0o755)
        (folder / "deploy").symlink_to(ROOT / "deploy")
        (folder / "values.yaml").write_text(block("yaml"))
        (folder / "database-url").write_text("postgresql://u:p@h/sandherd\n")
        self._run("\n".join(line for line in commands() if not any(words in line for words in NEED_A_BROKER)))
        self.requested: list[list[str]] = [json.loads(line) for line in log.read_text().splitlines()]
        self.upgrade_output = self._run("\n".join(commands(UPGRADE)))
        self.upgraded, self.objects = again.read_text(), objects(made.read_text())

    def _run(self, script: str) -> str:
        path = f"{self.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = {"PATH": path, "HOME": str(self.folder)}
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def secrets(self) -> dict[str, set[str]]:
        """Each Secret that was created, and its keys."""
        found = {}
        for words in self.requested:
            if words[:4] == ["kubectl", "create", "secret", "generic"]:
                assert words[5:7] == ["-n", "nats" if words[4] == "sandherd-store-guard" else "sandherd"]
                found[words[4]] = keys(self.folder, words[7].removeprefix("--from-file="))
        return found


def keys(folder: Path, given: str) -> set[str]:
    """The keys of a Secret from kubectl's arguments: a folder's files, or key=file."""
    key, equals, path = given.partition("=")
    if equals:
        assert (folder / path).is_file()
        return {key}
    return {file.name for file in (folder / given).iterdir()}


def objects(text: str) -> list[Json]:
    return [one for one in yaml.load_all(text, yaml.CSafeLoader) if one]


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def commands(page: str = PAGE) -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    return [line.removeprefix("$ ") for text in blocks for line in text.splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return Followed(tmp_path_factory.mktemp("page"))


def test_every_secret_that_the_chart_names_was_made(followed: Followed) -> None:
    """Each has the keys that are mounted or read, and none is created without a user."""
    made = followed.secrets()
    assert made.pop("sandherd-store-guard") == {"nats.creds", "watcher.creds"}, "for the pods of the broker"
    named = {name for _, pod in pods(followed.objects) for name in wanted(pod)}
    assert {secret for secret, _ in named} == made.keys()
    assert {(secret, key) for secret, key in named if key and key not in made[secret]} == set()


def wanted(pod: Json) -> list[tuple[str, str]]:
    """Each Secret of a pod, with the key that it uses: in a variable, or as the file that a variable names."""
    (container,) = pod["spec"]["containers"]
    variables = container.get("env", [])
    refs = [one["valueFrom"]["secretKeyRef"] for one in variables if "valueFrom" in one]
    found = [(one["name"], one["key"]) for one in refs]
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for volume in pod["spec"]["volumes"]:
        if "secret" in volume:
            place = places[volume["name"]] + "/"
            files = [one["value"].removeprefix(place) for one in variables if one.get("value", "").startswith(place)]
            found += [(volume["secret"]["secretName"], file) for file in files or [""]]
    return found


def test_the_page_s_broker_is_the_only_one_that_is_reached(followed: Followed) -> None:
    """By its name the policies know the broker's namespace: with another name any address with the port would do."""
    (policy,) = [one for one in followed.objects if one["metadata"]["name"] == "sandherd-broker"]
    (rule,) = policy["spec"]["egress"]
    assert rule["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "nats"}}}]


def test_the_root_s_keys_stay_where_they_are(followed: Followed) -> None:
    """No command copies the root keys anywhere, and public data needs no Secret."""
    words = " ".join(word for line in followed.requested for word in line)
    assert "identity/root" not in words
    (nats,) = [line for line in followed.requested if line[:4] == ["helm", "upgrade", "--install", "nats"]]
    merge = (followed.folder / nats[-1]).read_text()
    assert json.loads(merge)["config"]["merge"].keys() == {"operator", "system_account", "resolver_preload"}
    # Not the word "SEED", which the random text of a token may contain.
    assert not re.search(r"-----BEGIN|\bS[OAUNCX][A-Z2-7]{56}\b", merge)


@pytest.mark.parametrize("page", [PAGE, UPGRADE], ids=["helm.md", "upgrade.md"])
def test_every_command_may_be_repeated(page: str) -> None:
    """An upgrade repeats the commands of the install: an existing object is no error."""
    made = [line for line in commands(page) if "kubectl create" in line]
    assert made
    for line in made:
        assert "--dry-run=client -o yaml | kubectl apply -f -" in line
    assert not [line for line in commands(page) if re.search(r"helm install\b", line)]


def test_the_test_that_is_shown_is_one_of_the_release(followed: Followed) -> None:
    """Name and namespace are those of the install."""
    tests = [line for line in followed.requested if line[:2] == ["helm", "test"]]
    assert tests == [["helm", "test", "sandherd", "-n", "sandherd"]]
    assert any(one["metadata"].get("annotations", {}).get("helm.sh/hook") == "test" for one in followed.objects)


def test_an_upgrade_as_its_page_says_is_one_of_what_was_installed(followed: Followed) -> None:
    """The upgrade keeps what exists, uses the chart of the same release, and has both kinds of migrations."""
    assert re.search(r"\bunchanged\b", followed.upgrade_output)
    assert not re.search(r"\bchanged\b", followed.upgrade_output)
    assert objects(followed.upgraded) == followed.objects
    jobs = {one["metadata"]["name"] for one in followed.objects if one["kind"] == "Job"}
    assert {"sandherd-migrate", "sandherd-migrate-after"} <= jobs
