"""deploy/kubernetes: every object against the schemas of the Kubernetes API, unknown fields refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate.utils import ValidationError, validate

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

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
OBJECTS: list[dict[str, Any]] = [o for path in FOLDER.glob("*.yaml") for o in yaml.safe_load_all(path.read_text())]
JOB = next(o for o in OBJECTS if o["kind"] == "Job")
POD = JOB["spec"]["template"]["spec"]
VERSIONS = ("1.33", "1.37")  # the first in which all that is used is stable, and a newer one


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("found", OBJECTS, ids=lambda o: o["kind"])
def test_it_is_what_the_api_takes(found: dict[str, Any], version: str) -> None:
    validate(found, version, strict=True)


def test_a_field_that_does_not_exist_is_refused() -> None:
    wrong = copy.deepcopy(JOB)
    wrong["spec"]["podFailurePolicies"] = wrong["spec"].pop("podFailurePolicy")
    with pytest.raises(ValidationError):
        validate(wrong, VERSIONS[0], strict=True)


def test_each_exit_code_leads_to_what_it_means() -> None:
    rules = JOB["spec"]["podFailurePolicy"]["rules"]
    does = {code: r["action"] for r in rules if "onExitCodes" in r for code in r["onExitCodes"]["values"]}
    person = (UsageError, Damaged, Denied, ConfigError, PersonNeeded, CrashLoop)
    assert {code for code, action in does.items() if action == "FailIndex"} == {e.exit_code for e in person}
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


def test_the_project_is_there_before_the_agent_and_nothing_blocks_a_drain() -> None:
    (clone,), (agent,) = POD["initContainers"], POD["containers"]
    assert "git clone" in clone["command"][-1] and clone["workingDir"] == agent["workingDir"]
    assert {m["mountPath"] for m in clone["volumeMounts"]} >= {agent["workingDir"]}
    budgets = [o for o in OBJECTS if o["kind"] == "PodDisruptionBudget"]
    assert budgets == [], "a percentage cannot be computed for pods of a Job, and then no pod may be evicted"
