"""A job that pauses itself by a tool goes on by itself or on another machine, and is told what it was waiting for."""

from __future__ import annotations

import shlex
import sys

from tests.e2e.scene import Scene, check_log, results_in, shell, told, until
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

LEASE = ["--ttl", "600"]  # seconds: that nothing here is decided by a lease that runs out


def pausing(lasts: str) -> str:
    return f"{shlex.quote(sys.executable)} -m wal_agent pause --for {lasts} --reason 'rate limit'"


@deep
def test_a_run_that_pauses_itself_goes_on_by_itself_and_elsewhere_when_it_was_killed(scene: Scene) -> None:
    """I2, I3, I4, I8: the very call that asks has its answer and its end, so nothing is in flight; SIGKILL while the
    run waits loses nothing: the lease says until when, and everybody keeps to it. The agent has its last word."""
    first, second = scene.machine("vm-1"), scene.machine("vm-2")
    scene.script(
        Turn(calls=[shell(f"echo one >> side; {pausing('2s')}")], when="do the work"),
        Turn(calls=[shell(f"echo two >> side; {pausing('1h')}")], when="The job was paused at"),
        Turn(text="I am back.", when="The pause was ended early"),
        *[Turn(text="I stop here.", when="is being paused until") for _ in range(2)],
    )
    run = first.ask("do the work", options=LEASE)
    until(lambda: scene.records() and (doc := scene.lease()).until > doc.time + 3000, "it waits for the second pause")
    assert "was paused on" in run.stderr() and "Continuing on" in run.stderr()
    notice = next(r for r in scene.model.requests if "was paused at" in told(r))
    assert "for this reason: `rate limit`. You continue on the same machine" in told(notice)
    assert "Nothing went wrong" in told(notice) and "no tool call was in flight" in told(notice)
    assert any("is being paused until" in r.text for r in results_in(notice))
    log = before = scene.records()
    assert [r["how"] for r in log if r["type"] == "end"] == ["done"] * 2
    assert [r["reason"] for r in log if r["type"] == "run_ended"] == ["rate limit"] * 2
    assert [r["state"] for r in log if r["type"] == "turn"] == ["started"] * 2, (
        "a turn that a pause ends is not complete"
    )
    paused = next(r["until"] for r in log if r["type"] == "run_ended")
    began = [r["time"] for r in log if r["type"] == "opening"]
    assert began[0] < paused <= began[1] + 0.5  # one clock; but a file's time may be coarser
    assert [r["phase"] for r in log if r["type"] == "phase"].count("pausing") == 2

    run.kill()
    run.died()
    status = second.status()
    assert (status["state"], status["reason"]) == ("paused", "rate limit") and 3000 < status["left"] <= 3600
    refused = second.ask("do the work", options=[*LEASE, "--exit-on-pause"], wait=True)
    assert refused.process.returncode == 75 and "is paused until" in refused.stderr(), refused.stderr()
    assert "is paused until" in second.cli("pause", "--for", "1s", "--reason", "not so long").stderr
    again = second.ask("do the work", options=LEASE, wait=True)
    assert again.process.returncode == 0, again.stderr()
    text = told(scene.model.requests[-1])
    assert "`rate limit`. The pause was ended early. You are now on" in text
    assert scene.side() == ["one", "two"]
    assert check_log(scene, before)[-1]["type"] == "run_ended"
