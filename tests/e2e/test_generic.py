"""End to end: `wal-agent run generic` around a small program of its own, on machines that are lost.

The program writes a line into its session file for each step and can go on with words like a real CLI's.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import TESTS
from tests.e2e.scene import opened, until
from tests.faulty_bucket import FaultFile, faulty_environment, write_faults
from wal_agent.config import Consents
from wal_agent.supervise.settings import wants_of
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseDoc
from wal_agent.wal.reader import replay
from wal_agent.wal.state import State

UNLOGGED = "generic: no tool call is logged before it runs, so nothing is known of one that a crash cuts off"
TOY = """\
import json, os, pathlib, sys, time
home, args = pathlib.Path(os.environ["HOME"]), sys.argv[1:]
history, state = home / ".toy" / "history.md", pathlib.Path("state") / "s.json"
history.parent.mkdir(exist_ok=True)
state.parent.mkdir(exist_ok=True)
file = os.environ.get("WAL_AGENT_RECOVERY_PROMPT")
print(json.dumps({
    "args": args,
    "session": os.environ["WAL_AGENT_SESSION"],
    "history": history.read_text() if history.exists() else None,
    "prompt": pathlib.Path(file).read_text() if file else None,
    "mode": oct(os.stat(file).st_mode & 0o777) if file else None,
}), flush=True)
(home / ".toy" / "auth.json").write_text("secret")
with history.open("a") as out:
    out.write(f"step {args[0]}\\n")
state.write_text(json.dumps({"last": args[0]}))
pathlib.Path("made.txt").write_text("made\\n")
if "--go-on" in args:
    sys.exit(0)
while args[0] == "wait":
    time.sleep(0.05)
sys.exit(int(args[0]))
"""
OWN = '[generic]\nsession = ["~/.toy"]\n'
RESUME = 'resume = ["--go-on", "--session={session}", "--message", "{prompt}"]\n'
PROJECT = '[generic]\nsession = ["state/*.json"]\n'


@dataclass
class Machine:
    """A host with its own HOME and workspace, before one bucket."""

    root: Path
    name: str
    own: str
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home, self.work = self.root / self.name, self.root / f"{self.name}-work"
        config = self.home / ".config/wal-agent/wal-agent.toml"
        config.parent.mkdir(parents=True)
        if self.own:
            config.write_text(self.own)
        self.work.mkdir()
        (self.work / "wal-agent.toml").write_text(PROJECT)
        env = {"HOME": str(self.home)}
        Consents(self.work.resolve(), env).allow(wants_of(self.work.resolve(), env))
        self.runtime = Path(f"/tmp/wg-{os.getpid()}-{abs(hash(str(self.home))) % 10**8}")

    def start(self, *args: str, **env: str) -> subprocess.Popen[str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        process = subprocess.Popen(
            [sys.executable, "-m", "wal_agent", *args],
            cwd=self.work,
            env={
                **kept,
                "PYTHONPATH": str(TESTS.parent),
                "HOME": str(self.home),
                "WAL_AGENT_BUCKET": f"file://{self.root}/bucket",
                "WAL_AGENT_JOB": "job",
                "WAL_AGENT_RUNTIME_DIR": str(self.runtime),
                "WAL_AGENT_HOST_ID": self.name,
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        return process

    def run(self, *toy: str, **env: str) -> subprocess.Popen[str]:
        toy = (sys.executable, str(self.root / "toy.py"), *toy) if toy else ()
        return self.start("run", "generic", "--ttl", "1", "--wait", "--", *toy, **env)

    def done(self, *toy: str, **env: str) -> tuple[int, dict[str, Any], str]:
        """Exit code, what the program found, and what wal-agent said."""
        out, err = self.run(*toy, **env).communicate(timeout=120)
        return self.running[-1].returncode, json.loads(out) if out else {}, err


@dataclass
class Yard:
    root: Path
    machines: list[Machine] = field(default_factory=list)

    def machine(self, own: str = OWN + RESUME) -> Machine:
        self.machines.append(Machine(self.root, f"vm-{len(self.machines) + 1}", own))
        return self.machines[-1]

    def state(self) -> State:
        with opened(f"file://{self.root}/bucket") as bucket:
            return replay(bucket, Keys("job")).state

    def lease(self) -> LeaseDoc:
        with opened(f"file://{self.root}/bucket") as bucket:
            seen = leases.read_lease(bucket, Keys("job"))
        assert seen is not None
        return seen.doc

    def saved(self) -> bool:
        state = self.state()
        return {"home/.toy/history.md", "workspace/state/s.json"} <= set(state.files) and state.workspace is not None

    def lost(self, machine: Machine) -> str:
        """Let the program work until all is saved, and switch the machine off. Gives the session's id."""
        run = machine.run("wait")
        until(self.saved, "the session and the working tree are saved")
        found = psutil.Process(run.pid).children(recursive=True)
        run.send_signal(signal.SIGKILL)
        for process in found:
            try:
                process.kill()
            except psutil.Error:
                pass
        run.communicate(timeout=60)
        machine.work.rename(self.root / "gone")
        return self.state().session


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path.resolve())
    (made.root / "toy.py").write_text(TOY)
    yield made
    for machine in made.machines:
        for process in machine.running:
            if process.poll() is None:
                process.kill()
                process.communicate()
        shutil.rmtree(machine.runtime, ignore_errors=True)


def test_a_lost_machine(yard: Yard) -> None:
    """Files come back where the other machine has them, and the command goes on with the person's words."""
    session = yard.lost(yard.machine())
    second = yard.machine()
    (second.home / ".toy").mkdir()
    (second.home / ".toy/history.md").write_text("another project's\n")
    code, seen, said = second.done("7")
    assert code == 0, said
    prompt = seen["prompt"]
    assert seen["args"] == ["7", "--go-on", f"--session={session}", "--message", prompt]
    assert (seen["session"], seen["history"], seen["mode"]) == (session, "step wait\n", "0o600")
    assert prompt.startswith("[wal-agent recovery] The machine that you worked on")
    assert "What was in flight is not known: no tool call of this agent is logged before it runs." in prompt
    assert "No tool call was in flight" not in prompt
    assert (second.work / "made.txt").read_text() == "made\n"
    assert (second.home / ".toy/history.md").read_text() == "step wait\nstep 7\n"
    assert said.count(UNLOGGED) == 1 and "restored   session" in said
    kept = next((second.home / ".local/state/wal-agent/jobs/job/pre-restore").glob("*"))
    assert [p.read_text() for p in (kept / "replaced").rglob("history.md")] == ["another project's\n"]
    state = yard.state()
    assert (state.turn, state.calls) == ("completed", 0)
    assert not any("auth" in name for name in state.files)  # never a credential
    assert not list(second.runtime.rglob("prompt.md"))


def test_without_words_it_starts_as_it_was_and_the_prompt_is_in_a_file(yard: Yard) -> None:
    yard.lost(yard.machine(OWN))
    second = yard.machine(OWN)
    code, seen, said = second.done("0")
    assert (code, seen["args"], seen["history"]) == (0, ["0"], "step wait\n")
    assert seen["prompt"].startswith("[wal-agent recovery]")
    assert "after a crash the command starts again unchanged, with the recovery notice in the file" in said
    assert "starting   the command again" in said and "resuming" not in said


def test_exit_code_0_is_all_that_tells_of_a_completed_task(yard: Yard) -> None:
    machine = yard.machine()
    code, seen, _ = machine.done("3")
    assert (code, seen["prompt"]) == (3, None)
    code, seen, said = machine.done("0")
    assert (code, seen["args"][1], seen["history"]) == (0, "--go-on", "step 3\n")
    assert "Recovering on" in said
    first = seen["session"]
    other = machine.start("run", "generic", "--", "sh", "-c", "exit 0")
    assert "last run with" in other.communicate(timeout=60)[1] and other.returncode == 78
    code, seen, said = machine.done("0")
    assert (code, seen["args"], seen["prompt"]) == (0, ["0"], None) and "Recovering on" not in said
    assert seen["session"] != first


def test_given_up_in_good_order_it_is_not_said_that_nothing_was_in_flight(yard: Yard) -> None:
    machine = yard.machine()
    run = machine.run("wait")
    until(yard.saved, "the session is saved")
    until(lambda: yard.lease().phase == "executing_tools", "its phase is that of a command, not of a model")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 143
    foreseen = machine.start("recover", "--dry-run").communicate(timeout=60)[0]
    assert "start the command again" in foreseen and "resume session" not in foreseen
    code, seen, _ = machine.done("0")
    assert code == 0 and "What was in flight is not known" in seen["prompt"]
    assert "no tool call was in flight" not in seen["prompt"]


def test_a_bucket_that_hangs_holds_no_drain_up_and_leaves_a_crash(yard: Yard) -> None:
    """R6: what is not saved is not given up; and the machine's end does not wait for a request that hangs."""
    machine, faults = yard.machine(), yard.root / "faults.json"
    run = machine.run("wait", **faulty_environment(faults), WAL_AGENT_DRAIN="2")
    until(yard.saved, "the session and the working tree are saved")
    write_faults(faults, FaultFile(latency=(1000, 1000)))
    run.send_signal(signal.SIGTERM)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 69 and "could not be saved" in err and "is saved and stopped" not in err
    assert yard.lease().state == "held"


def test_sigterm_during_a_restore_gives_the_job_back_at_once(yard: Yard) -> None:
    """Here what is to be restored cannot be had, and it would be asked for again and again."""
    first = yard.machine()
    (first.work / "big").write_bytes(os.urandom(200_000))
    yard.lost(first)
    second, faults = yard.machine(), yard.root / "faults.json"
    write_faults(faults, FaultFile(down=True, ops=("get",), prefixes=("job/blobs/",)))
    run = second.run("wait", **faulty_environment(faults), WAL_AGENT_DRAIN="600")
    assert run.stderr is not None
    said = ""
    with run:
        while "locked out" not in said:
            said += run.stderr.readline()
        run.send_signal(signal.SIGTERM)
        assert run.wait(120) == 143
        assert "interrupted by SIGTERM before the agent was started" in run.stderr.read()
    assert (yard.lease().state, "interrupted by SIGTERM" in yard.lease().reason) == ("released", True)
    code, seen, said = second.done("0")
    assert code == 0 and "step wait" in seen["history"] and "Recovering on" in said
    assert (second.work / "big").stat().st_size == 200_000


def test_a_machine_that_does_not_name_the_files_is_told_where_to(yard: Yard) -> None:
    """A log never chooses what is written; nothing is, and nothing is started."""
    yard.lost(yard.machine())
    second = yard.machine("")
    code, seen, said = second.done("0")
    assert (code, seen) == (73, {})
    assert "is not named on this machine: [generic] session in" in said
    assert not (second.home / ".toy").exists()


def test_a_project_that_names_words_to_run_is_refused(yard: Yard) -> None:
    machine = yard.machine()
    (machine.work / "wal-agent.toml").write_text('[generic]\nresume = ["--x"]\n')
    code, seen, said = machine.done("0")
    assert (code, seen) == (78, {})
    assert "is not a project's to choose" in said and f"{machine.home}/.config/wal-agent/wal-agent.toml" in said
    assert not (yard.root / "bucket").exists()


def test_without_a_command_nothing_is_begun(yard: Yard) -> None:
    """Not even where the log has one: what stands in a bucket never chooses a program."""
    machine = yard.machine()
    machine.done("3")
    code, seen, said = machine.done()
    assert (code, seen) == (78, {}) and "generic has no command to run" in said


def test_resume_takes_the_command_that_was_typed_here_and_no_other(tmp_path: Path) -> None:
    """Who writes the bucket does not choose what runs."""
    work = tmp_path / "work"
    work.mkdir()

    def wal_agent(home: str, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / home).mkdir(exist_ok=True)
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path / home),
            "WAL_AGENT_BUCKET": f"file://{tmp_path}/bucket",
        }
        argv = [sys.executable, "-P", "-m", "wal_agent", *words]
        return subprocess.run(argv, cwd=work, env=env, text=True, capture_output=True, timeout=60, check=False)

    job = ["--job", "steps"]
    assert wal_agent("mine", "run", "generic", *job, "--", "sh", "-c", "echo step >> side").returncode == 0
    assert wal_agent("mine", "resume").returncode == 0
    assert (work / "side").read_text() == "step\nstep\n"
    refused = wal_agent("another", "resume", *job)
    assert refused.returncode == 78 and "echo step >> side" in refused.stderr
    assert (work / "side").read_text() == "step\nstep\n"
