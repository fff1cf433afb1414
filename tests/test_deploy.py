"""The deploy kit: what can be run here runs, what cannot is linted, and manifests fit together."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import promql_parser
import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

import pollwise
from pollwise.cli.app import app
from pollwise.durations import seconds
from tests.observe.test_dashboards import metric_of, selectors
from tests.support.daemons import free_port, wait_until
from tests.support.servers import Postgres, debian

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "deploy"
BIN = Path(sys.executable).parent
COMPOSE = yaml.safe_load((KIT / "compose.yaml").read_text(encoding="utf-8"))
UNITS = sorted((KIT / "systemd").glob("*.service"))
MANIFESTS = [
    document
    for path in sorted((KIT / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
]
PODS = {
    each["metadata"]["name"]: each["spec"]["template"]
    for each in MANIFESTS
    if each["kind"] in ("Deployment", "Job")
}


def dockerfile(instruction: str) -> list[str]:
    """The JSON list of CMD, or of the command of HEALTHCHECK."""
    text = (KIT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    [line] = re.findall(rf"^{instruction}\b.*$", text, re.MULTILINE)
    words: list[str] = json.loads(line[line.index("[") :])
    return words


def words_of(command: list[str]) -> Iterator[list[str]]:
    """The words of each `pollwise` in a command, which may be a line for a shell."""
    if command[:2] == ["sh", "-c"]:
        for part in re.split(r"&&|;", command[2]):
            yield shlex.split(part)
    else:
        yield command


def commands() -> dict[str, list[str]]:
    """Every `pollwise` command of the kit, by where it is."""
    found = {"Dockerfile": dockerfile("CMD")}
    listed: dict[str, list[str]] = {
        f"compose {name}": service["command"]
        for name, service in COMPOSE["services"].items()
        if "command" in service
    }
    for name, pod in PODS.items():
        listed[f"kubernetes {name}"] = pod["spec"]["containers"][0]["command"]
    for name, command in listed.items():
        for n, words in enumerate(words_of(command)):
            found[f"{name} {n}"] = words
    for unit in UNITS:
        [line] = re.findall(r"^ExecStart=(.*)$", unit.read_text(encoding="utf-8"), re.MULTILINE)
        found[unit.name] = ["pollwise", *shlex.split(line)[1:]]
    return {name: words for name, words in found.items() if words[0] == "pollwise"}


@pytest.mark.parametrize("name", commands())
def test_each_command_exists_with_its_options(name: str) -> None:
    words = commands()[name][1:]
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):  # a group
        context = command.context_class(command)
        assert words, f"{name}: no command is named"
        _, command, words = command.resolve_command(context, words)
    command.make_context(command.name, words)  # raises for what is unknown or missing


def test_the_dockerfile_passes_its_linter() -> None:
    done = subprocess.run([BIN / "hadolint", KIT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_image_has_all_that_it_copies() -> None:
    text = (KIT / "Dockerfile").read_text(encoding="utf-8")
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    copied = [
        path
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
        for path in line.split()
    ]
    assert "deploy/app" in copied
    for path in copied:
        assert (ROOT / path).exists(), path
        assert f"!{path}" in ignored, f"{path} is not sent to the builder"


def pins_of(name: str) -> set[str]:
    """The packages of a file of pins, each with its version and hashes."""
    text = (ROOT / "requirements" / name).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = re.findall(
        r"^([a-z0-9][\w.-]*==[^ ]+).*?((?: +--hash=sha256:[0-9a-f]{64})+)", text, re.MULTILINE
    )
    assert len(lines) == len(re.findall(r"^[a-z0-9]", text, re.MULTILINE)), "each has a hash"
    return {f"{pin} {' '.join(hashes.split())}" for pin, hashes in lines}


def test_the_image_installs_only_what_has_a_hash_of_the_tests() -> None:
    text = (KIT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    installs = [part for part in text.split("&&") if re.search(r"/pip install", part)]
    assert len(installs) == 3
    for each in installs:
        assert "--no-deps" in each
        assert "--require-hashes" in each or "--no-index" in each, each
    assert "--no-build-isolation" in text
    files = re.findall(r"-r /src/(\S+)", text)
    assert files == ["image.txt", "demo.txt"]
    for name in files:
        assert pins_of(name) <= pins_of("dev.txt"), name


def test_both_stages_of_the_image_have_one_base_that_a_digest_can_name() -> None:
    text = (KIT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}", "${BASE}"]
    assert re.findall(r"^ARG BASE=python:\S+$", text, re.MULTILINE)


def test_the_compose_file_fits_its_schema() -> None:
    command = [
        str(BIN / "check-jsonschema"), "--builtin-schema", "vendor.compose-spec",
        str(KIT / "compose.yaml"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_publishes_on_loopback_and_asks_for_passwords() -> None:
    for service in COMPOSE["services"].values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), port
    text = (KIT / "compose.yaml").read_text(encoding="utf-8")
    given = {line.partition("=")[0] for line in (KIT / "env.example").read_text().splitlines()}
    asked = set(re.findall(r"\$\{(\w+)", text))
    assert asked == {name for name in given if re.fullmatch(r"\w+", name)}
    assert all(f"${{{name}:?" in text for name in asked), "a password that is unset must be refused"


def test_git_ignores_the_file_with_the_passwords() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_compose_waits_for_the_server_that_others_reach() -> None:
    """At the first start, one that listens on a socket only makes the database."""
    test = COMPOSE["services"]["postgres"]["healthcheck"]["test"]
    assert test[:4] == ["CMD", "pg_isready", "--host", "127.0.0.1"]


def test_no_command_line_has_a_password() -> None:
    """Every user of a machine can read the arguments of every process."""
    for name, words in commands().items():
        for word in words:
            assert urlsplit(word).password is None, f"{name}: {word}"
            assert "PASSWORD" not in word, f"{name}: {word}"
    url = COMPOSE["services"]["worker"]["environment"]["DATABASE_URL"]
    assert urlsplit(url).password is None
    for name, pod in PODS.items():
        for container in pod["spec"]["containers"]:
            shown = set(re.findall(r"\$\((\w+)\)", " ".join(container["command"])))
            keys = {
                each["name"]: each["valueFrom"]["secretKeyRef"]["key"]
                for each in container["env"]
                if "valueFrom" in each
            }
            assert {keys[each] for each in shown} <= {"url"}, name
            assert keys == {"DATABASE_URL": "url", "PGPASSWORD": "password"}, name


def test_alerts_of_compose_link_to_pages_that_exist(tmp_path: Path) -> None:
    """Not to the files in a container, which no browser reaches."""
    command = COMPOSE["services"]["observability"]["command"]
    [words] = [each for each in words_of(command) if "alerts" in each]
    words = [str(tmp_path) if word == "/rules" else word for word in words[1:]]
    subprocess.run([BIN / "pollwise", *words], check=True, capture_output=True)
    [rules] = tmp_path.glob("*.yml")  # as prometheus.yml names them
    pages = re.findall(r"runbook_url: (.*)", rules.read_text(encoding="utf-8"))
    assert pages
    for page in pages:
        address = page.strip('"')
        assert address.startswith("https://pollwise.readthedocs.io/en/latest/runbooks/"), page
        assert (ROOT / "docs/runbooks" / f"{address.rpartition('/')[2]}.md").exists(), page


def test_prometheus_of_compose_has_a_configuration_that_it_takes() -> None:
    promtool = debian("promtool")
    config = KIT / "prometheus/prometheus.yml"
    done = subprocess.run(
        [promtool, "check", "config", "--syntax-only", config], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    jobs = yaml.safe_load(config.read_text(encoding="utf-8"))["scrape_configs"]
    asked = {
        (name.partition(":")[0], int(each.get("port") or name.partition(":")[2]))
        for job in jobs
        for each in job.get("dns_sd_configs", []) + job.get("static_configs", [])
        for name in each.get("names", []) + each.get("targets", [])
    }
    for name, port in asked:
        assert str(port) in str(COMPOSE["services"][name]["command"]), f"{name} serves no {port}"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units(unit: Path, tmp_path: Path) -> None:
    analyze = debian("systemd-analyze")
    text = unit.read_text(encoding="utf-8").replace("/srv/shop/venv/bin/pollwise", "/bin/true")
    (tmp_path / unit.name).write_text(text)
    done = subprocess.run([analyze, "verify", tmp_path / unit.name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_never_gives_a_service_up(unit: Path) -> None:
    """After five quick failures, such as those of a worker before `migrate`, it would."""
    head, service = unit.read_text(encoding="utf-8").split("[Service]")
    assert "\nStartLimitIntervalSec=0\n" in head
    assert "\nRestart=always\n" in service


# Kubernetes


def test_the_kustomization_names_every_manifest() -> None:
    [kustomization] = [each for each in MANIFESTS if each["kind"] == "Kustomization"]
    others = {path.name for path in (KIT / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == others
    images = {
        container["image"] for pod in PODS.values() for container in pod["spec"]["containers"]
    }
    assert images == {image["name"] for image in kustomization["images"]}


@pytest.mark.parametrize("name", PODS)
def test_pods_may_do_little(name: str) -> None:
    """What the namespace's "restricted" standard demands, and more."""
    spec = PODS[name]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    for container in spec["containers"]:
        allowed = container["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize("name", PODS)
def test_ports_and_probes_fit_the_command(name: str) -> None:
    for container in PODS[name]["spec"]["containers"]:
        ports: Mapping[str, int] = {
            each["name"]: each["containerPort"] for each in container.get("ports", ())
        }
        for port in ports.values():
            assert str(port) in " ".join(container["command"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            if probe in container:
                assert container[probe]["httpGet"]["port"] in ports


@pytest.mark.parametrize("manifest", [each for each in MANIFESTS if each["kind"] == "Deployment"],
                         ids=lambda each: each["metadata"]["name"])  # fmt: skip
def test_deployments_select_their_own_pods(manifest: dict[str, Any]) -> None:
    chosen = manifest["spec"]["selector"]["matchLabels"]
    assert chosen == manifest["spec"]["template"]["metadata"]["labels"]
    others = [
        each for name, each in PODS.items()
        if name != manifest["metadata"]["name"] and each["metadata"]["labels"] == chosen
    ]  # fmt: skip
    assert others == []


def test_a_stop_has_longer_than_the_grace_of_a_worker() -> None:
    grace = seconds(pollwise.WorkerRunOptions().grace)
    assert PODS["pollwise-worker"]["spec"]["terminationGracePeriodSeconds"] > grace
    assert int(COMPOSE["services"]["worker"]["stop_grace_period"].rstrip("s")) > grace
    for unit in UNITS:
        [stop] = re.findall(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE)
        assert int(stop) > grace


def test_keda_scales_the_workers_by_a_metric_that_the_exporter_has() -> None:
    [scaled] = [each for each in MANIFESTS if each["kind"] == "ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] in PODS
    [trigger] = scaled["spec"]["triggers"]
    asked = selectors(promql_parser.parse(trigger["metadata"]["query"]))
    assert {each.name for each in asked} == {"pollwise_queue_startable", "pollwise_queue_depth"}
    for selector in asked:
        metric = metric_of(selector.name or "")
        assert metric is not None
        assert {each.name for each in selector.matchers.matchers} <= set(metric.labels)


def test_keda_takes_an_exporter_that_is_gone_for_an_error_and_waits_before_it_removes_workers() -> (
    None
):
    """KEDA takes no answer for 0 by default; `cooldownPeriod` is about scaling to zero only."""
    [spec] = [each["spec"] for each in MANIFESTS if each["kind"] == "ScaledObject"]
    assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    assert spec["minReplicaCount"] >= 1
    assert "cooldownPeriod" not in spec
    behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 60


# The commands of the image, without a container: with no more environment than a container has.


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> dict[str, str]:
    """The variables of the kit, for a database that asks for a password; migrated as by Compose."""
    password = "p@ss:w/rd"  # not as a URL would have it
    postgres.create_role("kit", password)
    postgres.create_database("kit", owner="kit")
    url = urlsplit(postgres.dsn("kit", user="kit"))
    found = {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "DATABASE_URL": f"postgresql://kit@{url.hostname}:{url.port}/kit",
        "PGPASSWORD": password,
        "PYTHONPATH": str(KIT / "app"),
    }
    command = at_database(COMPOSE["services"]["migrate"]["command"], found)
    done = subprocess.run(command, env=found, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return found


def at_database(command: list[str], environment: Mapping[str, str]) -> list[str]:
    """The command of a service of Compose, at the database of a test."""
    kit = COMPOSE["services"]["worker"]["environment"]["DATABASE_URL"]
    return [environment["DATABASE_URL"] if word == kit else word for word in command]


@contextmanager
def running(
    command: list[str], check: list[str], port: int, environment: Mapping[str, str]
) -> Iterator[int]:
    """A service that has passed its health check, on another port than `port`, which is yielded.

    It must stop as asked, without an error.
    """
    free = free_port()
    address = {str(port): str(free), "0.0.0.0": "127.0.0.1"}
    words = [address.get(word, word) for word in at_database(command, environment)]
    assert str(free) in words
    code = [word.replace(f":{port}/", f":{free}/") for word in check]

    def healthy() -> bool:
        assert service.poll() is None, "the service ended"
        done = subprocess.run([sys.executable, *code[1:]], env=environment, capture_output=True)
        return done.returncode == 0

    with subprocess.Popen(words, env=environment, cwd=KIT / "app") as service:
        try:
            wait_until(healthy, f"the health check of {words}")
            yield free
        finally:
            service.terminate()
        assert service.wait(60) == 0


def test_the_worker_of_the_image_works_on_postgres(database: dict[str, str]) -> None:
    with running(dockerfile("CMD"), dockerfile("HEALTHCHECK"), 8081, database):
        ask = "from jobs import resize; print(resize.put_sync(7).result('60s'))"
        asked = subprocess.run(
            [sys.executable, "-c", ask], env=database, capture_output=True, text=True
        )
        assert asked.stdout == "image-7-800.png\n", asked.stderr


def test_the_exporter_of_compose_shows_what_keda_asks_for(database: dict[str, str]) -> None:
    service = COMPOSE["services"]["exporter"]
    check = service["healthcheck"]["test"][1:]
    put = "from jobs import resize; resize.put_sync(7)"
    subprocess.run([sys.executable, "-c", put], env=database, check=True)
    [scaled] = [each for each in MANIFESTS if each["kind"] == "ScaledObject"]
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]
    wanted = [
        (selector.name, {each.name: each.value for each in selector.matchers.matchers})
        for selector in selectors(promql_parser.parse(query))
    ]
    with running(service["command"], check, 9093, database) as port:

        def depth() -> float:
            with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                families = text_string_to_metric_families(answer.read().decode())
            return sum(
                sample.value
                for family in families
                for sample in family.samples
                for name, asked in wanted
                if sample.name == name
                and all(re.fullmatch(asked[key], sample.labels[key]) for key in asked)
            )

        wait_until(lambda: depth() == 1, "one job that waits")


def test_the_web_pages_of_compose_ask_for_the_password(database: dict[str, str]) -> None:
    service = COMPOSE["services"]["web"]
    check = service["healthcheck"]["test"][1:]
    [name] = set(service["environment"]) - set(database)
    environment = {**database, name: "a password of the pages"}
    with running(service["command"], check, 8430, environment) as port:
        with urlopen(f"http://127.0.0.1:{port}/") as answer:
            assert urlsplit(answer.url).path == "/login"
