"""Others in the same HOME: a plain Gemini beside a run, after a killed one, and two runs at once (I6, I7)."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.scene import PATIENCE, Machine, Scene, calls_in, results_in, told, until
from tests.tiers import deep
from wal_agent.agents.gemini.hooks import MARKER
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell
LONG = "echo begun >> side; touch started; sleep 600; echo ended >> side"


def plain(scene: Scene, machine: Machine, word: str) -> Path:
    """A Gemini without us does one step, to its end; the file of its session."""
    before = set(chats(machine))
    step = f"echo did-{word} | tee -a plain"
    scene.model.turns += [
        Turn(when=f"please {word}", calls=[shell(step)]),
        Turn(when=f"did-{word}", text="Plainly done."),
    ]
    done = subprocess.run(
        [scene.program, "-y", "-p", f"please {word}"],
        cwd=scene.workspace,
        env=machine.env(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Plainly done." in done.stdout
    assert "wal-agent" not in done.stdout + done.stderr
    assert scene.side("plain")[-1] == f"did-{word}"
    request = scene.model.requests[-1]
    assert "wal-agent" not in told(request).replace(str(scene.root), ""), "it is told nothing of us"
    new = set(chats(machine)) - before
    assert len(new) == 1
    return new.pop()


def chats(machine: Machine) -> list[Path]:
    return [*(machine.home / ".gemini/tmp").glob("*/chats/session-*.jsonl")]


def extensions(machine: Machine) -> list[str]:
    """Those of runs; the user's folder, which other Geminis read, has none."""
    assert not (machine.home / ".gemini/extensions").exists()
    return sorted(p.name for p in machine.runtime.glob("*/extensions/*"))


@deep
def test_a_plain_gemini_beside_a_run_and_after_a_killed_one(scene: Scene) -> None:
    """I7: the plain one loads nothing of a run, nor of what a killed one left."""
    machine = scene.machine("vm-1")
    scene.script(Turn(when="please work", text="Now.", calls=[shell(LONG)]))
    run = machine.ask("please work")
    until(lambda: (scene.workspace / "started").exists(), "the run's tool runs")
    assert len(extensions(machine)) == 1

    beside = plain(scene, machine, "beside")
    assert [r["tool"] for r in scene.records() if r["type"] == "intent"] == ["run_shell_command"]
    assert run.process.poll() is None

    run.kill()
    run.died()
    left = extensions(machine)
    assert len(left) == 1
    untouched = beside.read_bytes()
    plain(scene, machine, "after")
    assert extensions(machine) == left, "it is not the plain one's to remove"
    assert beside.read_bytes().startswith(untouched)

    scene.script(Turn(when="wal-agent recovery", text="It began. I stop."))
    hold = scene.hold_turn(0)
    seen = len(scene.model.requests)
    again = machine.ask("please work")
    scene.asked(seen + 1)
    assert len(set(extensions(machine)) - set(left)) == 1
    hold.set()
    assert again.wait() == 0, again.stderr()
    assert extensions(machine) == left, "in the folder of the killed run, which nothing reads"
    assert beside.read_bytes().startswith(untouched)
    assert scene.side() == ["begun"]
    assert scene.side("plain") == ["did-beside", "did-after"]


@deep
def test_two_runs_at_once(scene: Scene) -> None:
    """I1, I6: each run's hooks answer its own agent only; two logs with one call each."""
    machine = scene.machine("vm-1")
    jobs = ("left", "right")
    scene.script(
        *(Turn(when=f"please {job}", calls=[shell(f"echo did-{job} | tee -a side")]) for job in jobs),
        *(Turn(when=f"did-{job}", text=f"Done {job}.") for job in jobs),
    )
    holds = [scene.hold_turn(n) for n in range(2)]
    runs = [machine.ask(f"please {job}", WAL_AGENT_JOB=job) for job in jobs]
    scene.asked(2)
    assert len(extensions(machine)) == 2
    for hold in holds:
        hold.set()
    for job, run in zip(jobs, runs, strict=True):
        assert run.wait() == 0, run.stderr()
        assert f"Done {job}." in run.stdout()
        log = scene.records(job)
        inputs = [json.loads(r["input"]["data"])["command"] for r in log if r["type"] == "intent"]
        assert inputs == [f"echo did-{job} | tee -a side"]
        assert [r["how"] for r in log if r["type"] == "end"] == ["done"]
        status = machine.cli("status", "--json", WAL_AGENT_JOB=job)
        assert json.loads(status.stdout)["state"] == "closed"
    assert sorted(scene.side()) == ["did-left", "did-right"]
    assert extensions(machine) == []


def test_a_recovery_does_not_replace_the_files_that_another_run_works_on(scene: Scene) -> None:
    """I2, I7: the job's files go into a folder only once no other run of this user is at work in it."""
    lost = scene.machine("vm-1")
    scene.script(
        Turn(when="please work", calls=[shell("echo saved | tee both")]),
        Turn(when="saved", calls=[shell("touch started; sleep 600")]),
    )
    run = lost.ask("please work")
    until(lambda: any(r["type"] == "workspace" and r["holds"] for r in scene.records()), "the files are saved")
    until(lambda: (scene.workspace / "started").exists(), "the second call runs")
    run.kill()
    run.died()
    lost.lost()

    folder = scene.workspace
    folder.rename(folder.with_name("lost"))
    folder.mkdir()
    here = scene.machine("vm-2")
    scene.script(
        Turn(when="please stay", calls=[shell("echo newer > both; touch begun; sleep 600")]),
        Turn(when="wal-agent recovery", text="I stop."),
    )
    other = here.ask("please stay", WAL_AGENT_JOB="other")
    until(lambda: (folder / "begun").exists(), "another job works in the folder")
    refused = here.ask("please work", options=["--wait"], wait=True)
    assert refused.process.returncode == 75 and "other" in refused.stderr(), refused.stderr()
    assert (folder / "both").read_text() == "newer\n"
    other.kill()
    other.died()
    again = here.ask("please work", wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert (folder / "both").read_text() == "saved\n"


def deletes(scene: Scene, machine: Machine, ours: Path) -> None:
    """A Gemini without us deletes the file of our session at its start."""
    scene.model.turns.append(Turn(when="please wait", hold=threading.Event()))  # it does not wait for the deletion
    env = machine.env(GEMINI_CLI_NO_RELAUNCH="true")
    with ours.open("rb") as file:  # open, so that no new file is given its number
        was = os.fstat(file.fileno()).st_ino
        words = (str(scene.program), "-y", "-p", "please wait")
        other = subprocess.Popen(words, cwd=scene.workspace, env=env, stdin=subprocess.DEVNULL)
        until(lambda: not ours.exists() or ours.stat().st_ino != was, "the other's start deletes it")
        other.kill()
        other.wait()


@deep
def test_another_gemini_deletes_the_session_at_its_start(scene: Scene) -> None:
    """I3, I4: while no prompt stands in it, and then again, since what Gemini goes on in has no head. All is saved."""
    machine = scene.machine("vm-1")
    go = scene.root / "go"
    hold = f'[ -z "${MARKER}" ] || until [ -e {go} ]; do sleep 0.05; done'
    hook = {"hooks": [{"type": "command", "command": hold, "timeout": 600_000}]}
    machine.settings.write_text(
        json.dumps({**json.loads(machine.settings.read_text()), "hooks": {"SessionStart": [hook]}})
    )
    scene.script(
        Turn(when="please work", text="Now.", calls=[shell("echo did-one | tee -a side")]),
        Turn(when="did-one", text="Next.", calls=[shell("echo did-two | tee -a side")]),
        Turn(when="did-two", text="Never said."),
    )
    holds = {n: scene.hold_turn(n) for n in (1, 2)}
    run = machine.ask("please work", options=["--autosave", "0.5"])
    until(lambda: any(r["type"] == "file" for r in scene.records()), "the young session is saved")
    (ours,) = chats(machine)
    deletes(scene, machine, ours)
    go.touch()

    scene.saved(1)
    assert b"sessionId" not in ours.read_bytes().partition(b"\n")[0]
    deletes(scene, machine, ours)
    holds[1].set()
    scene.saved(2)
    run.kill()
    run.died()

    scene.script(Turn(when="wal-agent recovery", text="Both are done."))
    seen = len(scene.model.requests)
    again = machine.ask("please work", wait=True)
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[seen]
    assert told(request).count("please work") >= 1
    assert [c["command"] for _, c in calls_in(request)] == [f"echo did-{n} | tee -a side" for n in ("one", "two")]
    assert "did-one" in str(results_in(request))
    assert "Next." in told(request)
    assert scene.side() == ["did-one", "did-two"]
