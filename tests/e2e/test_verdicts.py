"""Killed in the middle of a call: the next start's prompt says what became of it, as is true, and what to do."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.scene import (
    Machine,
    Run,
    Scene,
    calls_in,
    check_log,
    command_of,
    commands_in,
    notices,
    results_in,
    shell,
    until,
)
from tests.tiers import deep
from wal_agent.rehearsal.model import Turn

TASK = "please do the work"
STALL = "#!/bin/sh\ntouch stalled\nexec sleep 600\n"
LIMITED = (
    '#!/bin/sh\n# No file above 32 KiB: what is bigger is cut there, as on a full disk.\nulimit -f 64\nexec "{}" "$@"\n'
)


def git(folder: Path, *words: str) -> str:
    named = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", *words]
    return subprocess.run(named, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def origin(scene: Scene) -> Path:
    """A remote that has the branch main and writes down what it takes; there is one more commit here."""
    remote = scene.root / "origin.git"
    git(scene.root, "init", "-q", "--bare", str(remote))
    git(scene.workspace, "branch", "-M", "main")
    git(scene.workspace, "remote", "add", "origin", str(remote))
    git(scene.workspace, "push", "-q", "origin", "main")
    git(scene.workspace, "commit", "-q", "--allow-empty", "-m", "second")
    hook(remote, "post-receive", "#!/bin/sh\ncat >> taken\n")
    return remote


def hook(remote: Path, name: str, text: str) -> None:
    path = remote / "hooks" / name
    path.write_text(text)
    path.chmod(0o755)


def taken(remote: Path) -> list[str]:
    path = remote / "taken"
    return path.read_text().splitlines() if path.exists() else []


def lose(machine: Machine, run: Run) -> None:
    """All at once for the log: nothing that the wrapper could still write down follows its death."""
    run.kill()
    run.died()
    machine.end()


def recovered(scene: Scene, machine: Machine, *turns: Turn) -> tuple[Run, dict[str, Any], str]:
    """The next start's run at its end, the first request that the model got from it, and the notice in it."""
    scene.script(*turns)
    seen = len(scene.model.requests)
    run = machine.ask(TASK, wait=True)
    assert run.process.returncode == 0, run.stderr()
    [notice] = notices(scene.model.requests[seen])
    return run, scene.model.requests[seen], notice


def told_of(notice: str, words: str) -> str:
    """What the notice says of the call whose input holds `words`."""
    [part] = [part for part in notice.split("\n\n") if words in part and "Finding: " in part]
    return part


def test_a_push_that_landed_is_told_before_it_can_be_repeated(scene: Scene) -> None:
    """I8: the remote took it and its end was never logged. A model that repeats what was cut off unless it is told
    not to is told, with its first request, and the remote takes nothing twice."""
    remote = origin(scene)
    head = git(scene.workspace, "rev-parse", "HEAD")
    push = shell("git push origin main && sleep 60")
    scene.script(Turn(text="I push.", calls=[push]))
    first, second = scene.machine("vm-1", kernel="k"), scene.machine("vm-2", kernel="k")
    run = first.ask(TASK)
    tracking = scene.workspace / ".git/logs/refs/remotes/origin/main"
    until(lambda: "update by push" in tracking.read_text() and head in tracking.read_text(), "the push has landed")
    until(lambda: not list(scene.workspace.glob(".git/refs/remotes/origin/*.lock")), "git has let the ref go")
    lose(first, run)

    obedient = Turn(text="It is done; I go on after it.", when="Do not run it again; continue after it.")
    again, request, notice = recovered(scene, second, obedient, blind := Turn(calls=[push]))
    assert scene.model.turns == [blind], "the rule was in the request that the model answered first"
    assert commands_in(request) == [command_of(push)]
    said = told_of(notice, push[1]["cmd"])
    assert "class: mutation" in said
    assert "Finding: completed." in said
    assert f"took {head[:7]}" in said and "refs/remotes/origin/main" in said
    assert "Next: Do not run it again; continue after it." in said
    assert "A mutation is never repeated before you have verified that it did not happen." in notice
    assert "git push origin main" in again.stderr() and "completed" in again.stderr()
    assert [line.split()[1] for line in taken(remote)] == [head]
    assert git(remote, "rev-parse", "main") == head
    end = [r for r in check_log(scene, []) if r["type"] == "end"][-1]
    assert (end["how"], end["by"], end["finding"]) == ("verified", "recovery", "completed")
    assert (second.status()["state"], second.status()["unsettled"]) == ("closed", [])


@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_each_of_a_batch_is_told_rightly_and_a_look_settles(scene: Scene) -> None:
    """I3, I8: of one batch a call had ended, a push hung in the remote, one had not come to what it changes, and one,
    which Gemini runs after them, had not begun. The push is told neither as done nor as not begun; the model looks as
    it was told to, and nothing is left to settle."""
    remote = origin(scene)
    old = git(remote, "rev-parse", "main")
    hook(remote, "pre-receive", STALL)
    made = scene.workspace / "made"
    made.write_text("as it was\n")
    done, push, late = (
        shell(words, scene.agent)
        for words in ("echo one >> side", "git push origin main", f"sleep 600 && echo new > {made}")
    )
    after = ("write_file", {"file_path": str(scene.workspace / "after"), "content": "never\n"})
    scene.script(Turn(text="All at once.", calls=[done, push, late, after]))
    first, second = scene.machine("vm-1", kernel="k"), scene.machine("vm-2", kernel="k")
    run = first.ask(TASK)
    until(lambda: (remote / "stalled").exists(), "the push hangs")
    until(lambda: sum(r["type"] == "end" for r in scene.records()) == 1, "the first has ended")
    lose(first, run)

    look = shell("git ls-remote origin main", scene.agent)
    _, request, notice = recovered(scene, second, Turn(text="I look.", calls=[look]), Turn(text="It has not landed."))
    assert sorted(map(str, calls_in(request))) == sorted(map(str, [done, push, late]))
    results = [r.text for r in results_in(request)]
    assert sum("outcome unknown" in result for result in results) == 2
    assert "2 tool calls were in flight" in notice and done[1]["command"] not in notice
    pushed = told_of(notice, "git push origin main")
    assert "class: mutation" in pushed and "Finding: unknown." in pushed
    assert "`git ls-remote origin main`" in pushed.partition("Next: ")[2]
    assert "If the remote names the commit that you meant to push, it is done." in pushed
    unbegun = told_of(notice, "echo new")
    assert "Finding: not started." in unbegun and "is as it was before the call" in unbegun
    assert made.read_text() == "as it was\n" and not (scene.workspace / "after").exists()
    assert (git(remote, "rev-parse", "main"), taken(remote)) == (old, [])
    assert scene.side() == ["one"]
    log = check_log(scene, [])
    settled = [r["finding"] for r in log if r["type"] == "end" and r["by"] == "recovery"]
    assert settled == ["unknown", "not_started"], "the one by its look, the other at the turn's end"
    assert old in str([r for r in log if r["type"] == "end"]), "what it saw"
    assert (second.status()["state"], second.status()["unsettled"]) == ("closed", [])


@deep
@pytest.mark.parametrize("scene", ["gemini"], indirect=True)
def test_a_write_that_was_cut_in_two_is_told_as_partial(scene: Scene) -> None:
    """I8: the file holds only the beginning of what was to be written, and the machine was lost before the log heard
    of it."""
    limited = scene.root / "limited-gemini"
    limited.write_text(LIMITED.format(scene.program))
    limited.chmod(0o755)
    target = scene.workspace / "made"
    text = "".join(f"line {n} of what was asked for\n" for n in range(2000))
    write = ("write_file", {"file_path": str(target), "content": text})
    scene.script(Turn(text="I write.", calls=[write]))
    first, second = scene.machine("vm-1", kernel="k"), scene.machine("vm-2", kernel="k")
    # The first record after the file is there: the end of the write, or of the session, whichever comes.
    kill = f"append.before_put@{target}"
    run = first.ask(TASK, WAL_AGENT_GEMINI=str(limited), WAL_AGENT_FAILPOINT=kill)
    run.died()
    first.end()
    part = target.read_text()
    assert part and part != text and text.startswith(part), "what the scene needs"

    _, _, notice = recovered(scene, second, Turn(text="I looked. I write the rest."))
    assert "Finding: it did not finish." in notice and "class: idempotent" in notice
    assert "holds only the beginning of what the call was to write" in notice
    assert "Then apply it again if needed" in notice
    assert target.read_text() == part
    check_log(scene, [])


@deep
def test_a_rule_of_the_project_is_what_the_agent_is_told(scene: Scene) -> None:
    """The project's own table says what a script is, how to look and whom to ask; the prompt quotes it and names its
    file."""
    (scene.workspace / "AGENTS.md").write_text(
        "# Deploying\n\n"
        "| Tool / Operation | Idempotent? | Verify With | On Ambiguity |\n"
        "|---|---|---|---|\n"
        "| `./deploy.sh` | No. Each run pages people | `./deploy.sh --status` | ask the release manager |\n"
    )
    script = scene.workspace / "deploy.sh"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --status ] && { echo live >> looked; exit; }\necho paged >> side; sleep 600\n'
    )
    script.chmod(0o755)
    deploy = shell("./deploy.sh staging")
    scene.script(Turn(text="I deploy.", calls=[deploy]))
    first, second = scene.machine("vm-1", kernel="k"), scene.machine("vm-2", kernel="k")
    run = first.ask(TASK)
    until(lambda: scene.side(), "it runs")
    lose(first, run)

    look = shell("./deploy.sh --status")
    again, _, notice = recovered(scene, second, Turn(text="I look.", calls=[look]), Turn(text="It is live."))
    said = told_of(notice, "./deploy.sh staging")
    assert "class: mutation (this project's rule " in said and "`AGENTS.md" in said
    assert "Each run pages people" in said
    assert "`./deploy.sh --status`" in said.partition("Next: ")[2]
    assert "ask the release manager" in said.partition("Next: ")[2]
    assert "./deploy.sh staging  mutation" in again.stderr()
    assert scene.side() == ["paged"]
    assert scene.side("looked") == ["live"]
    check_log(scene, [])
    # That the script with --status only reads is the project's word; it is shown, and settles nothing.
    assert [call["call"] for call in second.status()["unsettled"]] == [1]
