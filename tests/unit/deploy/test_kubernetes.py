"""deploy/kubernetes: the chart as Helm renders it, against the schemas of Kubernetes; unknown fields refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import helm_python
import pytest
import yaml
from kubernetes_validate.utils import ValidationError, validate

from wal_agent import __version__
from wal_agent.cli.fleet import WITHOUT_HOST
from wal_agent.config import SETTINGS, variable_of
from wal_agent.errors import (
    ConfigError,
    CrashLoop,
    Damaged,
    Denied,
    Fenced,
    LeaseHeld,
    PersonNeeded,
    Unavailable,
    UsageError,
    WalAgentError,
)
from wal_agent.supervise.run_end import DRAINED

CHART = Path(__file__).parents[3] / "deploy" / "kubernetes"
NEEDED = {
    "image": "registry.example.com/agents/shop:1",
    "bucket": "gs://acme-agents/shop",
    "repository": "https://git.example.com/acme/shop.git",
    "tasks": {"fix-tests": 'Fix "all" tests:\n  it\'s {{ now }} $(HOME)', "docs": "Write them."},
}
ALL = {
    **NEEDED,
    "settings": {"drain": 12, "ttl": 60.5},
    "envFrom": [{"secretRef": {"name": "gemini"}}],
    "serviceAccountAnnotations": {"iam.gke.io/gcp-service-account": "wal-agent@acme.iam.gserviceaccount.com"},
    "holdEvictions": True,
    "runtimeClass": "gvisor",
    "pod": {"nodeSelector": {"pool": "spot"}},
    "rescue": 20,
}


def render(values: dict[str, Any], release: str = "shop") -> list[dict[str, Any]]:
    with helm_python.Chart.load(str(CHART)) as chart:
        texts = chart.render(values, name=release, namespace="agents")
    return [found for text in texts.values() for found in yaml.safe_load_all(text) if found]


OBJECTS = render(ALL)
JOBS = [o for o in OBJECTS if o["kind"] == "Job"]
JOB = JOBS[0]
SCALED = next(o for o in OBJECTS if o["kind"] == "ScaledJob")["spec"]  # of KEDA
POD = JOB["spec"]["template"]["spec"]
VERSIONS = ("1.33", "1.37")  # the first in which all that is used is stable, and a newer one


def test_helm_finds_nothing_wrong() -> None:
    found = helm_python.lint(str(CHART), NEEDED, strict=True)
    assert [m for m in found["messages"] if m["severity"] > 1] == [], "1: an icon would be nice"
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_what_the_api_takes(version: str) -> None:
    known = [found for found in (*OBJECTS, *render(NEEDED)) if found["kind"] != "ScaledJob"]
    for found in (*known, {**JOB, "spec": SCALED["jobTargetRef"]}):
        validate(found, version, strict=True)


def test_a_field_that_does_not_exist_is_refused() -> None:
    wrong = copy.deepcopy(JOB)
    wrong["spec"]["podFailurePolicies"] = wrong["spec"].pop("podFailurePolicy")
    with pytest.raises(ValidationError):
        validate(wrong, VERSIONS[0], strict=True)


@pytest.mark.parametrize(
    "wrong", [{"tasks": {}}, {"task": {}}, {"tasks": {"A b": "x"}}, {"bucket": "/x"}, {"image": ""}]
)
def test_values_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    with helm_python.Chart.load(str(CHART)) as chart, pytest.raises(helm_python.HelmError):
        chart.validate_schema({**NEEDED, **wrong})


def test_each_task_is_a_job_with_its_words_unchanged() -> None:
    words = next(o for o in OBJECTS if o["metadata"]["name"] == "shop-tasks")["data"]
    assert words == NEEDED["tasks"]
    for job in JOBS:
        (agent,) = job["spec"]["template"]["spec"]["containers"]
        env = {each["name"]: each for each in agent["env"]}
        task = env["TASK"]["valueFrom"]["configMapKeyRef"]["key"]
        assert job["metadata"]["name"] == env["WAL_AGENT_JOB"]["value"] == f"shop-{task}"
        assert agent["command"][-3:] == ["--yolo", "--prompt", "$(TASK)"] and "--once" in agent["command"]
    with pytest.raises(helm_python.HelmError, match="63"):
        render({**NEEDED, "tasks": {"t" * 30: "x"}}, "r" * 53)


def test_settings_reach_the_run() -> None:
    data = next(o for o in OBJECTS if o["kind"] == "ConfigMap" and o["metadata"]["name"] == "shop")["data"]
    given = {"WAL_AGENT_BUCKET": NEEDED["bucket"], "WAL_AGENT_DRAIN": "12", "WAL_AGENT_TTL": "60.5"}
    assert data == {**given, "WAL_AGENT_METRICS_ADDR": "0.0.0.0:9464"}
    assert set(data) <= {variable_of(key) for key in SETTINGS}
    (agent,) = POD["containers"]
    assert agent["envFrom"] == [{"configMapRef": {"name": "shop"}}, *ALL["envFrom"]]  # type: ignore[misc]


def test_each_exit_code_leads_to_what_it_means() -> None:
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    does = {code: r["action"] for r in rules if "onExitCodes" in r for code in r["onExitCodes"]["values"]}
    person = (UsageError, Damaged, Denied, ConfigError, PersonNeeded, CrashLoop)
    assert {code for code, action in does.items() if action == "FailJob"} == {e.exit_code for e in person}
    assert {code for code, action in does.items() if action == "Ignore"} == {
        LeaseHeld.exit_code,
        Fenced.exit_code,
        DRAINED,
    }
    assert not {Unavailable.exit_code, WalAgentError.exit_code} & set(does), "tried again, and counted"
    assert "DisruptionTarget" in str(rules[0]) and rules[0]["action"] == "Ignore"


def test_a_pod_is_never_started_again_beside_the_lease_and_has_time_to_drain() -> None:
    assert POD["restartPolicy"] == "Never" and JOB["spec"]["podReplacementPolicy"] == "Failed"
    assert POD["terminationGracePeriodSeconds"] > 20 + 10
    (agent,) = POD["containers"]
    assert agent["command"][:2] == ["wal-agent", "run"], "PID 1, in exec form"
    assert agent["livenessProbe"]["httpGet"]["path"] == "/healthz", "which asks no bucket"


def test_the_project_is_there_before_the_agent() -> None:
    (clone,), (agent,) = POD["initContainers"], POD["containers"]
    assert "git clone" in clone["command"][-1] and clone["workingDir"] == agent["workingDir"]
    assert {m["mountPath"] for m in clone["volumeMounts"]} >= {agent["workingDir"]}


def test_nothing_blocks_a_drain_unless_asked_for_and_then_it_can_be_computed() -> None:
    """Of the pods of a Job only an integer `minAvailable` is computed: else no pod could ever be evicted."""
    assert [o for o in render(NEEDED) if o["kind"] == "PodDisruptionBudget"] == []
    budgets = [o["spec"] for o in OBJECTS if o["kind"] == "PodDisruptionBudget"]
    assert [b["minAvailable"] for b in budgets] == [1, 1] and not any("maxUnavailable" in b for b in budgets)
    chosen = [b["selector"]["matchLabels"]["batch.kubernetes.io/job-name"] for b in budgets]
    assert sorted(chosen) == sorted(job["metadata"]["name"] for job in JOBS)


def test_a_sandbox_needs_nothing_of_the_host() -> None:
    """gVisor and others: no path, namespace, port or right of the host."""
    text = json.dumps(POD)
    assert POD["runtimeClassName"] == "gvisor"
    assert not any(word in text for word in ("hostPath", "hostNetwork", "hostPID", "hostIPC", "hostPort", "privileged"))
    for container in (*POD["initContainers"], *POD["containers"]):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def test_pods_for_jobs_that_lost_their_machine_follow_their_number() -> None:
    """KEDA's ScaledJob (its schema is not shipped here; it was valid against that of August 2026, strictly). A pod at
    work is never ended by a change, and a job that was taken is not counted twice."""
    (trigger,) = SCALED["triggers"]
    (service,) = (o for o in OBJECTS if o["kind"] == "Service")
    (watch,) = (o for o in OBJECTS if o["kind"] == "Deployment")
    about = urlsplit(trigger["metadata"]["url"])
    assert (about.hostname, about.port) == (
        f"{service['metadata']['name']}.agents.svc",
        service["spec"]["ports"][0]["port"],
    )
    assert service["spec"]["selector"].items() <= watch["spec"]["template"]["metadata"]["labels"].items()
    (watcher,) = watch["spec"]["template"]["spec"]["containers"]
    assert watcher["command"][-1].endswith(f":{about.port}") and trigger["metadata"]["format"] == "prometheus"
    assert (trigger["type"], trigger["metadata"]["valueLocation"]) == ("metrics-api", WITHOUT_HOST)
    assert SCALED["rollout"] == {"strategy": "gradual"} and SCALED["scalingStrategy"] == {"strategy": "accurate"}
    (agent,) = SCALED["jobTargetRef"]["template"]["spec"]["containers"]
    assert agent["command"] == ["wal-agent", "fleet", "claim", "--root", "/srv/work", "--", "--yolo"]
    assert SCALED["maxReplicaCount"] == 20 and {o["kind"] for o in render(NEEDED)} == {
        "ServiceAccount",
        "ConfigMap",
        "Job",
    }
