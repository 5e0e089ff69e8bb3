"""The crash story on the real CLI: what was in flight is told, what was finished is put back, nothing is done twice."""

from __future__ import annotations

import pytest

from tests.e2e.scene import Scene, commands_in, results_in, shell, told, until
from tests.processes import gone
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

HALF_DONE = "echo begun >> side; touch started; sleep 600; echo ended >> side"


def test_clean_run_is_transparent_and_closes_the_job(scene: Scene) -> None:
    """I6, I7, I8: output and exit code are the agent's, the user's files are as before, the lease ends closed."""
    scene.script(Turn(calls=[shell("echo one >> side")]), Turn(text="All done."))
    machine = scene.machine("vm-1")
    before = machine.settings.read_bytes()
    run = machine.ask("do it", wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert "All done." in run.stdout()
    assert "wal-agent" not in run.stdout()
    assert scene.side() == ["one"]
    status = machine.status()
    assert status["state"] == "closed"
    assert status["unsettled"] == []
    ends = [r for r in machine.log() if r["type"] == "end"]
    assert [e["how"] for e in ends] == ["done"]
    assert machine.settings.read_bytes() == before


@deep
def test_kill_in_a_shell_call_on_another_machine_with_an_empty_home(scene: Scene) -> None:
    """I1, I3, I4, I8: the intent was durable, the conversation is back, the call is classified and not repeated."""
    scene.script(
        Turn(text="First a step.", calls=[shell("echo one >> side")]),
        Turn(text="Now the long one.", calls=[shell(HALF_DONE)]),
    )
    first = scene.machine("vm-1")
    run = first.ask("please do the work")
    until(lambda: (scene.workspace / "started").exists(), "the second call runs")
    agent = run.agent_pid()
    run.kill()
    until(lambda: gone(agent), "the agent dies with the wrapper")
    first.lost()

    second = scene.machine("vm-2")
    scene.script(Turn(text="I verified: it began. I stop here."))
    seen = len(scene.model.requests)
    again = second.ask("please do the work", options=["--wait"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[seen]
    assert commands_in(request) == ["echo one >> side", HALF_DONE]
    text = told(request)
    assert "[wal-agent recovery]" in text
    assert "please do the work" in text
    assert text.count("The machine that you worked on") == 1
    assert any("unknown" in r.text for r in results_in(request))
    assert "vm-1" not in again.stdout()
    assert "\n  open  " in again.stderr()
    assert HALF_DONE[:30] in again.stderr()
    assert scene.side() == ["one", "begun"]
    assert [c["tool"] for c in second.status()["unsettled"]] == ["Bash"]


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_session_that_the_user_chose_to_resume_is_saved(scene: Scene) -> None:
    """I3: with `--resume latest` only the handshake tells which session it is; it is captured from then on."""
    machine = scene.machine("vm-1")
    scene.script(Turn(text="First answer."))
    assert machine.ask("first question", wait=True).process.returncode == 0
    session = machine.status()["session"]
    scene.script(Turn(calls=[shell("echo more >> side", scene.agent)]), Turn(text="Second answer."))
    again = machine.run("-y", "--resume", "latest", "-p", "second question", wait=True)
    assert again.process.returncode == 0 and "bug" not in again.stderr(), again.stderr()
    assert "first question" in told(scene.model.requests[-1])
    status = machine.status()
    assert (status["state"], status["session"]) == ("closed", session)
    saved = [r for r in machine.log() if r["type"] == "file" and r["epoch"] == 2]
    assert saved and {r["session"] for r in saved} == {session}
