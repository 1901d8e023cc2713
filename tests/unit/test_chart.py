"""The Helm chart: its output is valid, locked down, and calls redis-state as it is."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from redis_state.cli.main import build_parser
from tools import chart
from tools.chart import CHART, COPIES, HelmError
from tools.image import EXTRAS, FOLDER, USER, version
from tools.servers import cache_folder

NAMES = [one.name.split(".")[0] for one in chart.values_files()]
CUSTOM = {"ServiceMonitor", "PrometheusRule"}
SECRETS = "/run/secrets/redis-state/"
Object = dict[str, Any]


def objects(name: str) -> list[Object]:
    text = (chart.RENDERED / f"{name}.rendered.yaml").read_text("utf-8")
    return [one for one in yaml.safe_load_all(text) if one]


def of_kind(name: str, *kinds: str) -> list[Object]:
    return [one for one in objects(name) if one["kind"] in kinds]


def pods() -> list[tuple[str, Object]]:
    """Pods of all deployments and jobs, with an id for the test."""
    return [
        (f"{name}-{one['metadata']['name']}", one["spec"]["template"])
        for name in NAMES
        for one in of_kind(name, "Deployment", "Job")
    ]


_PODS = pods()
PODS = pytest.mark.parametrize("pod", [one for _, one in _PODS], ids=[name for name, _ in _PODS])
WORKER = dict(_PODS)["full-state-redis-state-maintain"]
"""Worker for Python stores whose history is in files."""


def schema() -> Object:
    found: Object = json.loads((CHART / "values.schema.json").read_text("utf-8"))
    return found


def defaults() -> Object:
    found: Object = yaml.safe_load((CHART / "values.yaml").read_text("utf-8"))
    return found


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def merged(base: Object, over: Object) -> Object:
    """Values as Helm merges them."""
    both = {
        key: merged(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict)
        else value
        for key, value in over.items()
    }
    return {**base, **both}


@pytest.mark.parametrize("name", COPIES)
def test_copied_file_is_current(name: str) -> None:
    written = (CHART / "files" / name).read_bytes()
    assert written == COPIES[name].read_bytes(), "run `make chart`"


@pytest.mark.parametrize("name", NAMES)
def test_kept_output_is_of_this_chart(name: str) -> None:
    text = (chart.RENDERED / f"{name}.rendered.yaml").read_text("utf-8")
    assert text.startswith(chart.head()), "run `make chart`"


def test_chart_has_the_version_of_the_package() -> None:
    found = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))
    assert found["appVersion"] == version()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("release", ["1.27", "1.31", "1.34"])
def test_objects_are_valid_for_kubernetes(name: str, release: str) -> None:
    found = objects(name)
    for one in found:
        if one["kind"] not in CUSTOM:
            kubernetes_validate.validate(one, release, strict=True)
    places = [(one["kind"], one["metadata"]["name"]) for one in found]
    assert len(set(places)) == len(places)


def test_default_values_have_what_a_platform_team_expects() -> None:
    kinds = sorted((one["kind"], one["metadata"]["name"]) for one in objects("minimal"))
    assert kinds == [
        ("Deployment", "state-redis-state-dashboard"),
        ("Deployment", "state-redis-state-exporter"),
        ("Deployment", "state-redis-state-maintain"),
        ("PodDisruptionBudget", "state-redis-state-maintain"),
        ("Service", "state-redis-state-dashboard"),
        ("Service", "state-redis-state-exporter"),
    ]
    more = {one["kind"] for one in objects("full")} - {kind for kind, _ in kinds}
    assert more == {"ConfigMap", "Job", *CUSTOM}
    workers = {
        one["metadata"]["name"]: one["spec"]["replicas"] for one in of_kind("minimal", "Deployment")
    }
    assert set(workers.values()) == {1, 2}
    assert workers["state-redis-state-maintain"] == 2


@PODS
def test_pod_is_locked_down(pod: Object) -> None:
    spec = pod["spec"]
    assert spec["automountServiceAccountToken"] is False
    security = spec["securityContext"]
    assert (security["runAsNonRoot"], security["runAsUser"]) == (True, USER)
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(container["resources"]) == {"requests", "limits"}
    given = pod is WORKER
    assert ("env" in container, "serviceAccountName" in spec) == (given, given)
    assert container["image"].endswith(f"redis-state:{version()}")


@PODS
def test_pod_mounts_each_file_that_its_command_names(pod: Object) -> None:
    (container,) = pod["spec"]["containers"]
    volumes = {one["name"]: one for one in pod["spec"]["volumes"]}
    mounts = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    more = {"files"} if pod is WORKER else set()
    assert set(mounts) == set(volumes) == {"tmp", "secrets"} | more
    assert f"{mounts['secrets']}/" == SECRETS
    sources = volumes["secrets"].get("projected", {"sources": []})["sources"]
    given = {item["path"] for one in sources for item in one["secret"]["items"]}
    words = [word for one in container["args"] for word in one.replace("=", ":").split(":")]
    named = {word.removeprefix(SECRETS) for word in words if word.startswith(SECRETS)}
    unused = {"signing"} if "acl_users.py" in str(container.get("command")) else set()
    assert named == given - unused


@PODS
def test_command_is_one_of_redis_state(pod: Object, monkeypatch: pytest.MonkeyPatch) -> None:
    (container,) = pod["spec"]["containers"]
    arguments = container["args"]
    if "command" in container:
        assert container["command"][0] == "/usr/bin/python3"
        users = script(Path(container["command"][1]).stem)
        monkeypatch.setattr(users, "create", lambda *_: pytest.fail("no password file exists"))
        assert users.main(arguments) == 1
        return
    parsed = build_parser().parse_args(arguments)
    assert arguments[0] == container["name"]
    health = script("health")
    if arguments[0] == "maintain":
        assert health.argument(arguments, "--alive-file") == parsed.alive_file == "/tmp/alive"
        assert container["livenessProbe"]["exec"]["command"][1].endswith("/health.py")
        return
    port, path = health._PAGES[arguments[0]]
    (opened,) = container["ports"]
    assert parsed.port == opened["containerPort"] == port
    for probe in ("livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert (asked["path"], asked["port"]) == (path, opened["name"])
        tls = "--serve-cert-file" in " ".join(arguments)
        assert (asked.get("scheme") == "HTTPS") == tls


@pytest.mark.parametrize("name", NAMES)
def test_services_and_monitors_choose_existing_pods(name: str) -> None:
    found = [one["spec"]["template"] for one in of_kind(name, "Deployment")]

    def chosen(labels: Object) -> Object:
        pod: Object
        (pod,) = (one for one in found if labels.items() <= one["metadata"]["labels"].items())
        return pod

    services = of_kind(name, "Service")
    for service in services:
        pod = chosen(service["spec"]["selector"])
        (port,) = service["spec"]["ports"]
        assert port["targetPort"] in {one["name"] for one in pod["spec"]["containers"][0]["ports"]}
    for one in of_kind(name, "Deployment", "PodDisruptionBudget"):
        chosen(one["spec"]["selector"]["matchLabels"])
    for monitor in of_kind(name, "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"]
        (service,) = (
            one for one in services if labels.items() <= one["metadata"]["labels"].items()
        )
        (endpoint,) = monitor["spec"]["endpoints"]
        assert endpoint["port"] == service["spec"]["ports"][0]["name"]
        assert int(endpoint["scrapeTimeout"][:-1]) <= int(endpoint["interval"][:-1])


def test_rules_and_dashboard_are_those_of_the_metrics_stack() -> None:
    (rule,) = of_kind("full", "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(COPIES["alerts.yml"].read_text("utf-8"))
    (shown,) = of_kind("full", "ConfigMap")
    written = json.loads(COPIES["dashboard.json"].read_text("utf-8"))
    assert json.loads(shown["data"]["redis-state.json"]) == written
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_both_images_reach_files_on_other_file_systems() -> None:
    assert "checkpoints" in EXTRAS.split(",")
    assert f"[{EXTRAS}]" in (FOLDER / "Dockerfile").read_text("utf-8")


def test_worker_gets_what_reaches_the_files_of_python_stores() -> None:
    given = yaml.safe_load((chart.RENDERED / "full.values.yaml").read_text("utf-8"))["maintain"]
    (container,) = WORKER["spec"]["containers"]
    assert container["env"] == given["env"]
    assert container["volumeMounts"][2:] == given["volumeMounts"]
    assert WORKER["spec"]["volumes"][2:] == given["volumes"]
    assert WORKER["spec"]["serviceAccountName"] == given["serviceAccountName"]


@pytest.mark.parametrize("name", NAMES)
def test_values_fit_the_schema(name: str) -> None:
    given = yaml.safe_load((chart.RENDERED / f"{name}.values.yaml").read_text("utf-8"))
    jsonschema.validate(merged(defaults(), given), schema())


def test_schema_has_every_default_and_no_more() -> None:
    def check(values: Object, properties: Object, place: str) -> None:
        assert values.keys() == properties.keys() - {"global"}, place
        for key, value in values.items():
            if "properties" in properties[key]:
                check(value, properties[key]["properties"], f"{place}.{key}")

    check(defaults(), schema()["properties"], "values")


WRONG: tuple[tuple[Object, str, str], ...] = (
    ({}, "'' does not match", "redis.url"),
    ({"redis": {"url": "redis://me:secret@redis"}}, "does not match", "redis.url"),
    ({"redis": {"url": "redis://r"}, "maintain": {"interval": "soon"}}, "match", "interval"),
    ({"redis": {"url": "redis://r"}, "maintain": {"replicas": 0}}, "minimum", "replicas"),
    ({"redis": {"url": "redis://r"}, "maintain": {"expireVanished": True}}, "", "vanishedAfter"),
    ({"redis": {"url": "redis://r"}, "maintian": {}}, "maintian", ""),
)


@pytest.mark.parametrize(("values", "message", "_"), WRONG)
def test_wrong_value_is_refused_by_the_schema(values: Object, message: str, _: str) -> None:
    with pytest.raises(jsonschema.ValidationError) as caught:
        jsonschema.validate(merged(defaults(), values), schema())
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def helm() -> Path:
    try:
        return chart.ensure_helm(cache_folder())
    except HelmError as error:
        pytest.skip(str(error))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_helm_renders_the_kept_output(helm: Path, name: str) -> None:
    values = chart.RENDERED / f"{name}.values.yaml"
    assert chart.head() + chart.rendered(helm, values) == chart.rendered_file(values).read_text()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", NAMES)
def test_helm_finds_no_fault(helm: Path, name: str) -> None:
    said = chart.linted(helm, chart.RENDERED / f"{name}.values.yaml")
    assert "1 chart(s) linted, 0 chart(s) failed" in said
    assert "WARNING" not in said


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("values", "_", "place"), WRONG)
def test_helm_refuses_a_wrong_value(
    helm: Path, tmp_path: Path, values: Object, _: str, place: str
) -> None:
    given = tmp_path / "wrong.values.yaml"
    given.write_text(yaml.safe_dump(merged({"dashboard": {"token": {"secret": "t"}}}, values)))
    with pytest.raises(HelmError) as caught:
        chart.rendered(helm, given)
    assert all(word in str(caught.value) for word in place.split("."))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "dashboard.token.secret is needed"),
        ({"dashboard": {"enabled": False}, "acl": {"enabled": True}}, "needs a user"),
        (
            {
                "dashboard": {"enabled": False},
                "acl": {"enabled": True, "job": {"username": "orders"}},
            },
            "the user orders needs a secret",
        ),
    ],
)
def test_helm_refuses_values_that_do_not_fit_together(
    helm: Path, tmp_path: Path, values: Object, message: str
) -> None:
    given = tmp_path / "wrong.values.yaml"
    given.write_text(yaml.safe_dump({"redis": {"url": "redis://redis:6379/0"}, **values}))
    with pytest.raises(HelmError, match=message):
        chart.rendered(helm, given)
