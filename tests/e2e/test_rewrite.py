"""On the real CLIs: a conversation that rests is rewound, compacted, brought back (docs/COMPACTION.md)."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.e2e.scene import Machine, Scene, until
from tests.tiers import KINDS, deep, once
from wal_agent.agents import AGENTS
from wal_agent.rehearsal.model import Called, HistoryText, Returned, Turn

REWOUND = ("claude", "codex", "copilot", "opencode", "pi", "qwen")  # and Gemini by the tests below
WAL_AGENT = f"{shlex.quote(sys.executable)} -m wal_agent"


def continuing(scene: Scene, prompt_args: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The options of `run` and the agent's own words that continue its conversation with a prompt."""
    if scene.agent == "gemini":  # its own second resume repeats each result, which its API refuses
        return ("--continue",), tuple(prompt_args)
    if scene.agent == "codex":
        return (), ("exec", "resume", "--last", *prompt_args[1:])
    return (), ("--continue", *prompt_args)


def ask(scene: Scene, machine: Machine, prompt: str, first: bool = False) -> list[str]:
    """One turn of the job, which looks for a heron; what its first request to the model held."""
    n = prompt.split()[-1]
    args: tuple[str, ...] = machine.rehearsal.args(prompt)
    options, args = ((), args) if first else continuing(scene, args)
    scene.script(
        Turn(f"heron {n}", calls=[machine.rehearsal.shell(f"echo {n} >> side")]),
        Turn(f"finished {n}"),
    )
    asked = len(scene.model.requests)
    run = machine.run(*args, options=options, wait=True)
    assert run.process.returncode == 0, run.stderr()
    return texts(scene, asked)


def texts(scene: Scene, n: int) -> list[str]:
    history = scene.model.history(n)
    assert len([p for p in history if isinstance(p, Called)]) <= len([p for p in history if isinstance(p, Returned)])
    return [part.text for part in history if isinstance(part, HistoryText)]


def holds(found: list[str], *words: str) -> bool:
    return all(any(word in text for text in found) for word in words)


def session_file(scene: Scene, machine: Machine) -> Path:
    agent = AGENTS[scene.agent]
    env = {**os.environ, **machine.env()}
    found = agent.session_files(scene.replay().state.session, scene.workspace, env)
    return next(f.path for f in found if f.name == agent.main_file)


def leave_stub(file: Path) -> None:
    """What a resume of Gemini's that was killed leaves beside the session; its next start then deletes both."""
    head = file.read_text().splitlines()[0]
    context = {"id": "c", "type": "user", "content": [{"text": "<session_context>"}]}
    stub = file.with_name(f"session-1970-01-01T00-01-{file.stem[-8:]}.jsonl")
    stub.write_text(f"{head}\n{json.dumps({'$set': {'messages': [context]}})}\n")


def one_file_each(scene: Scene, machine: Machine) -> bool:
    """Whether each of Gemini's sessions here has one file: it deletes those of one id together."""
    ids = [path.stem[-8:] for path in session_file(scene, machine).parent.glob("session-*.jsonl")]
    return len(ids) == len(set(ids)) > 0


def command(machine: Machine, *args: str) -> str:
    done = machine.cli(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("scene", once(REWOUND, "codex"), indirect=True)
def test_a_conversation_is_rewound_compacted_and_brought_back(scene: Scene) -> None:
    """The next request holds the compact form, and no line of what it stands for; the trace is the file as it was."""
    machine = scene.machine("vm-1")
    ask(scene, machine, "ask number one", first=True)
    command(machine, "mark", "begun")
    ask(scene, machine, "ask number two")
    before = session_file(scene, machine).read_bytes()

    done = json.loads(command(machine, "rewind", "--to", "begun", "--json"))
    assert (done["n"], done["turns"]) == (1, 1)
    assert machine.cli("trace", "show", "1", "--raw").stdout.encode() == before
    lines = json.loads(command(machine, "trace", "show", "1", "--json"))["lines"]
    assert holds([line["text"] for line in lines], "ask number two", "heron two", "finished two")
    assert not holds([line["text"] for line in lines], "ask number one")
    found = ask(scene, machine, "ask number three")
    assert holds(found, "ask number one", "heron one", "wal-agent trace show 1", "ask number three")
    assert not any("heron two" in text or "finished two" in text for text in found)

    done = json.loads(command(machine, "compact", "--policy", "turns=1", "--keep", "1", "--json"))
    assert (done["n"], done["turns"]) == (2, 2)
    nothing = json.loads(command(machine, "compact", "--policy", "turns=1", "--keep", "1", "--json"))
    assert (nothing["n"], nothing["turns"]) == (0, 0), "it is idempotent"
    found = ask(scene, machine, "ask number four")
    assert holds(found, "Asked: ask number one", "echo one", "wal-agent trace show 2", "heron three", "ask number four")
    assert not holds(found, "heron one")

    refused = machine.cli("rewind", "--undo")
    assert refused.returncode == 64, "the conversation went on behind the compaction"
    command(machine, "rewind", "--last", "1")
    rewound = session_file(scene, machine).read_bytes()
    command(machine, "rewind", "--undo")
    assert session_file(scene, machine).read_bytes() != rewound
    found = ask(scene, machine, "ask number five")
    assert holds(found, "Asked: ask number one", "heron three", "heron four", "ask number five")
    assert scene.side() == ["one", "two", "three", "four", "five"]
    assert machine.status()["state"] == "closed"


@pytest.mark.parametrize(
    ("scene", "point"),
    [
        pytest.param("codex", "rewrite.before_record", marks=deep),
        pytest.param("codex", "rewrite.before_place", marks=deep),
        pytest.param("gemini", "rewrite.staged", marks=deep),
        pytest.param("opencode", "rewrite.placed", marks=deep),
    ],
    indirect=["scene"],
)
def test_killed_in_a_rewind_the_conversation_is_the_old_or_the_new_one(scene: Scene, point: str) -> None:
    """I4: whichever version the log holds last is the conversation, here too once the job has begun again."""
    machine = scene.machine("vm-1")
    ask(scene, machine, "ask number one", first=True)
    ask(scene, machine, "ask number two")
    before = session_file(scene, machine).read_bytes()
    killed = machine.cli("rewind", "--last", "1", WAL_AGENT_FAILPOINT=point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (session_file(scene, machine).read_bytes() == before) == (point != "rewrite.placed")
    found = ask(scene, machine, "ask number three")
    assert holds(found, "heron one", "ask number three")
    new = point != "rewrite.before_record"
    assert holds(found, "heron two") != new and holds(found, "wal-agent trace show 1") == new
    assert scene.side() == ["one", "two", "three"]
    assert machine.status()["state"] == "closed"


@pytest.mark.parametrize("scene", once(["claude", "codex", "pi"], "codex"), indirect=True)
def test_the_agent_writes_the_summaries_in_a_copy_of_its_conversation(scene: Scene) -> None:
    """Its words replace the turns in the job's own session, which none of the copy's lines reaches; killed
    behind the answer, the same command uses it; what is no answer leaves the form that is made of the lines."""
    machine = scene.machine("vm-1")
    for n in ("one", "two", "three"):
        ask(scene, machine, f"ask number {n}", first=n == "one")
        if n == "one" and scene.agent == "gemini":  # each resume leaves a file beside it, as in a later minute
            file = session_file(scene, machine)
            file.rename(file.with_name(f"session-1970-01-01T00-00-{file.stem[-8:]}.jsonl"))
    session, asked = scene.replay().state.session, len(scene.model.requests)
    if scene.agent == "gemini":
        assert one_file_each(scene, machine), "no resume left a file"
        leave_stub(session_file(scene, machine))
    words = json.dumps({"summary": "done", "outputs": {"turns": ["The egret is in the first.", "In the second."]}})
    scene.script(Turn(words))
    compact = ("compact", "--policy", "turns=1", "--keep", "1", "--by-agent", "--json")
    killed = machine.cli(*compact, WAL_AGENT_FAILPOINT="rewrite.before_record")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = json.loads(command(machine, *compact))
    assert (done["n"], done["turns"]) == (1, 2)
    assert len(scene.model.requests) == asked + 1 and holds(texts(scene, asked), "heron one", "1. ask number one")
    nothing = json.loads(command(machine, *compact))
    assert nothing["n"] == 0 and len(scene.model.requests) == asked + 1, "the model is asked once"
    state = scene.replay().state
    assert state.session == session and len(state.tasks) == 1
    own = AGENTS[scene.agent].capabilities.forms.resume
    args: tuple[str, ...] = machine.rehearsal.args("ask number four")
    args = args[1:] if scene.agent == "codex" else args
    scene.script(Turn("finished four"))
    asked = len(scene.model.requests)
    run = machine.run(*(word.format(session=session) for word in own), *args, wait=True)
    assert run.process.returncode == 0, run.stderr()
    found = texts(scene, asked)
    assert holds(
        found, "Summary: The egret is in the first.", "Summary: In the second.", "heron three", "ask number four"
    )
    assert not any(w in text for w in ("heron one", "finished two", "about to be replaced") for text in found)
    if scene.agent != "gemini":
        return
    leave_stub(session_file(scene, machine))
    scene.script(Turn("a heron"))
    assert "a heron" in command(machine, "task", "--fork", "Which bird is it?")
    scene.script(Turn("I would rather not."), Turn("No."))
    said = machine.cli("compact", "--policy", "turns=1", "--keep", "1", "--by-agent")
    assert said.returncode == 0 and "no summary of the agent's is used" in said.stderr, said.stderr
    assert scene.replay().state.rewritten == 2 and one_file_each(scene, machine)


@pytest.mark.parametrize("scene", ["claude"], indirect=True)
def test_killed_in_a_compaction_the_same_command_again_does_it_once(scene: Scene) -> None:
    """I4: at each failpoint the file here is the old version; the same command completes it, a third one has nothing to
    do, and each trace is the file as it was."""
    machine = scene.machine("vm-1")
    ask(scene, machine, "ask number one", first=True)
    ask(scene, machine, "ask number two")
    compact = ("compact", "--policy", "turns=1", "--keep", "1")
    for n, point in enumerate(("rewrite.before_record", "rewrite.before_place", "rewrite.staged"), 1):
        before = session_file(scene, machine).read_bytes()
        killed = machine.cli(*compact, WAL_AGENT_FAILPOINT=point)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert session_file(scene, machine).read_bytes() == before
        logged = point != "rewrite.before_record"
        assert len(scene.replay().state.rewrites) == (n if logged else n - 1)
        for again in ("the same", "a third"):
            done = json.loads(command(machine, *compact, "--json"))
            assert done["n"] == (n if again == "the same" and not logged else 0), again
            compacted = session_file(scene, machine).read_bytes()
            assert compacted != before and scene.replay().state.rewritten == n
        assert command(machine, "trace", "show", str(n), "--raw").encode() == before
        found = ask(scene, machine, f"ask number after-{n}")
        assert session_file(scene, machine).read_bytes().startswith(compacted)
        assert holds(found, "Asked: ask number one", f"wal-agent trace show {n}") and not holds(found, "heron one")
    assert scene.side() == ["one", "two", "after-1", "after-2", "after-3"]
    assert machine.status()["state"] == "closed"


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_conversation_is_not_rewritten_while_a_tool_runs_or_a_call_is_open(scene: Scene) -> None:
    """I8: a call in flight stays in the conversation until its outcome is settled."""
    machine = scene.machine("vm-1")
    scene.script(Turn(calls=[machine.rehearsal.shell("echo begun >> side; sleep 1000")]))
    run = machine.run(*machine.rehearsal.args("ask number one"))
    until(lambda: scene.side() == ["begun"], "the tool runs")
    asked = machine.cli("rewind", "--last", "1")
    assert asked.returncode == 79 and "#1" in asked.stderr, asked.stderr
    asked = machine.cli("compact")
    assert asked.returncode == 75, asked.stderr
    run.kill()
    run.died()
    asked = machine.cli("rewind", "--last", "1")
    assert asked.returncode == 79 and re.search(r"wal-agent ack 1 .*--done", asked.stderr), asked.stderr
    command(machine, "ack", "1", "--done")
    assert scene.replay().state.rewrites == ()
    command(machine, "rewind", "--last", "1")
    assert [r.record.turns for r in scene.replay().state.rewrites] == [1]


@pytest.mark.parametrize("scene", once(["gemini", "claude"], "claude"), indirect=True)
def test_the_agent_marks_a_place_of_the_turn_that_it_is_in(scene: Scene) -> None:
    """What follows the mark's own call is left out; the agent cannot rewind itself."""
    machine = scene.machine("vm-1")
    shell = machine.rehearsal.shell
    scene.script(
        Turn("heron one", calls=[shell(f"{WAL_AGENT} mark here")]),
        Turn("heron two", calls=[shell("echo two >> side")]),
        Turn("heron three", calls=[shell(f"{WAL_AGENT} rewind --to here; echo $? >> side")]),
        Turn("all is done"),
    )
    run = machine.run(*machine.rehearsal.args("ask number one"), wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert scene.side() == ["two", "79"]
    command(machine, "rewind", "--to", "here")
    found = ask(scene, machine, "ask number two")
    assert holds(found, "heron one", "ask number two")
    assert not any(word in text for word in ("heron two", "heron three", "all is done") for text in found)


@pytest.mark.parametrize("scene", once(["codex", "gemini"], "codex"), indirect=True)
def test_old_turns_are_compacted_before_a_resume(scene: Scene) -> None:
    """I8: with a call in flight, whose turn stays as it is; the recovery prompt follows the compact form."""
    machine = scene.machine("vm-1")
    for n in ("one", "two"):
        ask(scene, machine, f"ask number {n}", first=n == "one")
    options, args = continuing(scene, machine.rehearsal.args("ask number three"))
    scene.script(Turn("heron three", calls=[machine.rehearsal.shell("echo three >> side; sleep 1000")]))
    run = machine.run(*args, options=options)
    until(lambda: "three" in scene.side(), "the tool runs")
    until(lambda: b"heron three" in scene.conversation(), "the turn is saved as far as it came")
    run.kill()
    run.died()
    machine.end()

    scene.script(Turn("finished three"))
    asked = len(scene.model.requests)
    again = machine.run(*args, options=[*options, "--compact", "turns=1,keep=1"], wait=True)
    assert again.process.returncode == 0, again.stderr()
    assert [(r.record.kind, r.record.turns) for r in scene.replay().state.rewrites] == [("compact", 2)]
    found = texts(scene, asked)
    assert holds(found, "Asked: ask number one", "Asked: ask number two", "heron three", "[wal-agent recovery]")
    assert not any(word in text for word in ("heron one", "heron two") for text in found)
    assert scene.side() == ["one", "two", "three"]
    assert machine.cli("rewind", "--undo").returncode == 64


@deep
@pytest.mark.parametrize("scene", ["claude", "gemini"], indirect=True)
def test_old_turns_are_compacted_before_a_turn_that_goes_on_behind_a_completed_one(scene: Scene) -> None:
    """By the agent's own words for it, and by `--continue`: no crash is needed for the policy to hold."""
    machine = scene.machine("vm-1")
    for n in ("one", "two"):
        ask(scene, machine, f"ask number {n}", first=n == "one")
    options, args = continuing(scene, machine.rehearsal.args("ask number three"))
    scene.script(Turn("finished three"))
    asked = len(scene.model.requests)
    run = machine.run(*args, options=[*options, "--compact", "turns=1,keep=1"], wait=True)
    assert run.process.returncode == 0, run.stderr()
    assert [(r.record.kind, r.record.turns) for r in scene.replay().state.rewrites] == [("compact", 1)]
    found = texts(scene, asked)
    assert holds(found, "Asked: ask number one", "heron two", "ask number three") and not holds(found, "heron one")


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_the_files_go_back_with_the_conversation_of_a_run_that_is_stopped(scene: Scene) -> None:
    """What is replaced is kept, `--undo --files` brings it back, also what no run has saved; the next start works on
    the files that were put back."""
    machine = scene.machine("vm-1")
    inside = scene.workspace / "lib/work"
    subprocess.run(["git", "init", "-q", inside.parent], check=True)
    inside.write_text("one")
    ask(scene, machine, "ask number one", first=True)
    command(machine, "mark", "begun")
    scene.script(Turn("heron two", calls=[machine.rehearsal.shell("echo two >> side")]), Turn("waiting"))
    held = scene.hold_turn(1)
    asked = len(scene.model.requests)
    options, args = continuing(scene, machine.rehearsal.args("ask number two"))
    run = machine.run(*args, options=options)
    until(lambda: len(scene.model.requests) > asked + 1 and scene.side() == ["one", "two"], "the tool ran")
    command(machine, "rewind", "--last", "1", "--stop")
    held.set()
    run.wait()
    assert scene.side() == ["one", "two"]
    refused = machine.cli("rewind", "--undo", "--files")
    assert refused.returncode == 64, "no files were put back"
    command(machine, "rewind", "--undo")
    (scene.workspace / "side").write_text("one\ntwo\nby hand\n")
    (scene.workspace / "notes").write_text("by hand")
    inside.write_text("by hand")
    for _ in range(2):
        done = json.loads(command(machine, "rewind", "--to", "begun", "--files", "--json"))
        assert done["turns"] == 1 and scene.side() == ["one"] and not (scene.workspace / "notes").exists()
        assert inside.read_text() == "one"
        (scene.workspace / "after").write_text("behind the rewind")
        command(machine, "rewind", "--undo", "--files")
        assert scene.side() == ["one", "two", "by hand"] and (scene.workspace / "notes").read_text() == "by hand"
        assert inside.read_text() == "by hand"
        assert not (scene.workspace / "after").exists()
    command(machine, "rewind", "--to", "begun", "--files")
    scene.script(Turn("finished three"))
    asked = len(scene.model.requests)
    again = machine.run(*machine.rehearsal.args("ask number three"), wait=True)
    assert again.process.returncode == 0, again.stderr()
    found = texts(scene, asked)
    assert holds(found, "heron one", "The files of this folder were put back too")
    assert not holds(found, "heron two")
    assert scene.side() == ["one"]
    kept = command(machine, "restore", "--kept")
    assert "begun" not in kept and kept.strip()


@pytest.mark.parametrize("scene", once(KINDS, "codex"), indirect=True)
def test_a_live_run_is_rewound_and_goes_on(scene: Scene) -> None:
    """I2, I8: the same process ends its agent in good order, rewrites under its own epoch, and starts it again; the
    agent's next request holds the note, and no line of what was left out."""
    machine = scene.machine("vm-1")
    ask(scene, machine, "ask number one", first=True)
    command(machine, "mark", "begun")
    options, args = continuing(scene, machine.rehearsal.args("ask number two"))
    scene.script(
        Turn("heron two", calls=[machine.rehearsal.shell("echo two >> side")]),
        Turn("pelican"),
        Turn("finished three", when="other way"),
    )
    held = scene.hold_turn(1)
    asked = len(scene.model.requests)
    run = machine.run(*args, options=options)
    until(lambda: len(scene.model.requests) > asked + 1 and scene.side() == ["one", "two"], "the tool ran")
    before = scene.replay().state
    assert machine.cli("rewind", "--last", "9").returncode == 64, "the run goes on as it was"
    assert machine.cli("rewind", "--to", "nowhere").returncode == 64
    assert machine.cli("rewind", "--undo").returncode == 64
    (scene.root / "words").write_text("Take the other way.")
    words = ("--compact", str(scene.root / "words"))
    done = json.loads(command(machine, "rewind", "--to", "begun", "--files", *words, "--json"))
    assert (done["n"], done["turns"]) == (1, 1) and scene.side() == ["one"]
    held.set()
    run.wait()
    assert run.process.returncode == 0, run.stderr()
    found = texts(scene, len(scene.model.requests) - 1)
    assert holds(found, "heron one", "Take the other way.", "[wal-agent recovery]")
    assert not any(word in text for word in ("heron two", "pelican") for text in found)
    state = scene.replay().state
    rewritten = state.rewrites[-1].seq
    opened = [o for o in state.openings if o.opening.epoch > before.openings[-1].opening.epoch]
    assert len(state.rewrites) == 1 and opened and all(o.seq > rewritten for o in opened)
    assert {o.opening.host.pid for o in opened} == {before.openings[-1].opening.host.pid}
    assert machine.status()["state"] == "closed"


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_what_was_rewound_elsewhere_counts_on_the_machine_that_has_the_session(scene: Scene) -> None:
    """Two people, one bucket: the one who rewinds has no session file, the other one's next start has the result."""
    machine, other = scene.machine("vm-1"), scene.machine("vm-2")
    for n in ("one", "two", "three"):
        ask(scene, machine, f"ask number {n}", first=n == "one")
    before = session_file(scene, machine).read_bytes()
    for _ in range(2):
        done = json.loads(command(other, "rewind", "--last", "1", "--json"))
        assert done["placed"] is None
    assert session_file(scene, machine).read_bytes() == before
    found = ask(scene, machine, "ask number four")
    assert holds(found, "heron one", "wal-agent trace show", "ask number four")
    assert not holds(found, "heron three")
    assert scene.side() == ["one", "two", "three", "four"]


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_recall_finds_what_was_rewound_also_behind_a_recovery(scene: Scene) -> None:
    """A recovery writes Gemini's session anew, without the lines that a rewind left behind."""
    machine = scene.machine("vm-1")
    for n in ("one", "two"):
        ask(scene, machine, f"ask number {n}", first=n == "one")
    command(machine, "rewind", "--last", "1")
    scene.script(Turn("heron three", calls=[machine.rehearsal.shell("echo three >> side; sleep 1000")]))
    options, args = continuing(scene, machine.rehearsal.args("ask number three"))
    run = machine.run(*args, options=options)
    until(lambda: "three" in scene.side(), "the tool runs")
    run.kill()
    run.died()
    machine.end()
    scene.script(Turn("finished three"))
    again = machine.run(*args, wait=True)
    assert again.process.returncode == 0, again.stderr()
    for where in (machine, scene.machine("vm-2")):
        hits = json.loads(command(where, "recall", "heron two", "--role", "assistant", "--json"))["hits"]
        assert [hit["text"] for hit in hits if "heron two" in hit["text"]]
