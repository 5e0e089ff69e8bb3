"""Evidence for git: what is read, from what, and that nothing of the project's is run or trusted for it."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.faults.evidence.git_stage import HERE, Stage, make
from tests.faults.evidence.stage import Unhurried
from tests.unit.recovery.cases import HOST, end, intent, opening, state_of
from wal_agent.calls.argv import parse_git
from wal_agent.calls.call import ReadCall
from wal_agent.calls.reading import read_calls
from wal_agent.clock import SystemClock
from wal_agent.evidence import collector
from wal_agent.evidence.collector import Remains
from wal_agent.evidence.git import GitKind
from wal_agent.evidence.model import Budget, Context, Outcome, Step

CLOCK = SystemClock()
COMMIT = ("git", "commit", "-q", "-m", "a message")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("git") / "made")


@pytest.fixture
def stage(made: Path, tmp_path: Path) -> Stage:
    found = Stage.copy(made, tmp_path / "stage")
    found.settle()
    return found


def after(stage: Stage, words: tuple[str, ...], around: Context = HERE, run: str | None = None) -> Outcome:
    """The verdict on a command that ran to its end, or on one of which something else ran."""
    facts = stage.before(words)
    stage.sh(subprocess.list2cmdline(words) if run is None else run)
    return stage.assess(words, facts, around)


# ---- words ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        "git commit --interactive",
        "git commit -p",
        "git commit --dry-run",
        "git add -p",
        "git -c core.hooksPath=x commit -m m",
        "git -c alias.commit=!x commit",
        "git --git-dir=x commit",
        "git --exec-path=x commit",
        "git push --mirror",
        "git push --all",
        "git push -n",
        "git ci",
        "git",
        "git -C",
        "git commit -m",
        "hub commit -m m",
        "tools/git commit -m m",
    ],
)
def test_what_is_not_known_is_not_read(words: str) -> None:
    assert parse_git(words.split()) is None


def test_options_are_read_as_git_reads_them() -> None:
    found = parse_git(
        ["/usr/bin/git", "-C", "a", "-c", "user.name=x", "commit", "-qam", "first", "--message=second", "--", "p"]
    )
    assert found is not None
    assert (found.verb, found.folders, found.paths, found.operands) == ("commit", ("a",), ("p",), ())
    assert found.on == {"quiet", "all"} and found.every("message") == ("first", "second")
    cut = parse_git(["git", "commit", "-ma"])
    assert cut is not None and cut.every("message") == ("a",) and not cut.on


# ---- what is around ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["same_place", "gone", "alone"])
@pytest.mark.parametrize("run", [None, "true"])
def test_nothing_is_said_where_it_may_be_another_s_doing(stage: Stage, name: str, run: str | None) -> None:
    stage.sh("echo x > a; git add a")
    stage.settle()
    assert after(stage, COMMIT, replace(HERE, **dict[str, Any]({name: False})), run).finding == "unknown"


def test_nothing_is_said_of_a_tree_that_was_put_back(stage: Stage) -> None:
    assert after(stage, COMMIT, replace(HERE, restored=True), "true").finding == "unknown"


def test_without_facts_nothing_is_said(stage: Stage) -> None:
    assert stage.assess(COMMIT, ()).finding == "unknown"


@pytest.mark.parametrize("first", ["git checkout -q --detach", "git pack-refs --all", "git checkout -q --orphan new"])
def test_a_commit_is_seen_wherever_head_is(stage: Stage, first: str) -> None:
    stage.sh(f"{first}; echo x > a; git add a")
    stage.settle()
    assert after(stage, COMMIT, run="true").finding == "not_started"
    assert after(stage, COMMIT).finding == "completed"


def test_a_commit_is_seen_in_a_worktree_and_below_a_folder(stage: Stage) -> None:
    stage.sh("git worktree add -q ../work/made ahead; cd made; echo x > src/1; git add src/1")
    stage.settle()
    words = ("git", "-C", "made/src", *COMMIT[1:])
    assert after(stage, words, run="true").finding == "not_started"
    assert after(stage, words).finding == "completed"


def test_a_repository_of_the_other_hash_is_read(made: Path, tmp_path: Path) -> None:
    stage = Stage.copy(made, tmp_path / "s")
    stage.sh("cd ..; rm -rf work; git init -q --object-format=sha256 -b main work; cd work; echo x > a; git add a")
    stage.settle()
    assert after(stage, ("git", "add", "b"), run="echo y > b").finding == "not_started"
    stage.settle()
    assert after(stage, ("git", "add", "b")).finding == "completed"
    stage.settle()
    assert after(stage, COMMIT, run="true").finding == "not_started"
    assert after(stage, COMMIT).finding == "completed"


def test_an_environment_that_sends_git_elsewhere_ends_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step("run_shell_command", COMMIT, (), stage.work)
    assert GitKind().parse(step) is not None
    monkeypatch.setenv("GIT_DIR", "elsewhere")
    assert GitKind().parse(step) is None


def test_a_change_in_the_same_tick_is_not_taken_for_none(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times say nothing while the last change is as near as the next one may be."""
    assert "git.still" in {f.what for f in stage.before(COMMIT)}
    (stage.work / ".git/x").touch()
    changed = (stage.work / ".git/x").stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed + 5_000_000)
    assert "git.still" not in {f.what for f in stage.before(COMMIT)}


@pytest.mark.parametrize(
    "run",
    [
        "git commit -q -m 'another message'",
        "git commit -q -m 'a message'; git commit -q --allow-empty -m 'a message'",
        "git reset -q --soft HEAD~1; git commit -q -m 'a message'",
        "git checkout -q ahead -- a; git checkout -q -b x; git update-ref refs/heads/x topic",
        "git merge -q ahead",
        "git update-ref refs/heads/main topic",
    ],
)
def test_a_commit_is_not_taken_for_what_another_did(stage: Stage, run: str) -> None:
    stage.sh("echo y > b; git add b")
    stage.settle()
    assert after(stage, COMMIT, run=run).finding == "unknown"


def test_a_commit_that_a_hook_may_have_seen_has_not_surely_not_begun(stage: Stage) -> None:
    hook = stage.work / ".git/hooks/pre-commit"
    hook.write_text("#!/bin/sh\ntouch ../effect; exit 1\n")
    hook.chmod(0o755)
    stage.sh("echo x > a; git add a")
    stage.settle()
    assert after(stage, COMMIT, run="git commit -m 'a message' || true").finding == "unknown"
    stage.sh("mkdir hooks; mv .git/hooks/pre-commit hooks; git config core.hooksPath hooks")
    stage.settle()
    assert after(stage, COMMIT, run="git commit -m 'a message' || true").finding == "unknown"
    stage.sh("mv hooks/pre-commit hooks/post-commit")
    stage.settle()
    assert after(stage, COMMIT, run="true").finding == "not_started"
    assert after(stage, COMMIT, run="git status; touch .git/x").finding == "not_started"
    stage.sh("git config --unset core.hooksPath; git -c core.commentChar=a status > /dev/null")
    stage.settle()
    assert after(stage, COMMIT, run="true").finding == "not_started"


def test_a_refresh_of_the_index_is_no_add(stage: Stage) -> None:
    stage.sh("touch a; echo y > b")
    stage.settle()
    assert after(stage, ("git", "add", "b"), run="git status; git update-index --refresh || true").finding == "unknown"
    stage.settle()
    assert after(stage, ("git", "add", "b"), run="git add b; echo more > b").finding == "unknown"
    assert after(stage, ("git", "add", "-A"), run="echo n > new; git add b").finding == "unknown"


@pytest.mark.parametrize(("late", "finding"), [("", "completed"), ("new", "unknown"), ("b", "unknown")])
def test_an_add_of_all_left_nothing_out(stage: Stage, late: str, finding: str) -> None:
    words = ("git", "add", "-A")
    facts = stage.before(words)
    stage.sh("echo x > a")
    stage.settle()
    stage.sh("git add a" if late else "git add -A")
    if late:
        (stage.work / late).write_text("more")
    assert stage.assess(words, facts).finding == finding


def test_a_stash_that_did_not_clear_the_tree_is_partial(stage: Stage) -> None:
    stage.sh("echo x > a")
    assert after(stage, ("git", "stash"), run="git stash store $(git stash create)").finding == "partial"


@pytest.mark.parametrize("hook", ["pre-receive", "update", "post-receive"])
def test_a_push_that_dies_while_the_remote_works_is_unknown(stage: Stage, hook: str) -> None:
    """Whether the remote has the branch already or not: it may have it later."""
    script = stage.root / "remote.git/hooks" / hook
    script.write_text("#!/bin/sh\nkill -9 $(cat ../pid)\n")
    script.chmod(0o755)
    stage.sh("git commit -q --allow-empty -m x")
    words = ("git", "push", "origin", "main")
    assert (
        after(stage, words, run="sh -c 'echo $$ > ../pid; exec git push -q origin main' || true").finding == "unknown"
    )
    assert (stage.root / "pid").exists()


def test_a_push_is_only_believed_for_one_branch_to_one_place(stage: Stage) -> None:
    words = ("git", "push", "origin", "main")
    stage.sh("git commit -q --allow-empty -m x")
    assert after(stage, words, run="git fetch -q; git update-ref refs/remotes/origin/main main").finding == "unknown"
    stage.sh("git commit -q --allow-empty -m y")
    assert after(stage, words).finding == "completed"
    stage.sh("git commit -q --allow-empty -m z; git init -q --bare ../second.git")
    stage.sh(
        "git remote set-url --add --push origin ../remote.git; git remote set-url --add --push origin ../second.git"
    )
    assert after(stage, words).finding == "unknown"
    said = stage.assess(words, stage.before(words)).why
    assert "`git ls-remote origin refs/heads/main`" in said


def test_a_remote_that_took_a_branch_without_our_knowing_is_unknown(stage: Stage) -> None:
    stage.sh("git commit -q --allow-empty -m x")
    words = ("git", "push", "origin", "main")
    took = 'git push -q "$(cd ../remote.git; pwd)" main'  # no remote-tracking ref is moved
    assert after(stage, words, run=took).finding == "unknown"
    assert stage.sh("git ls-remote origin refs/heads/main").split()[0] == stage.sh("git rev-parse main").strip()


@pytest.mark.parametrize(
    ("around", "run", "finding"),
    [
        ({}, "git push -q origin main", "completed"),
        ({}, "true", "unknown"),
        ({}, "git commit -q --allow-empty -m y; git push -q origin main", "unknown"),  # of something else
        ({}, "git reset -q --soft HEAD~; git push -q -f origin main", "unknown"),
        ({}, "git push -q origin main; git push -q -f origin main~:main", "unknown"),
        ({}, "git push -q origin main; git checkout -q topic", "unknown"),
        ({"contested": True}, "git push -q origin main", "unknown"),
        ({"gone": False}, "git push -q origin main", "unknown"),
        ({"same_place": False}, "git push -q origin main", "unknown"),
    ],
)
def test_a_push_is_seen_beside_calls_that_may_do_anything(
    stage: Stage, around: dict[str, Any], run: str, finding: str
) -> None:
    """That the remote took what the branch was before the call is true whoever sent it."""
    stage.sh("git commit -q --allow-empty -m w; git push -q origin main; git commit -q --allow-empty -m x")
    words, beside = ("git", "push", "origin", "main"), replace(HERE, alone=False, **around)
    assert after(stage, words, beside, run).finding == finding


@pytest.mark.parametrize(("other", "finding"), [("./charge.sh 49.90", "completed"), ("git fetch", "unknown")])
def test_a_push_is_seen_behind_a_call_whose_end_the_session_has_not_told(
    stage: Stage, other: str, finding: str
) -> None:
    stage.sh("git commit -q --allow-empty -m x")
    inputs = {n: json.dumps({"command": c}).encode() for n, c in ((1, other), (2, "git push origin main && sleep 9"))}
    facts = collector.facts_before(
        collector.read_parts(ReadCall("bash", inputs[2]), stage.work), Budget(CLOCK, CLOCK.boot() + 5)
    )
    stage.sh("git push -q origin main")
    ended = (intent(1, "bash", inputs[1]), end(1))
    state = state_of(opening(workspace=str(stage.work)), *ended, intent(2, "bash", inputs[2], before=facts))
    (said,) = collector.decide_verdicts(state, read_calls(state, inputs), HOST, stage.work, Remains(True), Unhurried())
    assert said.finding == finding


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("git push", "{head} refs/heads/main"),
        ("git push -q origin main", "{head} refs/heads/main"),
        ("git push origin HEAD:release", "{head} refs/heads/release"),
        ("git push origin topic", "{topic} refs/heads/topic"),
        ("git push --tags", ""),
        ("git push origin --delete topic", ""),
        ("git push origin main topic", ""),
        ("git commit -m x && git push", ""),  # of what the call itself makes
        ("git fetch", ""),
        ("echo", ""),
    ],
)
def test_what_a_remote_lists_once_it_has_a_push(stage: Stage, command: str, line: str) -> None:
    """I8, decision 063: by the branch as it was before the call, wherever it is now."""
    stage.sh("git commit -q --allow-empty -m x")
    ids = {name: (stage.work / f".git/refs/heads/{name}").read_text().strip() for name in ("main", "topic")}
    assert ids["main"] != ids["topic"]
    input = json.dumps({"command": command}).encode()
    facts = collector.facts_before(
        collector.read_parts(ReadCall("bash", input), stage.work), Budget(CLOCK, CLOCK.boot() + 5)
    )
    stage.sh("git commit -q --allow-empty -m y")
    wanted = line.format(head=ids["main"], topic=ids["topic"])
    assert collector.sent_line(ReadCall("bash", input), facts, str(stage.work)) == wanted
    assert collector.sent_line(ReadCall("bash", input), facts, "") == wanted, "where the folder is not known"
    assert collector.sent_line(ReadCall("bash", input), (), str(stage.work)) == ""


# ---- several steps -------------------------------------------------------------------------------------------------


def whole_call(stage: Stage, command: str, run: str) -> Outcome:
    parts = collector.read_parts(ReadCall("run_shell_command", json.dumps({"command": command}).encode()), stage.work)
    facts = collector.facts_before(parts, Budget(CLOCK, CLOCK.boot() + 5))
    assert facts and sum(len(f.what) + len(f.where) + len(f.value) for f in facts) < 4096
    stage.sh(run)
    return collector.assess_call(parts, facts, HERE, lambda path: False, Budget(CLOCK, CLOCK.boot() + 20))


@pytest.mark.parametrize(
    ("run", "finding"),
    [
        ("true", "unknown"),  # of the push
        ("git add -A", "unknown"),
        ("git add -A; git commit -q -m m", "unknown"),
        ("git add -A; git commit -q -m m; git push -q origin main", "completed"),
    ],
)
def test_add_commit_push(stage: Stage, run: str, finding: str) -> None:
    stage.sh("echo x > a; echo n > new")
    stage.settle()
    assert whole_call(stage, "git add -A && git commit -m m && git push origin main", run).finding == finding


@pytest.mark.parametrize(
    ("run", "finding"),
    [
        ("true", "not_started"),
        ("git checkout -q -b fresh", "unknown"),  # of the add
        ("git checkout -q -b fresh; git add -A", "partial"),
        ("git checkout -q -b fresh; git add -A; git commit -q -m m", "completed"),
    ],
)
def test_branch_add_commit(stage: Stage, run: str, finding: str) -> None:
    stage.sh("echo x > a; echo n > new")
    stage.settle()
    assert whole_call(stage, "git checkout -b fresh && git add -A && git commit -m m", run).finding == finding
