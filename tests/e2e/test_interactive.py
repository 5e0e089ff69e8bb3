"""A person at a terminal: the agent's own screen, approvals, a kill in the middle, and the terminal given back."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.scene import Machine, Scene, check_log, notices, texts_in, until
from tests.e2e.terminal import Terminal
from tests.tiers import deep
from wal_agent.agents.gemini.rehearsal import rehearsal
from wal_agent.rehearsal.model import Turn

pytestmark = pytest.mark.parametrize("scene", ["gemini"], indirect=True)
shell = rehearsal.shell
TASK = "please do the work"
EMPTY = "Type your message"
LONG = "echo begun >> side; touch started; sleep 600; echo ended >> side"


@contextmanager
def terminal(machine: Machine, *options: str) -> Iterator[Terminal]:
    made = Terminal(machine, [], options)
    try:
        yield made
    finally:
        made.close()


def ask(term: Terminal, text: str) -> None:
    """Type a prompt at the agent's own prompt and send it, once its turn is over. An Enter that comes too soon behind
    the text counts as part of a paste there, so it is pressed again while the text still stands."""
    term.shows(rf"(?s)\A(?!.*esc to cancel).*{EMPTY}")
    term.type(text)
    term.shows(f"> {text}")
    for _ in range(10):
        term.press("Enter")
        if term.showed(f"{EMPTY}|esc to cancel|Allow execution", within=5):
            return
    raise AssertionError(term.screen())


def leave(term: Terminal) -> None:
    """^C twice, as its help says; I6: the agent's own code, and the terminal as it was before. It asks for the second
    one within 3 s, which a busy machine may miss."""
    for _ in range(10):
        term.press("C-c")
        if term.ended(within=1):
            break
    assert term.code() == 0
    before, after = term.modes()
    assert before == after
    assert "icanon" in after
    assert "-icanon" not in after


CONTINUE = "wal-agent: to continue this session: wal-agent run gemini"


def ours(screen: str) -> list[str]:
    """Lines of wal-agent's, but for those before the agent's screen began (it may have cleared them)."""
    lines = re.findall(r"^(?:wal-agent: |  (?:locked out|restored|open|cut|runs on|resuming) ).*", screen, re.MULTILINE)
    began = [line for line in lines if line.startswith(("wal-agent: job job", "wal-agent: bucket "))]
    assert len(began) <= 2
    return [line for line in lines if line not in began and not line.startswith(CONTINUE)]


def test_killed_and_resumed_at_a_terminal(scene: Scene) -> None:
    """I1, I4, I6, I8: approved by a person, killed, and back with the old turns; the notice waits for the person."""
    scene.script(
        Turn(text="First a step.", calls=[shell("echo one >> side")]),
        Turn(text="Now the long one.", calls=[shell(LONG)]),
    )
    with terminal(scene.machine("vm-1")) as term:
        ask(term, TASK)
        term.shows("Allow execution")
        assert scene.side() == []
        until(lambda: [r for r in scene.records() if r["type"] == "intent"], "I1: logged before it is approved")
        term.press("Enter")
        until(lambda: scene.side() == ["one"], "the first call runs")
        term.shows("(?s)sleep 600.*Allow execution")
        term.press("Enter")
        until(lambda: (scene.workspace / "started").exists(), "the second call runs")
        assert ours(term.screen()) == []
        term.wrapper().kill()
        assert term.code() == 137
    before = scene.records()

    scene.script(Turn(text="I verified: it began."))
    seen = len(scene.model.requests)
    second = scene.machine("vm-2")
    with terminal(second, "--wait") as term:
        screen = term.shows(rf"(?s)\[wal-agent recovery\] The machine that you worked on.*{EMPTY}")
        assert TASK in screen
        assert "First a step." in screen
        assert ours(screen) == []
        assert len(scene.model.requests) == seen, "nobody has asked for anything"
        ask(term, "where are we?")
        term.shows("I verified: it began")
        leave(term)
        screen = term.screen()
    assert screen.count(CONTINUE) == 1, "the agent was asked of the call, so the next start begins a new conversation"
    lines = ours(screen)
    assert len(lines) == 1, "\n".join(lines)
    assert lines[0].startswith("wal-agent: open: #2 run_shell_command `")
    assert len(notices(scene.model.requests[seen])) == 1
    check_log(scene, before)
    assert scene.side() == ["one", "begun"]


@deep
def test_a_job_of_another_person_is_taken_over_by_a_yes_alone(scene: Scene) -> None:
    """User, host and path are others, so nothing happens before an answer; a thinking person is not taken
    for a slow bucket, and ^C is no answer."""
    first = scene.machine("vm-1")
    scene.script(Turn(text="Now.", calls=[shell(LONG)]))
    run = first.ask(TASK, options=["--job", "shop"], USER="ada", LOGNAME="ada")
    until(lambda: (scene.workspace / "started").exists(), "the call runs")
    run.kill()
    run.died()
    first.end()
    clone = scene.root / "clone"
    subprocess.run(["git", "clone", "-q", scene.workspace, clone], check=True)
    scene.workspace.rename(scene.root / "elsewhere")  # this machine has not the first one's folder
    (clone / "wal-agent.toml").write_text('job = "shop"\n')
    second = scene.machine("vm-2", clone)
    trust = [sys.executable, "-m", "wal_agent", "trust", "--yes"]
    subprocess.run(trust, cwd=clone, env=second.env(WAL_AGENT_JOB=""), check=True)

    def asked() -> Terminal:
        term = Terminal(second, ["-y", "-p", TASK], USER="bob", LOGNAME="bob", WAL_AGENT_JOB="")
        screen = term.shows(r"Take it over\? \[y/N\]")
        assert "last run by ada on" in screen and str(scene.workspace) in screen and LONG[:30] in screen
        return term

    for keys, code in ((["Enter"], 79), (["C-c"], 130)):
        term = asked()
        try:
            term.press(*keys)
            assert term.code() == code
            assert "waiting for" not in term.screen().partition("[y/N]")[2]
        finally:
            term.close()
    resume = [sys.executable, "-m", "wal_agent", "resume"]  # what this folder's project names is not typed
    env = second.env(USER="bob", LOGNAME="bob", WAL_AGENT_JOB="")
    assert subprocess.run(resume, cwd=clone, env=env, stdin=subprocess.DEVNULL, check=False).returncode == 79
    assert len(scene.model.requests) == 1 and scene.records("shop")[-1]["epoch"] == 1
    scene.script(Turn(text="I looked."))
    term = asked()
    try:
        term.press("y", "Enter")
        assert term.code() == 0
    finally:
        term.close()
    assert len(notices(scene.model.requests[1])) == 1


@deep
def test_escape_at_an_approval(scene: Scene) -> None:
    """I8: a call that the person refused has its one end at the next boundary, by the session's own word."""
    scene.script(Turn(text="May I?", calls=[shell("echo never >> side")]), Turn(text="Fine, I leave it."))
    machine = scene.machine("vm-1")
    with terminal(machine) as term:
        ask(term, TASK)
        term.shows("Allow execution")
        until(lambda: [r for r in scene.records() if r["type"] == "intent"], "the intent is logged")
        term.press("Escape")
        term.shows("(?i)cancelled")
        ask(term, "then do not")
        term.shows("Fine, I leave it")
        until(lambda: [r for r in scene.records() if r["type"] == "end"], "the call has its end")
        until(
            lambda: [r["state"] for r in scene.records() if r["type"] == "turn"][-1] == "completed", "its turn is over"
        )
        leave(term)
        assert ours(term.screen()) == []
    ends = [r for r in check_log(scene, []) if r["type"] == "end"]
    assert [(e["call"], e["by"], e["how"]) for e in ends] == [(1, "session", "refused")]
    assert machine.status()["state"] == "closed"
    assert scene.side() == []


@deep
def test_escape_in_a_running_tool_and_the_same_command_again(scene: Scene) -> None:
    """I8: the charge is made, Esc, `/quit`, and the next session, by whoever: the call is listed, and an equal one is
    refused until something has looked."""
    pay = f"echo paid >> side && {LONG}"
    scene.script(Turn(text="I pay.", calls=[shell(pay)]))
    machine = scene.machine("vm-1")
    with terminal(machine) as term:
        ask(term, TASK)
        term.shows("Allow execution")
        term.press("Enter")
        until(lambda: scene.side()[:1] == ["paid"] and (scene.workspace / "started").exists(), "it is paid")
        term.press("Escape")
        term.shows("(?i)cancelled")
        until(lambda: [r for r in scene.records() if r["type"] == "cut"], "it is logged as cut off")
        leave(term)
    log = check_log(scene, [])
    assert [r["call"] for r in log if r["type"] == "cut"] == [1] and not [r for r in log if r["type"] == "end"]
    status = machine.status()
    assert (status["state"], [c["call"] for c in status["unsettled"]]) == ("released", [1])

    seen = len(scene.model.requests)
    scene.script(Turn(calls=[shell(pay)]), Turn(calls=[shell("cat side")]), Turn(text="It was paid."))
    again = machine.ask("go on", wait=True)
    assert again.process.returncode == 0, again.stderr()
    (notice,) = notices(scene.model.requests[seen])
    assert "echo paid >> side" in notice
    assert scene.side().count("paid") == 1
    assert machine.status()["state"] == "closed", "something has looked"


@deep
def test_a_conversation_that_has_nothing_to_be_told_stands_as_it_was_and_waits(scene: Scene) -> None:
    """After a clean end with `--continue`, and after a kill with nothing open: no notice, and no turn unasked."""
    scene.script(Turn(text="It is done."))
    machine = scene.machine("vm-1")
    with terminal(machine) as term:
        ask(term, TASK)
        term.shows("It is done")
        until(
            lambda: [r["state"] for r in scene.records() if r["type"] == "turn"][-1] == "completed", "its turn is over"
        )
        leave(term)
    rounds = (("--continue", "thank you", "You are welcome"), ("--wait", "and once more", "Not at all"))
    for option, words, answer in rounds:
        seen = len(scene.model.requests)
        scene.script(Turn(text=f"{answer}."))
        with terminal(machine, option) as term:
            term.shows(rf"(?s)It is done.*{EMPTY}")
            assert len(scene.model.requests) == seen, "nobody has asked for anything"
            ask(term, words)
            term.shows(answer)
            (request,) = scene.model.requests[seen:]
            assert notices(request) == [] and sum(TASK in text for text in texts_in(request)) == 1
            term.wrapper().kill()
            term.ended(within=30)
