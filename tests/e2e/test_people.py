"""What a person can say: ack, --fresh, --continue, --on-ambiguity, a new prompt, a look ahead; and plain refusals."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.e2e.scene import (
    LONG,
    TASK,
    Scene,
    check_exact,
    check_log,
    commands_in,
    crashed,
    notices,
    texts_in,
)
from tests.tiers import deep
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Turn
from wal_agent.wording.messages import look_first


def contents(*folders: Path) -> dict[str, tuple[str, int]]:
    """Every file below, by hash and time of change, without what SQLite notes its readers in."""
    files = (p for folder in folders for p in folder.rglob("*") if p.is_file() and not p.name.endswith("-shm"))
    return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in files}


def test_a_person_decides(scene: Scene) -> None:
    """I8: nothing forgets an open call. It is halted for, looked at, told, and settled by a word to the running job;
    then the job closes, and can be continued."""
    machine = scene.machine("vm-1")
    crashed(scene, machine)

    before = contents(scene.bucket, machine.home, scene.workspace)
    ahead = machine.cli("recover", "--dry-run")
    assert ahead.returncode == 0, ahead.stderr
    assert "a start would resume session" in ahead.stdout
    assert "One tool call was in flight" in ahead.stdout
    told = json.loads(machine.cli("recover", "--dry-run", "--json").stdout)
    (call,) = told["recovery"]["calls"]
    assert (told["start"], call["class"], call["finding"]) == ("resume", "mutation", "unknown")
    assert call["next"] in told["prompt"] and call["next"] in ahead.stdout and call["source"] == "wal-agent"
    assert contents(scene.bucket, machine.home, scene.workspace) == before, "a look changes nothing"

    for option in (["--fresh"], ["--on-ambiguity", "halt"]):
        refused = machine.ask(TASK, options=option, wait=True)
        assert refused.process.returncode == 79, refused.stderr()
        assert "#1 Bash" in refused.stderr()
        assert "wal-agent ack --job job" in refused.stderr()
    assert len(scene.model.requests) == 1, "no agent was started for that"

    scene.script(Turn(text="I looked; and I know the new wish."))
    hold = scene.hold_turn(0)
    run = machine.ask("now something else")
    scene.asked(2)
    texts = texts_in(scene.model.requests[1])
    assert len(notices(scene.model.requests[1])) == 1
    notice = notices(scene.model.requests[1])[0]
    assert notice.index("One tool call was in flight") < notice.index("now something else")
    assert sum("now something else" in text for text in texts) == 1
    assert sum(TASK in text for text in texts) == 1
    acked = machine.cli("ack", "1", "--not-done")
    assert acked.returncode == 0, acked.stderr
    assert "is settled" in acked.stderr
    hold.set()
    assert run.wait() == 0, run.stderr()
    assert "open: #" not in run.stderr()
    assert machine.status()["state"] == "closed"

    scene.script(Turn(text="As you like."))
    more = machine.ask("and more", options=["--continue"], wait=True)
    assert more.process.returncode == 0, more.stderr()
    request = scene.model.requests[2]
    assert "I looked; and I know the new wish." in texts_in(request, "model")
    assert "and more" in texts_in(request)[-2] + texts_in(request)[-1]
    assert commands_in(request) == [LONG]
    log = check_log(scene, [])
    ends = [(r["call"], r["how"], r["by"], r["finding"]) for r in log if r["type"] == "end"]
    assert ends == [(1, "resolved", "person", "not_started")]
    assert scene.side() == ["begun"]


@deep
def test_ack_after_the_end(scene: Scene) -> None:
    """I8: an agent's own words settle nothing, and its turn goes on once so that it looks; a person's do, from any
    machine, once; then the job closes."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    crashed(scene, first)
    scene.script(Turn(text="It was done, believe me."), Turn(text="I said so."))
    asked = len(scene.model.requests)
    run = second.ask(TASK, options=["--wait"], wait=True, WAL_AGENT_UNVERIFIED="fail")
    assert run.process.returncode == 79, run.stderr()
    first_answer, nudged = scene.model.requests[asked:]
    said = look_first([(1, "`Bash`", "")])
    assert [any(said in text for text in texts_in(request)) for request in (first_answer, nudged)] == [False, True]
    assert "open: #1 Bash" in run.stderr()
    check_exact(scene, second)
    status = second.status()
    unlooked = "nothing has looked at it, so the job is not complete"
    assert (status["state"], [c["call"] for c in status["unsettled"]]) == ("released", [1]), unlooked

    before = scene.records()
    assert second.cli("ack", "7", "--done").returncode == 64
    assert second.cli("ack", "1").returncode == 64
    third = scene.machine("vm-3")
    acked = third.cli("ack", "1", "--done")
    assert acked.returncode == 0, acked.stderr
    status = third.status()
    assert (status["state"], status["unsettled"]) == ("closed", [])
    again = third.cli("ack", "1", "--not-done")
    assert again.returncode == 64
    assert "not open" in again.stderr
    ends = [r for r in check_log(scene, before) if r["type"] == "end"]
    assert [(e["how"], e["finding"]) for e in ends] == [("resolved", "completed")]


@deep
def test_a_bucket_that_cannot_be_written(scene: Scene) -> None:
    """I5: no log, no agent; one line says what is in the way."""
    machine = scene.machine("vm-1")
    scene.bucket.write_text("a file where the bucket's folder should be\n")
    run = machine.ask(TASK, wait=True)
    assert run.process.returncode in (69, 77), run.stderr()
    origin, why = run.stderr().splitlines()
    assert "(from WAL_AGENT_BUCKET)" in origin and str(scene.bucket) in why
    assert scene.model.requests == []


def test_what_starts_no_session_passes_through(scene: Scene) -> None:
    """I6: `--version` is the agent's own; no job comes of it."""
    machine = scene.machine("vm-1")
    run = machine.run("--version", wait=True)
    assert run.process.returncode == 0
    assert run.stdout().strip() == f"codex-cli {AGENTS['codex'].tested}"
    assert "wal-agent" not in run.stderr()
    assert not scene.bucket.exists()
