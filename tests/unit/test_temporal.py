"""temporal.py on the SDK's own environment for activities; no server could be had here."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import temporalio.workflow
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from tests.conftest import TESTS
from wal_agent import temporal
from wal_agent.bucket import open_bucket
from wal_agent.temporal import OURS, AgentTask, failure, run_agent
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import read_lease

Make = Callable[[str], AgentTask]
STAYS = "echo began >> side; exec sleep 600"


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A task in the job `one`, whose agent is a shell."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(temporal, "HEARTBEAT", 0.05)
    work = tmp_path / "work"
    work.mkdir()
    bucket = f"--bucket=file://{tmp_path / 'bucket'}"
    return lambda script: AgentTask("generic", ["sh", "-c", script], "one", str(work), [bucket, "--ttl=6"])


def side(task: AgentTask) -> list[str]:
    path = Path(task.folder, "side")
    return path.read_text().splitlines() if path.exists() else []


def lease_state(task: AgentTask) -> str:
    bucket = open_bucket(task.options[0].removeprefix("--bucket="))
    seen = read_lease(bucket, Keys(task.job))
    bucket.close()
    assert seen is not None
    return seen.doc.state


async def stopped(task: AgentTask, stop: Callable[[ActivityEnvironment], None]) -> None:
    """Run it, and stop it at work."""
    environment = ActivityEnvironment()
    running = asyncio.ensure_future(environment.run(run_agent, task))
    while not side(task) and not running.done():
        await asyncio.wait({running}, timeout=0.05)
    stop(environment)
    await running


def test_a_complete_task_is_not_run_again_by_the_next_try(task: Make) -> None:
    """A worker may die between the end of the run and Temporal's knowing of it."""
    beats: list[tuple[object, ...]] = []
    for _ in range(2):
        environment = ActivityEnvironment()
        environment.on_heartbeat = lambda *details: beats.append(details)
        asyncio.run(environment.run(run_agent, task("echo did >> side")))
    assert side(task("")) == ["did"] and len(beats) >= 2


def test_a_cancelled_activity_leaves_a_job_that_any_machine_takes(task: Make) -> None:
    """I9: it is saved and released, and nothing of it runs on."""
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(stopped(task(STAYS), ActivityEnvironment.cancel))
    assert lease_state(task(STAYS)) == "released"


def test_a_worker_that_shuts_down_drains_the_run_and_another_try_is_wanted(task: Make) -> None:
    with pytest.raises(ApplicationError) as failed:
        asyncio.run(stopped(task(STAYS), ActivityEnvironment.worker_shutdown))
    assert (failed.value.type, failed.value.non_retryable) == ("Drained", False)
    assert lease_state(task(STAYS)) == "released"


def test_an_agent_that_fails_is_not_tried_again(task: Make) -> None:
    with pytest.raises(ApplicationError) as failed:
        asyncio.run(ActivityEnvironment().run(run_agent, task("exit 3")))
    assert (failed.value.type, failed.value.details, failed.value.non_retryable) == ("AgentFailed", (3,), True)


def test_a_line_of_any_length_on_stderr_holds_up_no_run(task: Make) -> None:
    """I6: asyncio reads lines of 64 KiB at most."""
    script = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo did >> side"
    asyncio.run(asyncio.wait_for(ActivityEnvironment().run(run_agent, task(script)), 60))
    assert side(task("")) == ["did"]


def test_another_try_is_wanted_where_the_table_for_engines_says_so() -> None:
    text = (TESTS.parent / "docs/OPERATIONS.md").read_text()
    rows = re.findall(r"^\| (\d+) \|[^|]*\| ([^|]*) \|", text, re.MULTILINE)
    advice = {int(code): said.startswith(("try again", "start it again")) for code, said in rows if said != "-"}
    assert advice == {code: again for code, (_, again) in OURS.items()}
    assert len({name for name, _ in OURS.values()}) == len(OURS)
    assert not failure(-9, "").non_retryable, "of a signal"
    assert str(failure(79, "x\nwal-agent: a person.\ny")) == "PersonNeeded: wal-agent: a person."


def test_the_workflow_of_the_page_is_one_that_temporal_takes() -> None:
    text = (TESTS.parent / "docs/OPERATIONS.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    made: dict[str, object] = {"__name__": "page"}
    exec(compile(block, "OPERATIONS.md", "exec"), made)
    definition = temporalio.workflow._Definition.must_from_class(made["FixTests"])  # type: ignore[arg-type]
    assert definition.name == "FixTests"
