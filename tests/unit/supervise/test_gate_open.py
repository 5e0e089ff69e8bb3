"""I8 in the gate: what is cut off or runs on stays open, and an equal call is refused until something looked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.supervise.crew import Post, ended, starting
from wal_agent.agents.base import Allow, Deny, Status
from wal_agent.calls.call import ReadCall
from wal_agent.records import Cut, End, EndSource, RunsOn
from wal_agent.supervise import processes
from wal_agent.supervise.gate import CUT, HOLD, RUNS_ON
from wal_agent.wal.lease import final_lease_state
from wal_agent.wording.messages import LOST, RUNS_NOW, WAS_CUT

CHARGE = {"command": "./charge.sh 49.90"}


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def charged(post: Post) -> int:
    return post.begin("run_shell_command", **CHARGE)


def finish(post: Post, **changes: object) -> None:
    post.gate.finish_call(replace(ended("run_shell_command", command=CHARGE["command"]), **changes))
    post.commit()


def refused_again(post: Post) -> bool:
    with post.committing():
        return isinstance(post.gate.begin_call(starting("run_shell_command", **CHARGE)), Deny)


def hows(post: Post) -> list[tuple[int, str]]:
    return [(e.call, e.how) for e in post.ends()]


def test_a_time_limit_leaves_the_call_open_and_an_equal_one_is_refused_until_a_look(post: Post) -> None:
    call = charged(post)
    finish(post, failed=True, clean=False, cut="it took longer than 2 s")
    assert hows(post) == [] and post.open_words() == [(call, "cut")]
    assert refused_again(post)
    with post.committing():
        assert post.gate.begin_call(starting("run_shell_command", command="cat ledger.txt")) == Allow()
        post.gate.finish_call(ended("run_shell_command", command="cat ledger.txt"))
    assert not refused_again(post)


def test_what_the_agent_moves_to_the_background_is_over_when_it_says_so(post: Post) -> None:
    call = charged(post)
    finish(post, runs_on=True, task="b1")
    assert hows(post) == [] and [r.call for r in post.gate.background()] == [call] and post.gate.running() == []
    assert refused_again(post)
    post.gate.end_task("b2", "done")
    post.world.clock.sleep(2)
    post.gate.end_task("b1", "done")
    post.gate.end_task("b1", "failed")
    post.commit()
    assert hows(post)[-1] == (call, "done") and post.gate.background() == []
    assert post.ends()[-1].duration_ms == 2000


def test_what_a_background_task_says_inside_the_drain_is_its_end(post: Post) -> None:
    """What its agent ends with itself is cut off."""
    calls = [charged(post), post.begin("run_shell_command", command="make")]
    finish(post, runs_on=True, task="b1")
    post.gate.finish_call(replace(ended("run_shell_command", command="make"), runs_on=True, task="b2"))
    post.gate.is_stopping = lambda: True
    post.gate.end_task("b1", "done")
    post.gate.end_task("b2", "failed")
    post.commit()
    assert hows(post) == [(calls[0], "done")] and post.open_words()[-1] == (calls[1], "cut")


@pytest.mark.parametrize(
    ("how", "nested", "stopping", "read"),
    [
        ({}, "", False, True),
        ({}, "", True, True),
        ({"failed": True, "clean": False}, "", False, True),
        ({"failed": True, "clean": False}, "", True, False),
        ({"cut": "it was cancelled"}, "", False, False),
        ({"runs_on": True}, "", False, False),
        ({}, "gemini:inner", False, False),
    ],
)
def test_a_check_is_one_that_the_agent_made_and_that_ended_by_itself(
    post: Post, monkeypatch: pytest.MonkeyPatch, how: dict[str, object], nested: str, stopping: bool, read: bool
) -> None:
    """I8: what a check printed until it was cut off shows nothing."""
    asked: list[int] = []

    def settle(call: int, *_: object) -> list[End]:
        asked.append(call)
        return []

    monkeypatch.setattr(post.gate.recovered, "ends_after_call", settle)
    with post.committing():
        post.gate.begin_call(starting("run_shell_command", command="./ledger.sh"), nested)
        post.gate.is_stopping = lambda: stopping
        post.gate.finish_call(replace(ended("run_shell_command", command="./ledger.sh"), **how), nested)
    assert bool(asked) is read


@pytest.mark.parametrize("ran", ["./ledger.sh", "./ledger.sh --all"])
def test_a_check_is_what_ran(post: Post, monkeypatch: pytest.MonkeyPatch, ran: str) -> None:
    """I8: an agent or another hook may have changed the input behind ours."""
    asked: list[bytes] = []

    def settle(_: int, read: ReadCall, *__: object) -> list[End]:
        asked.append(read.input)
        return []

    monkeypatch.setattr(post.gate.recovered, "ends_after_call", settle)
    with post.committing():
        post.gate.begin_call(replace(starting("run_shell_command", command="./ledger.sh"), call_id="c1"))
        post.gate.finish_call(replace(ended("run_shell_command", command=ran), call_id="c1"))
    assert [json.loads(input)["command"] for input in asked] == [ran]


@pytest.mark.parametrize(
    ("how", "given", "why"),
    [
        ({"cut": "it took too long"}, "", "it took too long"),
        ({"runs_on": True}, "", RUNS_ON),
        ({}, "it was cancelled", "it was cancelled"),
        ({}, "", CUT),
    ],
)
def test_what_is_open_says_why(post: Post, how: dict[str, object], given: str, why: str) -> None:
    call = charged(post)
    if how:
        finish(post, **how)
    else:
        post.gate.report(call, "cancelled", given, "session")
        post.commit()
    assert [r.why for r in post.log() if isinstance(r, Cut | RunsOn)] == [why]


def test_a_harmless_call_that_was_cut_is_over_and_says_why(post: Post) -> None:
    post.begin("read_file", file_path="a")
    post.gate.finish_call(replace(ended("read_file", file_path="a"), failed=True, clean=False, cut="it took too long"))
    post.commit()
    assert [(e.how, e.why) for e in post.ends()] == [("failed", "it took too long")]


@pytest.mark.parametrize(("by", "again"), [("session", 0), ("supervisor", 1)])
def test_what_the_session_itself_reports_it_does_not_report_again(post: Post, by: EndSource, again: int) -> None:
    post.gate.report(charged(post), "done", "", by)
    assert len(post.gate._calls.again) == again


def test_a_look_at_what_still_runs_is_no_answer_and_the_job_is_not_complete(post: Post) -> None:
    """R6, I8: `--once` takes a job with an unlooked call for incomplete, and a drain ends this one unfinished."""
    call = charged(post)
    finish(post, runs_on=True, task="b1")
    assert refused_again(post)
    with post.committing():
        post.gate.begin_call(starting("run_shell_command", command="cat ledger.txt"))
        post.gate.finish_call(ended("run_shell_command", command="cat ledger.txt"))
        assert post.gate.after_turn() == [] and [a.call for a in post.gate.recovered.after_turn()] == [call]
    state = post.gate._writer.state
    assert final_lease_state("closed", len(state.unlooked)) == "released"


def test_a_background_task_that_the_agent_ended_stays_open(post: Post) -> None:
    call = charged(post)
    finish(post, runs_on=True, task="b1")
    assert [post.gate.end_task("b1", "cancelled") for _ in range(2)] == [True, False]
    post.commit()
    assert hows(post) == [] and post.open_words() == [(call, "runs_on"), (call, "cut")]


def test_a_failure_is_an_end_once_the_agent_goes_on(post: Post) -> None:
    """An agent that is stopped ends its tools first, and says that they failed."""
    first = charged(post)
    finish(post, failed=True, clean=False)
    assert hows(post) == []
    post.gate.confirm()
    post.commit()
    assert hows(post) == [(first, "failed")]
    second = post.begin("run_shell_command", command="make")
    post.gate.finish_call(replace(ended("run_shell_command", command="make"), failed=True, clean=False))
    post.gate.is_stopping = lambda: True
    post.gate.confirm()
    post.commit()
    assert hows(post) == [(first, "failed")] and post.open_words() == [(second, "cut")]


@pytest.mark.parametrize(("over", "open"), [(True, True), (False, False)])
def test_who_is_gone_right_behind_a_failure_was_stopped(post: Post, over: bool, open: bool) -> None:
    call = charged(post)
    finish(post, failed=True, clean=False)
    post.gate.tick()
    post.commit()
    assert hows(post) == [], "too early to know"
    post.world.clock.sleep(0 if over else HOLD)
    if over:
        post.gate.agent_ended(cut=True)
    else:
        post.gate.tick()
    post.commit()
    assert (post.open_words() == [(call, "cut")]) is open and (hows(post) == [(call, "failed")]) is not open


@pytest.mark.parametrize(("cut", "status"), [(False, "done"), (False, "failed"), (True, "done")])
def test_a_session_that_is_read_when_its_agent_is_gone_says_how_calls_ended(
    post: Post, cut: bool, status: Status
) -> None:
    """I8: Kimi does not wait for its after-hooks. Nothing is allowed then, which is no stop of the agent."""
    call = charged(post)
    post.gate.agent_ended(cut)
    post.gate.close()
    post.gate.report(call, status, "", "session")
    post.commit()
    assert post.open_words() == [(call, "cut")] if cut else hows(post) == [(call, status)]


class Table:
    """The processes of the one call: whether one lives."""

    lives = began = sees = True
    reaped = 0

    def look(self, calls: object, left: object = None, over: int = 0) -> None: ...

    def tree(self) -> int:
        return self.reaped

    def has_hook(self, tree: int, since: float) -> bool:
        return False

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def forget(self, call: int) -> None:
        self.forgotten.append(call)

    def begun(self, call: int) -> bool:
        return self.began

    shows = begun

    def alive(self, call: int, running: object = ()) -> tuple[int, ...]:
        return (7,) if self.lives else ()


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be done beside a hook is done before its answer."""
    monkeypatch.setattr("wal_agent.supervise.gate.start_daemon", lambda name, work: work())


@pytest.mark.parametrize(
    ("command", "ends", "lives", "left"),
    [
        ("./load.sh &", True, False, True),
        ("./load.sh &", False, False, False),
        ("./load.sh &", True, True, False),
        ("./load.sh", True, False, False),
        ("ls &", True, False, False),
    ],
)
def test_what_a_call_left_behind_was_cut_off_where_its_agent_ends_it_and_nothing_of_it_lives(
    post: Post, command: str, ends: bool, lives: bool, left: bool
) -> None:
    post.begin("run_shell_command", command=command)
    table, running = Table(), post.gate.last
    table.lives = lives
    post.gate.processes = table  # type: ignore[assignment]
    post.gate._ends_background = ends
    assert running is not None and post.gate._seen(running, None).left is left


def test_processes_are_those_of_the_agents_own_shells(post: Post) -> None:
    call = charged(post)
    post.begin("write_file", file_path="a")
    with post.committing():
        post.gate.begin_call(starting("run_shell_command", command="make"), "gemini:inner")
    assert [*post.gate._shells()] == [call]
    assert not post.gate.has_begun(call)
    table = Table()
    post.gate.processes = table  # type: ignore[assignment]
    assert post.gate.has_begun(call)
    table.began = False
    assert not post.gate.has_begun(call)


@pytest.mark.parametrize("survives", [True, False])
def test_what_runs_on_is_over_where_the_agent_survives_its_end(post: Post, survives: bool) -> None:
    """An agent that ends takes its background processes with it, and so do we: that is no completion."""
    table = Table()
    post.gate.processes = table  # type: ignore[assignment]
    call = charged(post)
    finish(post)
    table.lives = False
    post.gate.tick()
    post.world.clock.sleep(HOLD)
    post.gate.tick() if survives else post.gate.agent_ended(cut=False)
    post.commit()
    assert hows(post) == ([(call, "done")] if survives else [])
    assert post.open_words() == [(call, "runs_on")]
    assert table.forgotten == ([call] if survives else []), "I9"


@pytest.mark.parametrize(
    ("asked", "begun", "sees"), [(True, False, True), (False, False, True), (True, True, True), (True, False, False)]
)
def test_a_no_at_the_dialog_is_silent_and_a_stop_of_the_tool_is_not(
    post: Post, asked: bool, begun: bool, sees: bool
) -> None:
    """A No is believed only where a process of the call would have been seen."""
    call, table = charged(post), Table()
    table.lives, table.began, table.sees = False, begun, sees
    post.gate.processes = table  # type: ignore[assignment]
    if asked:
        post.gate.approval_asked("run_shell_command")
    post.gate.report(call, "cancelled", "it was cancelled", "session")
    post.commit()
    no = (asked, begun, sees) == (True, False, True)
    assert hows(post) == ([(call, "refused")] if no else [])
    assert post.open_words() == ([] if no else [(call, "cut")])
    assert post.gate._approving == {} or not no, "I9"


def test_a_look_at_the_dialog_ends_with_the_run(post: Post) -> None:
    call = charged(post)

    class Restless(Table):
        def tree(self) -> int:
            self.reaped += 1
            post.gate.is_stopping = lambda: True
            assert self.reaped < 3, "nobody looks any more"
            return self.reaped

    table = Restless()
    post.gate.processes = table  # type: ignore[assignment]
    post.gate.approval_asked("run_shell_command")
    assert table.reaped == 1 and [r.call for r in post.gate.running()] == [call]


def test_a_tool_that_an_esc_ends_right_behind_the_yes_has_begun(post: Post) -> None:
    """Codex: it lives between two looks of the run, its file has the words of a No, and the charge is made."""
    call, table = charged(post), Table()
    table.lives, table.began = False, False
    post.gate.processes = table  # type: ignore[assignment]
    post.gate.approval_asked("run_shell_command")
    table.reaped += 1
    post.gate.report(call, "cancelled", "it was cancelled", "session")
    post.commit()
    assert hows(post) == [] and post.open_words() == [(call, "cut")]


def test_an_after_hook_reports_only_a_tool_that_had_begun(post: Post) -> None:
    """Qwen Code's dialog for one call marks what runs beside it, whose processes may be gone before anybody looks."""
    call, table = charged(post), Table()
    table.lives, table.began, table.sees = False, False, True
    post.gate.processes = table  # type: ignore[assignment]
    post.gate.approval_asked("a question about another call")
    finish(post, failed=True, clean=False, cut="it was cancelled")
    assert hows(post) == [] and post.open_words() == [(call, "cut")]


def test_nothing_shows_that_a_tool_without_processes_has_not_begun(post: Post) -> None:
    """An MCP tool that was approved, and an Esc: it stays open, and so does a No."""
    call = post.begin("mcp__pay__charge", amount=5)
    post.gate.approval_asked("mcp__pay__charge")
    post.gate.report(call, "cancelled", "it was cancelled", "session")
    post.commit()
    assert hows(post) == [] and post.open_words() == [(call, "cut")]


def test_the_refused_call_of_a_cut_one_names_its_check(post: Post) -> None:
    post.begin("run_shell_command", command="git push origin main")
    post.gate.finish_call(replace(ended("run_shell_command", command="git push origin main"), cut="it was stopped"))
    post.commit()
    with post.committing():
        decision = post.gate.begin_call(starting("run_shell_command", command="git push origin main"))
    assert isinstance(decision, Deny) and "git ls-remote" in decision.reason


@pytest.mark.parametrize(
    ("how", "known"), [({"cut": "it was stopped"}, WAS_CUT), ({"runs_on": True, "task": "b1"}, RUNS_NOW)]
)
def test_a_refusal_in_the_same_run_tells_of_no_lost_one(post: Post, how: dict[str, object], known: str) -> None:
    charged(post)
    finish(post, **how)
    with post.committing():
        decision = post.gate.begin_call(starting("run_shell_command", **CHARGE))
    assert isinstance(decision, Deny) and known in decision.reason and LOST not in decision.reason


# ---- processes

SUPERVISOR = """
import json, os, signal, subprocess, sys, time
from wal_agent.supervise import processes
processes.become_subreaper()
words = "import subprocess, sys\\nfor line in sys.stdin:\\n subprocess.run(['bash', '-c', line]); print('over')"
agent = subprocess.Popen([sys.executable, "-uc", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, processes.MARKER: "r1"})
known, found = processes.CallProcesses(agent.pid, "r1"), []
for call, line in enumerate(sys.argv[1:], 1):
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    print(line, file=agent.stdin, flush=True)
    assert agent.stdout.readline() == "over\\n"
    known.look({call: processes.Begun(boot, line)}, over=call)
    alive = known.alive(call)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    while known.alive(call):
        time.sleep(0.01)
    found.append([known.begun(call), bool(alive)])
print(json.dumps(found))
agent.kill()
"""


def test_what_a_call_leaves_running_is_seen_and_its_end_too() -> None:
    """`./charge.sh &` has returned, and has only begun. An orphan counts, and what has a session of its own."""
    lines = ["true", "sleep 60 >/dev/null &", "(setsid sleep 60 >/dev/null &)", "sleep 60 >/dev/null & sleep 0.1"]
    printed = subprocess.run([sys.executable, "-c", SUPERVISOR, *lines], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == [[False, False], [True, True], [True, True], [True, True]]


LATER = """
import json, os, signal, subprocess, sys, time
from wal_agent.supervise import processes
processes.become_subreaper()
words = "import subprocess, sys\\nfor line in sys.stdin: subprocess.run(['bash', '-c', line]); print('over')"
agent = subprocess.Popen([sys.executable, "-uc", words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         env={**os.environ, processes.MARKER: "r1"})
known, left = processes.CallProcesses(agent.pid, "r1"), {}
for call, line in enumerate(sys.argv[1:], 1):
    begun = processes.Begun(time.clock_gettime(time.CLOCK_BOOTTIME), line)
    print(line, file=agent.stdin, flush=True)
    assert agent.stdout.readline() == "over\\n"
    known.look({call: begun}, left, over=call)
    left = {1: left.get(1, begun)}
shells = known.alive(1)
open("go", "w").close()
while {*shells} & processes.process_table().keys():
    time.sleep(0.01)
known.look({}, left)
found = known.alive(1)
print(json.dumps([bool(shells), len(found), len(known.alive(2))]))
for pid in found:
    os.kill(pid, signal.SIGKILL)
agent.kill()
"""


def test_what_is_left_running_may_leave_something_itself(tmp_path: Path) -> None:
    """I8: the second process has a session of its own and no parent, so it was counted for no call."""
    leaves = "(until test -e go; do sleep 0.05; done; setsid sleep 60 &) > /dev/null 2>&1 &"
    argv = [sys.executable, "-c", LATER, leaves, "true"]
    env = {**os.environ, "PYTHONPATH": str(Path(processes.__file__).parents[2])}
    printed = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
    assert json.loads(printed.stdout) == [True, 1, 0]


RUNNING = """
import json, os, signal, subprocess, sys, time
from wal_agent.supervise import processes
words = "import subprocess as s, sys\\nfor line in sys.stdin:\\n s.run(['bash', '-c', line], start_new_session=True)"
agent = subprocess.Popen([sys.executable, "-uc", words], stdin=subprocess.PIPE, text=True)
known = processes.CallProcesses(agent.pid, "r1")
boot = time.clock_gettime(time.CLOCK_BOOTTIME)
print("exec sleep 60", file=agent.stdin, flush=True)
while not any(p.name == "sleep" and p.parent == agent.pid for p in processes.process_table().values()):
    time.sleep(0.01)
known.look({1: processes.Begun(boot, "exec sleep 60")})
alive = known.alive(1)
print(json.dumps([known.begun(1), len(alive)]))
agent.kill()
for pid in alive:
    os.kill(pid, signal.SIGKILL)
"""


def test_a_shell_that_has_become_its_one_command_is_the_calls() -> None:
    """A shell executes the one command of `-c` in its own place: then no shell is below the agent, and a No at a dialog
    and an Esc during the command must not look the same."""
    printed = subprocess.run([sys.executable, "-c", RUNNING], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == [True, 1]


TWINS = """
import json, psutil, subprocess, sys, time
from wal_agent.supervise import processes
processes.become_subreaper()
words = "import subprocess, sys\\nfor line in sys.stdin: subprocess.Popen(['bash', '-c', line])"
agent = subprocess.Popen([sys.executable, "-uc", words], stdin=subprocess.PIPE, text=True)
known, begun = processes.CallProcesses(agent.pid, "r1"), {}
for call, line in enumerate(sys.argv[1:], 1):
    begun[call] = processes.Begun(time.clock_gettime(time.CLOCK_BOOTTIME), line)
    print(line, file=agent.stdin, flush=True)
while not all(known.begun(call) for call in begun) or len(processes.descendants(agent.pid)) < 2:
    known.look(begun)
known.look(begun)
first = min((p for p in processes.process_table().values() if p.parent == agent.pid), key=lambda p: p.id[1])
before = bool(known.alive(1, begun))
processes.end_processes(psutil.Process(first.pid).children() + [psutil.Process(first.pid)])
print(json.dumps([known.shows(1), before, bool(known.alive(1, begun)), bool(known.alive(2, [2]))]))
for each in psutil.Process(agent.pid).children(recursive=True):
    each.kill()
agent.kill()
"""


@pytest.mark.parametrize("second", ["sleep 62; true", "sleep 61; true"])
def test_a_call_that_is_over_is_not_kept_open_by_one_that_runs_beside_it(second: str) -> None:
    """Each living shell is accounted for by the call that runs it; of two equal ones by either."""
    lines = ["sleep 61; true", second]
    printed = subprocess.run([sys.executable, "-c", TWINS, *lines], capture_output=True, text=True, check=True)
    assert json.loads(printed.stdout) == [True, True, False, True]


@pytest.mark.parametrize(
    ("tool", "begun", "out"),
    [("run_shell_command", False, True), ("run_shell_command", True, False), ("read_file", False, False)],
)
def test_a_command_that_the_agent_refuses_before_its_hook_shuts_it_out(
    post: Post, tool: str, begun: bool, out: bool
) -> None:
    if begun:
        post.begin(tool, command="ls")
    post.gate.refused_unasked(tool, b'{"command": "./charge.sh"}')
    assert ("./charge.sh" in post.gate.shut_out) is out


def test_a_lease_is_waited_for_up_to_the_deadline(post: Post) -> None:
    """R7."""
    post.fresh, began = False, post.world.clock.boot()
    assert not post.gate._await_lease(began) and post.world.clock.boot() == began
    assert not post.gate._await_lease(began + 3) and post.world.clock.boot() >= began + 3


@pytest.mark.parametrize("reads", [True, False])
def test_an_agent_is_shut_out_where_its_permissions_refuse_each_command(post: Post, reads: bool) -> None:
    """Not by a denial of ours, nor once a command has run."""
    command = "ls" if reads else "./charge.sh"
    ours = post.begin("run_shell_command", command=command)
    post.gate.end_call(ours, "refused", "the lease is lost")
    assert not post.gate.shut_out
    refused = post.begin("run_shell_command", command=command)
    post.gate.report(refused, "refused", "it was refused", "session")
    assert command in post.gate.shut_out
    post.begin("run_shell_command", command="echo one")
    with post.committing():
        post.gate.finish_call(ended("run_shell_command", command="echo one"))
    assert not post.gate.shut_out
