"""A run that nobody watches: what stops it and what recovers it reaches a real service, and the run waits for neither.
The agent is a stand-in; what matters is what comes before its start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.scene import until
from tests.faults.ruins import KEYS, a_job, add, change_host, change_lease, intent, opened
from tests.stub_agent import STUB
from tests.unit.notify.sink import Sink
from wal_agent.notify.outbox import Outbox, list_boxes
from wal_agent.supervise.machine import this_host


@pytest.fixture
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


class Yard:
    """A job that was cut off on this machine, with a call in flight whose fate nobody can tell."""

    def __init__(self, root: Path, sink: Sink) -> None:
        self.work, self.home, self.runtime = root / "shop", root / "home", Path(f"/tmp/wa-tell-{os.getpid()}")
        for folder in (self.work, self.home / ".gemini", self.home / ".config/wal-agent"):
            folder.mkdir(parents=True)
        (self.home / ".gemini/settings.json").write_text('{"security": {"auth": {"selectedType": "gemini-api-key"}}}\n')
        (self.home / ".config/wal-agent/wal-agent.toml").write_text(f'[[notify]]\nurl = "{sink.url}"\n')
        stub, lock = root / "stub", root / "lock"
        stub.write_text(STUB + 'env > "$STUB_BEGAN.env"\n')
        stub.chmod(0o755)
        lock.touch()
        with opened((root / "bucket").as_uri()) as bucket:
            a_job(bucket, root / "scratch")
            add(bucket, intent(3, command="./deploy.sh staging"))
            here = this_host({}, lock)
            change_host(bucket, name="vm-17", boot=here.boot, pidns=here.pidns, lock=str(lock))
            change_lease(bucket, state="held", reason="")
        self.env = {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(self.home),
            "WAL_AGENT_BUCKET": (root / "bucket").as_uri(),
            "WAL_AGENT_JOB": KEYS.job,
            "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
            "WAL_AGENT_GEMINI": str(stub),
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "STUB_BEGAN": str(root / "began"),
        }
        self.began = root / "began"

    def run(self, *options: str) -> tuple[int, str]:
        words = [sys.executable, "-m", "wal_agent", "run", "gemini", *options, "--", "-p", "go"]
        said = subprocess.run(
            words, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        return said.returncode, said.stderr

    @property
    def box(self) -> Outbox:
        (found,) = list_boxes(self.env)
        return found


@pytest.fixture
def yard(tmp_path: Path, sink: Sink) -> Iterator[Yard]:
    made = Yard(tmp_path, sink)
    yield made
    for box in list_boxes(made.env):  # a sender with nothing to send ends
        for name in box.letters():
            box.change(name, lambda _: None)
        until(lambda box=box: not box.served, "it ends")  # type: ignore[misc]
    shutil.rmtree(made.runtime, ignore_errors=True)


def test_a_halt_and_a_recovery_reach_people_and_no_run_waits_for_it(yard: Yard, sink: Sink) -> None:
    sink.open.clear()  # the service takes messages and does not answer: both runs are over before it does
    code, err = yard.run("--on-ambiguity", "halt")
    assert code == 79 and not yard.began.exists(), err
    halt = sink.next()
    assert (halt["title"], halt["type"]) == ("shop: stopped with 79, a person is needed", "failure")
    assert "wal-agent status --job shop" in halt["message"] and yard.box.served

    code, err = yard.run()
    assert yard.began.exists(), err
    assert "ended what the agent left running" not in err, "the sender is none of it"
    assert "WAL_AGENT_NOTIFY" not in Path(f"{yard.began}.env").read_text()
    waiting = [letter.title for letter in yard.box.letters().values()]
    assert "shop: recovered on" in " ".join(waiting)
    assert not any(letter.insists for letter in yard.box.letters().values()), "a start is an answer"

    sink.open.set()
    told = sink.next()
    while told["title"] == halt["title"]:  # it was not answered in time, so it may come again
        told = sink.next()
    assert told["title"].startswith("shop: recovered on ") and told["type"] == "warning"
    assert "Open: 1 call (1 open): 1 unknown." in told["message"] and "wal-agent log" in told["message"], told
    until(lambda: not yard.box.served, "with nothing to send it ends")
    assert not yard.box.letters() and not yard.box.failures()
