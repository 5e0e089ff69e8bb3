"""End to end: an agent that dies while nobody looks, `--restart`, and where that ends: crash loops, quotas, one place.

Most are a small program in the agent's place, which tells its calls by real hooks; what only a real CLI can show is
done on one.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.scene import PATIENCE, Scene, until
from tests.tiers import deep
from tests.unit.supervise.crew import short_folder
from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.agents.hook_line import client_command
from wal_agent.bucket import open_bucket
from wal_agent.records import RunEnded
from wal_agent.rehearsal.model import Model, Turn
from wal_agent.wal import lease as leases
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import replay

# `hook EVENT FIELDS` tells one; `starts` counts itself. Its session has always one id, and is in no file.
AGENT = f"""#!/bin/sh
case "$1" in --version) echo {AGENTS["gemini"].tested}; exit 0;; esac
hook() {{
  echo "{{\\"session_id\\":\\"s\\"$2}}" |
    {shlex.join(client_command())} "$WAL_AGENT_SOCKET" "$WAL_AGENT_RUN" gemini "$1" $$ 20 >/dev/null
}}
shell() {{ hook "$1" ",\\"tool_name\\":\\"run_shell_command\\",\\"tool_input\\":{{\\"command\\":\\"$2\\"}}$3"; }}
call() {{ shell BeforeTool "$1"; }}
looked() {{ call "$1"; shell AfterTool "$1" ",\\"tool_response\\":{{\\"llmContent\\":\\"x\\"}}"; }}
echo start >> "$HOME/starts"
starts=$(wc -l < "$HOME/starts")
hook SessionStart ',"source":"startup"'
hook BeforeAgent ',"prompt":"work"'
"""


@dataclass
class Small:
    """A machine whose agent is a shell script."""

    folder: Path

    def __post_init__(self) -> None:
        self.home, self.work = self.folder / "home", self.folder / "work"
        for made in (self.home, self.work):
            made.mkdir()

    def cli(self, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
        base = {name: os.environ[name] for name in ("PATH", "LANG", "PYTHONPATH") if name in os.environ}
        base |= {
            "HOME": str(self.home),
            "WAL_AGENT_GEMINI": str(self.folder / "gemini"),
            "WAL_AGENT_BUCKET": f"file://{self.folder}/bucket",
            "WAL_AGENT_JOB": "job",
            "WAL_AGENT_RUNTIME_DIR": str(self.folder / "run"),
            "WAL_AGENT_WORKSPACE": "off",
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        }
        return subprocess.run(
            [sys.executable, "-m", "wal_agent", *argv],
            cwd=self.work,
            env={**base, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    def run(self, body: str, *options: str) -> subprocess.CompletedProcess[str]:
        program = self.folder / "gemini"
        program.write_text(f"{AGENT}{body}\n")
        program.chmod(0o755)
        return self.cli("run", "gemini", *options, "--", "-y", "-p", "work")

    @property
    def starts(self) -> int:
        return len((self.home / "starts").read_text().splitlines())

    def ends(self) -> list[RunEnded]:
        """Read here: a command takes as long as a run."""
        return [*replay(open_bucket(f"file://{self.folder}/bucket"), Keys("job")).state.ends]


@pytest.fixture
def small() -> Iterator[Small]:
    with short_folder() as folder:
        yield Small(folder)


def test_an_agent_that_dies_in_a_call_is_started_again_and_the_loop_ends(small: Small) -> None:
    """Each start goes through the whole plan, which stops it: 80."""
    done = small.run('call "make step-$starts"; kill -9 $$', "--restart", "--restart-limit", "3")
    assert (done.returncode, small.starts) == (80, 3), done.stderr
    assert done.stderr.count("gemini: killed by SIGKILL. Starting it again") == 2
    assert done.stderr.count("gemini: killed by SIGKILL. That is crash 3 of --restart-limit 3: looking") == 1
    assert "3 crashes in 10 minutes, the last one in run_shell_command `make step-3` (killed)." in done.stderr
    assert "See: wal-agent log --job job" in done.stderr
    assert [(r.code, r.cls) for r in small.ends()] == [(-9, "killed")] * 3


def test_the_same_call_is_not_tried_a_third_time_until_a_person_has_looked(small: Small) -> None:
    done = small.run('[ "$starts" = 1 ] || looked "cat e2e"; call "make e2e"; kill -9 $$', "--restart")
    assert (done.returncode, small.starts) == (80, 2), done.stderr
    assert "It died twice in a row in run_shell_command `make e2e` (killed). Not tried a third time" in done.stderr
    assert small.run("hook AfterAgent").returncode == 80, "that is in the log, not in a process"
    assert small.cli("ack", "3", "--not-done").returncode == 0
    after = small.run("echo why >&2; exit 3", "--restart")
    assert (after.returncode, small.starts) == (3, 3) and "why\n" in after.stderr, "a failure is the agent's own"
    assert [r.cls for r in small.ends()] == ["killed", "killed", "failed"]


def test_zero_inside_a_turn_is_not_success(small: Small) -> None:
    """Without --restart its end is told, and the same command carries on; with it, that is done."""
    done = small.run("exit 0")
    assert done.returncode == 74 and "ended with 0, but not its turn" in done.stderr, done.stderr
    after = small.run('[ "$starts" = 2 ] && { call ls; exit 0; }; hook AfterAgent; kill -11 $$', "--restart")
    assert (after.returncode, small.starts) == (139, 3), f"what is done is not done again: {after.stderr}"
    assert [(r.cls, r.completed) for r in small.ends()] == [
        ("incomplete", False),
        ("incomplete", False),
        ("killed", True),
    ]
    bucket = open_bucket(f"file://{small.folder}/bucket")
    seen = leases.read_lease(bucket, Keys("job"))
    assert seen is not None and seen.doc.state == "released", "whoever starts it anyway must not begin anew"


def test_a_real_heap_that_is_full_is_known_by_its_last_words(small: Small) -> None:
    node = shutil.which("node")
    assert node is not None
    eats = "const a = []; for (;;) a.push(new Array(1e5).fill(a.length + 0.5))"
    done = small.run(f"exec {node} --max-old-space-size=16 -e '{eats}'")
    assert done.returncode == 134 and "JavaScript heap out of memory" in done.stderr
    assert [(r.code, r.cls) for r in small.ends()] == [(-6, "heap")]


# ---- on real CLIs

PID = '"$(dirname "$WAL_AGENT_SOCKET")/agent.pid"'


def test_a_killed_agent_goes_on_by_itself(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    """I3, I8: the conversation is back, and the call in flight is told; nobody typed anything."""
    rehearsal = rehearsal_of(AGENTS["claude"])
    assert rehearsal is not None
    with Model(rehearsal.dialect) as model:
        scene = Scene(tmp_path, agent_cli("claude"), model, "claude")
        scene.script(
            Turn(text="First a step.", calls=[rehearsal.shell("echo one >> side")]),
            Turn(
                text="Now the long one.",
                calls=[rehearsal.shell(f"echo begun >> side; cp {PID} pid; touch started; sleep 600")],
            ),
            Turn(text="I looked: it began. I stop here."),
        )
        machine = scene.machine("vm-1")
        run = machine.run(*rehearsal.args("please do the work"), options=["--restart"])
        until(lambda: (scene.workspace / "started").exists(), "the second call runs")
        until(lambda: said(machine.home / ".claude/projects", b"First a step."), "what it said is on the disk")
        os.kill(int((scene.workspace / "pid").read_text()), signal.SIGKILL)
        assert run.wait() == 0, run.stderr()
        assert "killed by SIGKILL. Starting it again now." in run.stderr()
        notice = json.dumps(model.requests[-1]["messages"])
        assert "First a step." in notice, "the conversation is back"
        assert "[wal-agent recovery]" in notice and "sleep 600" in notice and "everything saved" not in notice
        assert scene.side() == ["one", "begun"]
        assert [r["cls"] for r in machine.log() if r["type"] == "run_ended"] == ["killed", "completed"]
        scene.close()


def said(folder: Path, words: bytes) -> bool:
    return any(words in file.read_bytes() for file in folder.rglob("*.jsonl"))


@deep
def test_a_quota_is_waited_for(tmp_path: Path, agent_cli: Callable[[str], Path]) -> None:
    """Claude says it by a hook of its own; the job rests, for any machine, and is not held meanwhile."""
    rehearsal = rehearsal_of(AGENTS["claude"])
    assert rehearsal is not None
    with Model(rehearsal.dialect) as model:
        scene = Scene(tmp_path, agent_cli("claude"), model, "claude")
        scene.script(Turn(status=429, headers={"retry-after": "7200"}))
        machine = scene.machine("vm-1")
        run = machine.run(*rehearsal.args("please do the work"), options=["--restart"])
        until(lambda: "paused" in run.stderr(), "it waits")
        end = [r for r in machine.log() if r["type"] == "run_ended"][-1]
        assert (end["cls"], end["code"]) == ("quota", 1) and "429" in end["reason"]
        assert 50 < end["until"] - end["time"] < 70, "Claude does not tell the time that it was told"
        run.kill(signal.SIGTERM)
        assert run.wait() == 143, run.stderr()
        scene.close()
