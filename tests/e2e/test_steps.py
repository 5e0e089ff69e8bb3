"""End to end: values and steps of a script below `wal-agent run generic`, over two machines and a pause."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.e2e.scene import Scene, shell, until
from tests.e2e.test_generic import Machine, Yard
from tests.servers.nats import NatsServer
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

W = f"{sys.executable} -m wal_agent"
SCRIPT = f"""\
set -u
{W} state get cursor --json > seen.json || true
echo 7 | {W} state put cursor
{W} step one -- sh -c 'echo one >> {{world}}/one; echo made $RANDOM; exit 4' > one.out; echo $? > one.code
{W} step two {{verify}} -- sh -c 'echo two >> {{world}}/two; exec sleep {{sleep}}'; echo $? > two.code
"""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path.resolve())
    yield made
    for machine in made.machines:
        for process in machine.running:
            if process.poll() is None:
                process.kill()
                process.communicate()


def script(yard: Yard, machine: Machine, sleep: int, verify: str = "") -> None:
    (machine.work / "job.sh").write_text(SCRIPT.format(world=yard.root, verify=verify, sleep=sleep))


def count(yard: Yard, name: str) -> int:
    file = yard.root / name
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_a_machine_is_lost_in_a_step(yard: Yard) -> None:
    """I1, I2: what was done is not done again; what was cut off is verified, or a person decides."""
    first, second = yard.machine(""), yard.machine("")
    script(yard, first, 600)
    run = first.start("run", "generic", "--ttl", "1", "--", "sh", "job.sh")
    until(lambda: count(yard, "two") == 1, "the second step runs")
    tree = psutil.Process(run.pid).children(recursive=True)
    run.send_signal(signal.SIGKILL)
    for process in tree:
        with suppress(psutil.Error):
            process.kill()
    run.communicate(timeout=60)
    out = (first.work / "one.out").read_text()
    first.work.rename(yard.root / "gone")

    script(yard, second, 600)
    _, said = second.start("run", "generic", "--ttl", "1", "--wait", "--", "sh", "job.sh").communicate(timeout=120)
    assert "1 step was cut off" in said and "two (sh -c" in said
    assert (second.work / "one.out").read_text() == out and (second.work / "one.code").read_text() == "4\n"
    assert (second.work / "two.code").read_text() == "79\n"
    assert (count(yard, "one"), count(yard, "two")) == (1, 1)
    seen = json.loads((second.work / "seen.json").read_text())
    assert (seen["value"], seen["attempt"], seen["put_in_attempt"]) == ("7\n", 2, 1)
    assert yard.lease().state == "released", "a step is undecided"

    script(yard, second, 600, verify=f"--verify 'test -s {yard.root}/two'")
    last = second.start("run", "generic", "--ttl", "1", "--", "sh", "job.sh")
    last.communicate(timeout=120)
    assert last.returncode == 0
    assert ((second.work / "two.code").read_text(), count(yard, "two")) == ("0\n", 1)
    assert yard.lease().state == "closed" and yard.state().undecided_steps == {}


@deep
def test_values_on_a_nats_server_outlive_the_machine(yard: Yard, tmp_path: Path) -> None:
    """The next run has them on another machine, and they are read at rest; nothing of them is in the log."""
    server = NatsServer(tmp_path / "nats").start()
    where = {"WAL_AGENT_STATE": "nats", "WAL_AGENT_MESSAGES": server.url}
    first, second = yard.machine(""), yard.machine("")
    put = f"echo 7 | {W} state put cursor && echo x >> {yard.root}/put"
    work = f"{W} state get cursor --json > seen.json || {{ {put}; exec sleep 600; }}"
    try:
        run = first.start("run", "generic", "--ttl", "1", "--", "sh", "-c", work, **where)
        until(lambda: count(yard, "put") == 1, "the value is put")
        tree = psutil.Process(run.pid).children(recursive=True)
        for process in (psutil.Process(run.pid), *tree):
            with suppress(psutil.Error):
                process.kill()
        run.communicate(timeout=60)
        first.work.rename(yard.root / "gone")
        last = second.start("run", "generic", "--ttl", "1", "--wait", "--", "sh", "-c", work, **where)
        _, said = last.communicate(timeout=120)
        assert last.returncode == 0, said
        seen = json.loads((second.work / "seen.json").read_text())
        assert (seen["value"], seen["attempt"], seen["put_in_attempt"]) == ("7\n", 2, 1)
        at_rest = second.start("state", "get", "cursor", **where)
        assert at_rest.communicate(timeout=60)[0] == "7\n"
        in_log = second.start("state", "get", "cursor", WAL_AGENT_STATE="log")
        in_log.communicate(timeout=60)
        assert in_log.returncode == 1 and "cursor" not in yard.state().steps
    finally:
        server.kill()


def test_a_step_pauses_its_job(yard: Yard) -> None:
    """The command runs again after the pause, and finds what it left."""
    machine = yard.machine("")
    inner = (
        f"echo x >> {yard.root}/tries; {W} state get s --json > s.json || true; "
        f"test -e {yard.root}/paused || {{ touch {yard.root}/paused; {W} pause --for 1s --reason quota; exit 75; }}"
    )
    (machine.work / "job.sh").write_text(f"{W} step s -- sh job-inner.sh")
    (machine.work / "job-inner.sh").write_text(inner)
    run = machine.start("run", "generic", "--ttl", "1", "--", "sh", "job.sh")
    _, said = run.communicate(timeout=120)
    assert run.returncode == 0, said
    assert count(yard, "tries") == 2
    seen = json.loads((machine.work / "s.json").read_text())
    assert (seen["paused"]["reason"], seen["run"]["attempt"], seen["attempt"]) == ("quota", 2, 2)
    assert yard.state().steps["s"].paused is None and yard.lease().state == "closed"


@deep
def test_an_agents_tool_may_keep_values_and_run_steps(scene: Scene) -> None:
    """Below a CLI with hooks: the call that types it is logged as any other, and the run answers."""
    machine = scene.machine("vm-1")
    once = shell(f"{W} step s -- sh -c 'echo x >> side; echo made' && echo 5 | {W} state put cursor")
    scene.script(Turn(text="One.", calls=[once]), Turn(text="Two.", calls=[once]), Turn(text="Done."))
    run = machine.ask("please do the work", wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert scene.side() == ["x"]
    log = machine.log()
    kinds = [r["type"] for r in log]
    assert [kinds.count(name) for name in ("step_begun", "step_ended", "state_put")] == [1, 1, 2]
    assert kinds.index("intent") < kinds.index("step_begun") < kinds.index("step_ended") < kinds.index("end")
    assert json.loads(machine.cli("state", "get", "cursor", "--json").stdout)["value"] == "5\n"
