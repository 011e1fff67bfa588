"""Checks examples/deploy without a container engine: by a linter, by schemas, by the parsers of our flags.

The beginning of docs/deploy.md needs no containers: it runs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq.daemons.nsqadmin.options import NsqadminOptions
from nsq.daemons.nsqd.options import NsqdOptions
from nsq.daemons.nsqlookupd.options import NsqlookupdOptions
from nsq.flags import parse
from nsq.tools.work import WorkOptions

from .pages import blocks
from .shell_session import shell_session

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="of the extra dev")
yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "examples" / "deploy"
MANIFESTS = [
    (path.name, manifest)
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for manifest in yaml.safe_load_all(path.read_text("utf-8"))
]
SCALED = yaml.safe_load((DEPLOY / "keda" / "scaledobject.yaml").read_text("utf-8"))
PROGRAMS: dict[str, type[Any]] = {
    "nsqd": NsqdOptions,
    "nsqlookupd": NsqlookupdOptions,
    "nsqadmin": NsqadminOptions,
}


def program_of(name: str) -> list[str]:
    return [str(Path(sys.prefix, "bin", name))]


def passes(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def parsed(words: list[str]) -> Any:
    """Return the options of a command line of one of our programs."""
    words = [word.replace("--data-path=/data", "--data-path=.") for word in words]  # there is none here
    if words[:2] == ["nsq", "work"]:
        found = parse(WorkOptions, words[2:], prog="nsq work", version="nsq")
        assert found.rest == ("handlers",)
    else:
        found = parse(PROGRAMS[words[0]], words[1:], prog=words[0], version="nsq")
        assert not found.rest
    return found.options


def of_kind(kind: str) -> Iterator[dict[str, Any]]:
    return (manifest for _, manifest in MANIFESTS if manifest["kind"] == kind)


def pods() -> dict[str, dict[str, Any]]:
    """Return what runs pods, by name."""
    return {
        each["metadata"]["name"]: each for kind in ("StatefulSet", "Deployment") for each in of_kind(kind)
    }


def test_the_dockerfile_is_clean_and_has_what_the_build_needs() -> None:
    passes(*program_of("hadolint"), str(DEPLOY / "Dockerfile"))
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    setup = (ROOT / "setup.cfg").read_text()
    modules = re.findall(
        r"^    (\w+)$", setup.partition("py_modules =")[2].partition("install_requires")[0], re.M
    )
    assert {f"{module}.py" for module in modules} | {"nsq", "README.md", "LICENSE", "setup.cfg"} <= kept


def test_the_compose_file_has_composes_schema_and_our_flags() -> None:
    path = DEPLOY / "compose.yaml"
    passes(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))
    services = yaml.safe_load(path.read_text("utf-8"))["services"]
    assert {name: parsed(each["command"]) is not None for name, each in services.items()} == dict.fromkeys(
        ("nsqlookupd", "nsqd", "nsqadmin", "worker"), True
    )
    assert (path.parent / services["nsqlookupd"]["build"]["context"]).resolve() == ROOT
    assert all(each in services for service in services.values() for each in service.get("depends_on", ()))


@pytest.mark.parametrize(
    "manifest",
    [manifest for _, manifest in MANIFESTS],
    ids=[f"{file}-{each['kind']}" for file, each in MANIFESTS],
)
def test_a_manifest_has_the_schema_of_kubernetes(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, "1.34", strict=True)


def test_the_schemas_are_strict() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"port": 1}},
            "1.34",
            strict=True,
        )


def test_pods_run_our_programs_with_flags_that_these_have() -> None:
    for name, each in pods().items():
        template = each["spec"]["template"]
        assert each["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
        (container,) = template["spec"]["containers"]
        assert container["image"] == "nsq"
        options = parsed([*container["command"], *container.get("args", [])])
        grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        if name == "nsqd":
            assert grace > options.drain_timeout
            assert each["spec"]["serviceName"] == "nsqd"
        if name == "worker":
            assert grace > options.timeout + 5  # after that the supervisor kills what is left
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("readinessProbe", "livenessProbe"):
            for target in container.get(kind, {}).values():
                assert target["port"] in ports
        for service in of_kind("Service"):
            if service["spec"]["selector"] == template["metadata"]["labels"]:
                served = {port["name"]: port["port"] for port in service["spec"]["ports"]}
                assert served == {port: ports[port] for port in served}


def test_every_address_is_that_of_a_pod_or_a_service() -> None:
    text = "".join(path.read_text("utf-8") for path in DEPLOY.glob("k*/*.yaml"))
    named = set(re.findall(r"([a-z]+)-(\d+)\.([a-z]+):(\d+)", text))
    assert named
    for pod, number, service, port in named:
        spec = pods()[pod]["spec"]
        assert service == spec["serviceName"]
        assert int(number) < spec["replicas"]
        (found,) = (each for each in of_kind("Service") if each["metadata"]["name"] == service)
        assert int(port) in [each["port"] for each in found["spec"]["ports"]]


def test_the_scaled_object_scales_the_worker_by_its_own_channel() -> None:
    # Kubernetes has no schema of KEDA's kinds; these are the keys that KEDA 2.17 documents.
    assert (SCALED["apiVersion"], SCALED["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = SCALED["spec"]
    assert set(spec) <= {
        "scaleTargetRef", "pollingInterval", "cooldownPeriod", "minReplicaCount", "maxReplicaCount",
        "advanced", "fallback", "triggers",
    }  # fmt: skip
    assert spec["scaleTargetRef"]["name"] in pods()
    (trigger,) = spec["triggers"]
    assert trigger["type"] == "nsq"
    about = trigger["metadata"]
    assert all(isinstance(value, str) for value in about.values())
    assert set(about) == {
        "nsqLookupdHTTPAddresses", "topic", "channel", "depthThreshold", "activationDepthThreshold",
    }  # fmt: skip
    handlers = (DEPLOY / "handlers.py").read_text("utf-8")
    assert f'Consumer("{about["topic"]}", "{about["channel"]}"' in handlers


def test_the_handlers_are_the_same_everywhere() -> None:
    handlers = (DEPLOY / "handlers.py").read_text("utf-8")
    (config,) = of_kind("ConfigMap")
    assert config["data"]["handlers.py"] == handlers
    shown = [block.code for block in blocks(ROOT / "docs" / "deploy.md") if block.language == "python"]
    assert shown[0] in handlers


def test_the_beginning_of_the_page_runs(tmp_path: Path) -> None:
    code, commands = list(blocks(ROOT / "docs" / "deploy.md"))[:2]
    (tmp_path / "handlers.py").write_text(code.code)
    expected = {
        "nsqlookupd": "HTTP: listening",
        "nsqd": "HTTP: listening",
        "nsqadmin": "HTTP: listening",
        "nsq work": r"^billed \{'order': 1, 'amount': 20\}$",
        "nsq channels": r"^billing( +0){5} +1 +[12]\b",
    }
    with shell_session(tmp_path) as session:
        for line in commands.code.splitlines():
            if not line.startswith("pip "):
                found = [pattern for begin, pattern in expected.items() if line.startswith(begin)]
                session.run(line, *found)
        assert "Traceback" not in session.output
