"""supervise/session_capture.py: the session goes into the log, and settles the calls that no hook ends (I8)."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.unit.supervise.crew import PATIENCE, Post, ScriptAgent, Watcher, ended, run_context, starting
from wal_agent.agents.base import Capabilities, ToolStarting
from wal_agent.capture.session import SessionCapture
from wal_agent.errors import Unavailable
from wal_agent.records import Cut, FileDelta, FileGone, Turn
from wal_agent.supervise import session_capture as saver_module
from wal_agent.supervise import session_capture as unlogged_module
from wal_agent.supervise.session_capture import SessionSaver

RESULT = '{"result": 1}\n'


class Trailing(ScriptAgent):
    """It writes what it tells of a call, then the result, and its hooks do not wait for either."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.capabilities = Capabilities(settled_length=self.settled_length)

    def settled_length(self, appended: bytes) -> int:
        return appended.rfind(RESULT.encode()) + len(RESULT) if RESULT.encode() in appended else 0


class Desk:
    """A saver on a session of an agent that writes plain lines."""

    def __init__(self, folder: Path) -> None:
        self.post = Post(folder)
        self.agent = ScriptAgent(folder / "home")
        self.watcher = Watcher()
        self.looked = self.watcher.appended
        self.saver = self.make()

    @property
    def unseen(self) -> list[str]:
        return self.watcher.unseen

    def make(self, session: str = "one", skip: tuple[str, ...] = ()) -> SessionSaver:
        job = self.post.job
        context = run_context(job, self.post.world.clock, agent=self.agent.agent, skip=skip)
        capture = SessionCapture(session, job.blobs.put_payload)
        return SessionSaver(context, self.post.gate, capture, session, self.watcher)

    def tell(self, tool: str, status: str, **input: Any) -> None:
        self.agent.tell("one", tool, status, **input)

    def by_file(self) -> Desk:
        """From now on only the session's file tells which calls it has."""
        self.agent.capabilities = Capabilities(boundary="file")
        self.saver = self.make()
        return self

    def trailing(self) -> Desk:
        """From now on a call's line counts once a result stands behind it."""
        self.agent = Trailing(self.agent.home)
        self.saver = self.make()
        return self

    def begin(self, call_id: str, inner: str = "", tool: str = "t", **input: Any) -> int:
        with self.post.committing():
            self.post.gate.begin_call(ToolStarting("s", tool, json.dumps(input).encode(), call_id, inner))
        assert self.post.gate.last is not None
        return self.post.gate.last.call

    def running(self) -> list[int]:
        return [r.call for r in self.post.gate.running()]

    def inner(self, status: str, call_id: str, file: str = "sub-1.jsonl") -> None:
        """A subagent's own file tells of a call of its."""
        self.agent.folder("one").mkdir(parents=True, exist_ok=True)
        line = {"tool": "", "input": {}, "status": status, "id": f"u-{call_id}", "call_id": call_id}
        with (self.agent.folder("one") / file).open("a") as out:
            out.write(json.dumps(line) + "\n")

    def save(self) -> None:
        self.saver.save()
        self.post.commit()

    def endings(self) -> list[tuple[int, str, str]]:
        """Of all calls, once the agent has gone on."""
        self.post.gate.confirm()
        self.post.commit()
        return [(e.call, e.how, e.by) for e in self.post.ends()]

    def deltas(self) -> list[FileDelta]:
        return [r for r in self.post.log() if isinstance(r, FileDelta)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_session_without_a_file_is_said_once_the_agent_has_worked(desk: Desk) -> None:
    """I3: agents write the file late, so not before a batch is over."""
    call = desk.begin("c1")
    desk.save()
    assert not desk.saver.lost and desk.saver.problems == ()
    desk.saver.mark_boundary(call)
    desk.save()
    assert desk.saver.lost and desk.saver.lost in desk.saver.problems
    desk.tell("t", "done")
    desk.save()
    assert not desk.saver.lost


def test_a_session_that_its_agent_deletes_is_a_loss_once_it_has_a_turn(desk: Desk) -> None:
    """Gemini deletes a session in which nothing was said."""
    main = desk.agent.home / "one" / "main.jsonl"
    main.parent.mkdir(parents=True, exist_ok=True)
    main.write_text("\n")
    desk.save()
    main.unlink()
    desk.save()
    assert desk.saver.problems == ()
    desk.post.job.writer.append(Turn(time=1.0, state="started", session="one"))
    desk.post.commit()
    assert len(desk.saver.problems) == 1


# ---- turn boundaries


@pytest.mark.parametrize(("status", "how"), [("refused", "refused"), ("failed", "failed"), ("done", "done")])
def test_what_the_session_tells_settles_a_call_at_the_boundary_and_not_before(
    desk: Desk, status: str, how: str
) -> None:
    """I8, ARCHITECTURE.md: before-hooks fire before a person approves; the file tells the fate after the batch."""
    call = desk.post.begin("run_shell_command", command="x")
    desk.tell("run_shell_command", status, command="x")
    desk.save()
    assert desk.endings() == [] and [r.call for r in desk.post.gate.running()] == [call]
    desk.saver.mark_boundary(call)
    desk.save()
    assert desk.endings() == [(call, how, "session")]
    desk.saver.mark_boundary(call)
    desk.save()
    assert len(desk.endings()) == 1


def test_what_was_cut_off_stays_open_and_is_settled_no_second_time(desk: Desk) -> None:
    """I8: a cancelled call may have begun."""
    call = desk.post.begin("run_shell_command", command="x")
    desk.tell("run_shell_command", "cancelled", command="x")
    desk.saver.mark_boundary(call)
    for _ in range(2):
        desk.save()
        assert desk.endings() == [] and desk.post.open_words() == [(call, "cut")] and desk.running() == []
    assert [o.intent.call for o in desk.post.job.writer.state.unanswered] == [call]


def test_a_boundary_settles_nothing_of_the_batch_behind_it(desk: Desk) -> None:
    first, second = (desk.post.begin("run_shell_command", command="x") for _ in range(2))
    desk.tell("run_shell_command", "refused", command="x")
    desk.tell("run_shell_command", "refused", command="x")
    desk.saver.mark_boundary(first)
    desk.save()
    assert desk.endings() == [(first, "refused", "session")]
    assert [r.call for r in desk.post.gate.running()] == [second]
    desk.saver.mark_boundary(second)
    desk.save()
    assert desk.endings() == [(first, "refused", "session"), (second, "refused", "session")]


def test_what_is_told_of_the_batch_behind_a_boundary_waits_for_the_next(desk: Desk) -> None:
    """I8: the thread that saves may come late; what it then reads of the next batch must not be lost."""
    first = desk.post.begin("run_shell_command", command="a")
    desk.post.gate.finish_call(ended("run_shell_command", command="a"))
    desk.saver.mark_boundary(first)
    second = desk.post.begin("run_shell_command", command="b")
    desk.tell("run_shell_command", "done", command="a")
    desk.tell("run_shell_command", "refused", command="b")
    desk.save()
    assert desk.running() == [second]
    desk.saver.mark_boundary(second)
    desk.save()
    assert desk.endings() == [(first, "done", "hook"), (second, "refused", "session")]


def test_what_was_told_before_a_call_began_never_ends_it(desk: Desk) -> None:
    """I8: a refusal that no hook told of (a rule of the agent's own), then the same call again, which runs."""
    first = desk.post.begin("run_shell_command", command="a")
    desk.saver.mark_boundary(first - 1)
    desk.save()
    desk.tell("run_shell_command", "failed", command="b")
    desk.save()
    second = desk.post.begin("run_shell_command", command="b")
    desk.saver.mark_boundary(second)
    desk.save()
    assert desk.endings() == [] and desk.running() == [first, second]


def test_a_call_that_its_hook_ended_ends_no_other_one_when_the_session_tells_it_again(desk: Desk) -> None:
    """I8: of two calls of one tool one ran and one was refused; each keeps its own end."""
    ran = desk.post.begin("run_shell_command", command="ran")
    not_run = desk.post.begin("run_shell_command", command="refused")
    desk.post.gate.finish_call(ended("run_shell_command", command="ran"))
    desk.tell("run_shell_command", "done", command="ran")
    desk.tell("run_shell_command", "refused", command="refused")
    desk.saver.mark_boundary(not_run)
    desk.save()
    assert desk.endings() == [(ran, "done", "hook"), (not_run, "refused", "session")]


def test_the_same_for_two_identical_calls(desk: Desk) -> None:
    first, second = (desk.post.begin("run_shell_command", command="x") for _ in range(2))
    desk.post.gate.finish_call(ended("run_shell_command", command="x"))
    desk.tell("run_shell_command", "done", command="x")
    desk.tell("run_shell_command", "cancelled", command="x")
    desk.saver.mark_boundary(second)
    desk.save()
    assert desk.endings() == [(first, "done", "hook")] and desk.post.open_words() == [(second, "cut")]


def test_a_call_that_we_denied_and_the_session_calls_failed_ends_no_other_one(desk: Desk) -> None:
    allowed = desk.post.begin("write_file", file_path="a")
    desk.post.gate.drain()
    desk.post.gate.begin_call(starting("write_file", file_path="a"))
    desk.tell("write_file", "failed", file_path="a")
    desk.tell("write_file", "cancelled", file_path="a")
    desk.saver.mark_boundary(2)
    desk.save()
    assert sorted(desk.endings()) == [(allowed, "failed", "session"), (2, "refused", "supervisor")], "it only writes"


def test_a_refused_call_whose_input_was_rewritten_is_meant_when_it_is_the_only_one(desk: Desk) -> None:
    call = desk.post.begin("run_shell_command", command="as asked")
    desk.tell("run_shell_command", "done", command="of before the run")
    desk.tell("run_shell_command", "refused", command="as rewritten")
    desk.saver.mark_boundary(call)
    desk.save()
    assert desk.endings() == [(call, "refused", "session")]


def test_half_a_line_is_read_when_it_is_whole(desk: Desk) -> None:
    call = desk.post.begin("t", a=1)
    line = '{"tool": "t", "input": {"a": 1}, "status": "refused"}\n'
    desk.agent.write("one", line[:20])
    desk.saver.mark_boundary(call)
    desk.save()
    desk.agent.write("one", line[20:])
    desk.saver.mark_boundary(call + 1)
    desk.save()
    assert desk.endings() == [(call, "refused", "session")]
    assert b"".join(desk.looked) == line.encode()


# ---- subagents' calls


def test_a_subagents_own_file_settles_its_calls_by_their_ids(desk: Desk) -> None:
    """I8: a call that was refused inside a subagent has no after-hook, and the main file is silent on it."""
    desk.inner("done", "of before")
    desk.by_file()
    outer, refused = desk.begin("outer"), desk.begin("i1", "sub-1", command="rm")
    runs, failed = desk.begin("i2", "sub-1", command="make"), desk.begin("i3", "sub-2")
    desk.inner("refused", "i1")
    desk.inner("done", "i2")
    desk.inner("failed", "i3", "sub-2.jsonl")
    desk.save()
    assert sorted(desk.endings()) == [(refused, "refused", "session"), (failed, "failed", "session")]
    assert desk.running() == [outer, runs], "done has an after-hook, which brings the result"
    desk.saver.finish()
    desk.post.commit()
    assert (runs, "done", "session") in desk.endings() and desk.running() == [outer]


def test_with_boundaries_by_hooks_a_subagents_file_counts_at_the_next(desk: Desk) -> None:
    call = desk.begin("i1", "sub-1")
    desk.inner("failed", "i1")
    desk.agent.write("one", "{}\n")
    desk.save()
    assert desk.endings() == []
    desk.saver.mark_boundary(call)
    desk.save()
    assert desk.endings() == [(call, "failed", "session")] and desk.unseen == []


def test_what_the_main_file_tells_without_an_id_is_no_subagents_call(desk: Desk) -> None:
    """I8: a person refuses the main agent's call while the subagent's equal one runs."""
    inner = desk.begin("", "sub-1", "run_shell_command", command="npm test")
    mine = desk.begin("", "", "run_shell_command", command="npm test")
    desk.tell("run_shell_command", "refused", command="npm test")
    desk.tell("run_shell_command", "cancelled", command="rewritten")
    desk.saver.mark_boundary(mine)
    desk.save()
    assert desk.endings() == [(mine, "refused", "session")] and desk.running() == [inner]


def test_an_esc_that_only_the_file_reports_leaves_the_call_open_at_once(desk: Desk) -> None:
    """I8: Codex asks its model nothing behind an Esc, so the next boundary may be never."""
    call = desk.begin("c1", tool="bash", command="./charge.sh")
    desk.agent.write("one", '{"tool":"","input":{},"status":"cancelled","id":"u1","call_id":"c1"}\n')
    desk.save()
    assert desk.running() == [] and [(r.call, r.by) for r in desk.post.log() if isinstance(r, Cut)] == [
        (call, "session")
    ]


# ---- where only the file tells


def test_a_line_that_is_written_late_ends_no_equal_call_of_the_next_turn(desk: Desk) -> None:
    """I8, I4: Copilot writes up to a second behind its hooks: the next turn has begun when it tells of the last one."""
    desk.by_file().agent.write("one", "{}\n")
    first = desk.post.begin("bash", command="make")
    desk.post.gate.finish_call(ended("bash", command="make"))
    desk.saver.mark_boundary(first)
    desk.save()
    assert [d.settled for d in desk.deltas()] == [0], "the file lacks it"
    second = desk.post.begin("bash", command="make")
    desk.tell("bash", "done", command="make")
    desk.save()
    assert desk.endings() == [(first, "done", "hook")] and desk.running() == [second]
    assert desk.deltas()[-1].settled == first


def test_what_the_file_never_tells_is_forgotten_one_boundary_later(desk: Desk) -> None:
    desk.by_file()
    for n in range(2):
        call = desk.post.begin("bash", command=str(n))
        desk.post.gate.finish_call(ended("bash", command=str(n)))
        desk.saver.mark_boundary(call)
        desk.save()
    assert [known.call for known in desk.post.gate._calls.again] == [2]


def test_a_done_call_waits_for_its_after_hook_which_has_the_result(desk: Desk) -> None:
    desk.by_file()
    call, lost = desk.post.begin("bash", command="make"), desk.post.begin("bash", command="lost")
    desk.tell("bash", "done", command="make")
    desk.tell("bash", "done", command="lost")
    desk.save()
    assert desk.running() == [call, lost]
    assert desk.post.gate.finish_call(ended("bash", command="make"))
    desk.save()
    desk.saver.mark_boundary(lost)
    desk.save()
    assert desk.endings() == [(call, "done", "hook"), (lost, "done", "session")]
    assert desk.post.ends()[0].result is not None and desk.saver._outcomes == []


def test_a_refused_call_that_the_file_spells_otherwise_ends_at_the_boundary(desk: Desk) -> None:
    desk.by_file()
    desk.post.gate.drain()
    desk.post.gate.begin_call(starting("bash", command="denied by us"))
    desk.post.gate._draining = ""
    call = desk.post.begin("bash", command="make")
    desk.tell("bash", "refused", command="denied by us")
    desk.save()
    desk.saver.mark_boundary(call - 1)
    desk.save()
    assert desk.running() == [call], "ours was told, and nothing else"
    desk.tell("bash", "refused", command="make", timeout=3)
    desk.save()
    assert desk.running() == [call]
    desk.saver.mark_boundary(call)
    desk.save()
    assert desk.endings() == [(1, "refused", "supervisor"), (call, "refused", "session")]


# ---- where the file trails the hooks


def test_a_call_whose_result_the_file_lacks_at_the_boundary_is_not_told_by_it(desk: Desk) -> None:
    """I8: Qwen Code tells of the next request while results are on their way to its file. A machine that is lost then
    has them in the log alone, so the state must keep them."""
    desk.trailing()
    for n in (1, 2):
        call = desk.post.begin("write_file", file_path=str(n))
        desk.post.gate.finish_call(ended("write_file", file_path=str(n)))
        desk.agent.write("one", "{}\n" + RESULT)
        desk.saver.mark_boundary(call)
        desk.save()
        assert desk.deltas()[-1].settled == call - 1, "it tells nothing"
        desk.tell("write_file", "done", file_path=str(n))
        desk.save()
        assert desk.deltas()[-1].settled == call - 1, "it lacks the result"
        assert [e.intent.call for e in desk.post.state.unsettled] == [call]
        desk.agent.write("one", RESULT)
        desk.save()
        assert desk.deltas()[-1].settled == call and desk.post.state.unsettled == ()
    assert desk.endings() == [(1, "done", "hook"), (2, "done", "hook")] and desk.unseen == []


def test_a_trailing_file_has_until_the_next_boundary(desk: Desk) -> None:
    """It may spell an input otherwise than the hooks."""
    desk.trailing()
    for n in (1, 2):
        desk.post.begin("bash", command=str(n))
        desk.post.gate.finish_call(ended("bash", command=str(n)))
        desk.tell("bash", "cancelled", command="as rewritten")
        desk.agent.write("one", RESULT)
        desk.saver.mark_boundary(n)
        desk.save()
        desk.saver.mark_boundary(n)  # the turn's end, without a call in between
        desk.save()
        assert desk.deltas()[-1].settled == n - 1
    assert desk.endings() == [(1, "done", "hook"), (2, "done", "hook")]


@pytest.mark.parametrize(("completed", "settled"), [(True, 1), (False, 0)], ids=["in order", "cut off"])
def test_a_trailing_agent_that_ended_in_good_order_has_written_everything(
    desk: Desk, completed: bool, settled: int
) -> None:
    desk.trailing()
    call = desk.post.begin("bash", command="make")
    desk.post.gate.finish_call(ended("bash", command="make"))
    desk.tell("bash", "done", command="make")
    desk.saver.mark_boundary(call)
    desk.save()
    desk.saver.finish(completed)
    desk.post.commit()
    assert desk.deltas()[-1].settled == settled
    assert [e.intent.call for e in desk.post.state.unsettled] == [1][settled:]


def test_what_a_trailing_file_tells_behind_the_boundary_ends_a_call_at_once(desk: Desk) -> None:
    """I8: a person refused the turn's last call, and the next boundary may be hours away."""
    desk.trailing()
    call = desk.post.begin("bash", command="make")
    desk.saver.mark_boundary(call)
    desk.save()
    assert desk.endings() == []
    desk.tell("bash", "refused", command="make")
    desk.agent.write("one", RESULT)
    desk.save()
    assert desk.endings() == [(call, "refused", "session")]
    desk.save()
    assert desk.deltas()[-1].settled == call


def test_a_late_word_ends_no_equal_call_of_the_next_batch(desk: Desk) -> None:
    desk.trailing()
    first = desk.post.begin("bash", command="make")
    desk.post.gate.finish_call(ended("bash", command="make"))
    desk.saver.mark_boundary(first)
    desk.save()
    second = desk.post.begin("bash", command="make")
    desk.tell("bash", "done", command="make")
    desk.agent.write("one", RESULT)
    desk.save()
    assert desk.running() == [second]
    desk.saver.mark_boundary(second)
    desk.save()
    assert desk.endings() == [(first, "done", "hook")] and desk.running() == [second]
    assert desk.deltas()[-1].settled == first


# ---- I5: calls that no hook told of


def test_a_finished_call_that_no_hook_told_of_is_reported(desk: Desk) -> None:
    """I5: hooks that are off are found at the first call that the log did not see."""
    desk.post.begin("write_file", file_path="a")
    desk.tell("write_file", "done", file_path="a")
    desk.tell("read_file", "failed", file_path="a")
    desk.save()
    assert desk.unseen == []
    desk.tell("write_file", "done", file_path="b")
    desk.save()
    assert desk.unseen == ["write_file"]


def test_calls_that_need_no_hook_are_not_missed(desk: Desk) -> None:
    desk.saver = desk.make(skip=("read_file",))
    desk.tell("read_file", "done", file_path="a")
    desk.save()
    assert desk.unseen == []


def test_what_the_session_told_before_this_run_is_not_counted(desk: Desk) -> None:
    desk.tell("write_file", "done", file_path="old")
    desk.saver = desk.make()
    desk.save()
    assert desk.unseen == [] and b"".join(desk.looked) == b""


def test_a_session_that_is_written_anew_tells_nothing_twice(desk: Desk) -> None:
    """A file that was compressed repeats old calls; to count them again would stop a healthy run."""
    for n in range(3):
        desk.post.begin("write_file", file_path=str(n))
        desk.post.gate.finish_call(ended("write_file", file_path=str(n)))
        desk.tell("write_file", "done", file_path=str(n))
    desk.save()
    (desk.agent.folder("one") / "main.jsonl").unlink()
    desk.tell("write_file", "done", file_path="2")
    desk.save()
    assert desk.unseen == []
    desk.tell("write_file", "done", file_path="unhooked")
    desk.save()
    assert desk.unseen == ["write_file"]


def told_with_id(desk: Desk, call_id: str, tool: str = "t", session: str = "one") -> None:
    line = {"tool": tool, "input": {}, "status": "done", "id": f"u-{call_id}", "call_id": call_id}
    desk.agent.write(session, json.dumps(line) + "\n")


def test_a_finished_call_whose_id_no_hook_told_is_reported(desk: Desk) -> None:
    """I5: though another call of its tool began, and was refused or runs still."""
    desk.saver = desk.make(skip=("read_file",))
    desk.begin("A")
    told_with_id(desk, "skipped", "read_file")
    told_with_id(desk, "A")
    desk.save()
    assert desk.unseen == []
    desk.begin("B")
    told_with_id(desk, "never")
    desk.save()
    assert desk.unseen == ["t"]


def test_a_call_of_before_this_run_that_is_told_again_is_not_missed(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6: a row of an old call is written again when the agent clears its result; the run is healthy."""
    monkeypatch.setattr(unlogged_module, "_PIECE", 7)
    told_with_id(desk, "old-call")
    desk.saver = desk.make()
    told_with_id(desk, "old-call")
    desk.save()
    assert desk.unseen == []


def test_another_session_may_count_its_calls_anew(desk: Desk) -> None:
    """I8: what is known by its id in one session is news in the next."""
    for session in ("one", "two"):
        desk.saver.switch(session)
        call = desk.begin("call_0", tool="t", of=session)
        line = {"tool": "t", "input": {"of": session}, "status": "refused", "id": "m1/call_0", "call_id": "call_0"}
        desk.agent.write(session, json.dumps(line) + "\n")
        desk.saver.mark_boundary(call)
        desk.save()
    assert desk.running() == []


# ---- captures


def test_settled_names_the_last_call_that_the_file_tells_and_nothing_while_one_is_open(desk: Desk) -> None:
    """Results of settled calls are not kept beside the file, so naming an open one would lose its result."""
    first, second = (desk.post.begin("write_file", file_path=str(n)) for n in range(2))
    desk.post.gate.finish_call(ended("write_file", file_path="0"))
    desk.tell("write_file", "done", file_path="0")
    desk.saver.mark_boundary(second)
    desk.save()
    assert [d.settled for d in desk.deltas()] == [0]
    desk.post.gate.finish_call(ended("write_file", file_path="1"))
    desk.tell("write_file", "done", file_path="1")
    desk.save()
    assert [d.settled for d in desk.deltas()] == [0, second]
    assert first == 1 and desk.post.state.unsettled == ()


def test_a_call_of_the_next_batch_does_not_hold_the_last_one_back(desk: Desk) -> None:
    first = desk.post.begin("write_file", file_path="0")
    desk.post.gate.finish_call(ended("write_file", file_path="0"))
    desk.tell("write_file", "done", file_path="0")
    desk.saver.mark_boundary(first)
    desk.post.begin("write_file", file_path="1")
    desk.save()
    assert [d.settled for d in desk.deltas()] == [first]


def test_a_backlog_holds_captures_back_and_settles_all_the_same(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: memory stays bounded while the bucket is away; nothing is lost, the next save finds it."""
    call = desk.post.begin("t", a=1)
    desk.tell("t", "refused", a=1)
    desk.saver.mark_boundary(call)
    monkeypatch.setattr(saver_module, "MAX_BACKLOG", -1)
    desk.save()
    assert desk.deltas() == [] and desk.saver.saved == 0.0
    assert desk.endings() == [(call, "refused", "session")]
    monkeypatch.undo()
    desk.save()
    assert len(desk.deltas()) == 1 and desk.saver.saved == desk.post.world.clock.at


def test_more_than_fits_one_segment_is_saved(desk: Desk) -> None:
    """I3: twenty files of a resumed session that are each small enough to stand in their records."""
    desk.agent.write("one", "{}\n")
    for n in range(20):
        (desk.agent.folder("one") / f"extra{n:02}").write_bytes(bytes([n]) * 60_000)
    desk.save()
    files = desk.post.job.writer.state.files
    assert len(files) == 21
    assert files["extra07"].sha256 == hashlib.sha256(b"\7" * 60_000).hexdigest()
    assert desk.deltas()[-1].path == "main.jsonl"


def test_a_hook_never_waits_for_a_save(desk: Desk) -> None:
    """I6, I9: a boundary comes from the agent's hook while a save may hang in a bucket that is away."""
    told = threading.Event()

    def boundary() -> None:
        desk.saver.mark_boundary(7)
        told.set()

    def hanging(_: str) -> None:
        thread = threading.Thread(target=boundary, daemon=True)
        thread.start()
        thread.join(PATIENCE)

    desk.agent.write("one", "x" * 100_000 + "\n")
    desk.post.world.bucket.before_put = hanging
    desk.save()
    assert told.is_set()


def test_bulk_that_cannot_be_stored_is_found_again(desk: Desk) -> None:
    desk.agent.write("one", "x" * 100_000 + "\n")
    desk.post.world.bucket.fates = ["dropped"] * 100
    with pytest.raises(Unavailable):
        desk.saver.save()
    desk.post.world.bucket.fates = []
    desk.save()
    assert [d.size for d in desk.deltas()] == [100_001]


def test_a_main_file_that_is_gone_or_is_a_link_breaks_no_save(desk: Desk) -> None:
    """Autosave ran into a file that vanished between the listing and the look: later saves must still come."""
    desk.tell("t", "done", a=1)
    main = desk.agent.folder("one") / "main.jsonl"
    main.rename(main.with_name("elsewhere"))
    main.symlink_to("elsewhere")
    desk.save()
    assert [d.path for d in desk.deltas()] == ["elsewhere"] and b"".join(desk.looked) == b""


def test_another_session_begins_with_the_old_one_forgotten(desk: Desk) -> None:
    """/clear: the old session's files leave the state, and the new one's are read."""
    desk.tell("t", "failed", a=1)
    (desk.agent.folder("one") / "extra").write_text("x")
    desk.save()
    assert set(desk.post.job.writer.state.files) == {"main.jsonl", "extra"}
    desk.saver.switch("two")
    desk.agent.tell("two", "t", "failed", a=2)
    desk.save()
    assert sorted(r.path for r in desk.post.log() if isinstance(r, FileGone)) == ["extra", "main.jsonl"]
    state = desk.post.state
    assert {name: f.session for name, f in state.files.items()} == {"main.jsonl": "two"}
    assert b'"a": 2' in desk.looked[-1]


def test_the_last_save_reads_everything_again(desk: Desk) -> None:
    """I4: a file that changed without its time changing is still captured at the end."""
    desk.agent.write("one", "1" * 100_000 + "\n")
    desk.save()
    main = desk.agent.folder("one") / "main.jsonl"
    before = main.stat()
    main.write_bytes(main.read_bytes().replace(b"1", b"2", 1))
    os.utime(main, ns=(before.st_atime_ns, before.st_mtime_ns))
    desk.save()
    stale = desk.post.job.writer.state.files["main.jsonl"].sha256
    desk.saver.finish()
    desk.post.commit()
    now = desk.post.job.writer.state.files["main.jsonl"].sha256
    assert now == hashlib.sha256(main.read_bytes()).hexdigest() != stale


def test_the_end_of_a_run_is_a_boundary(desk: Desk) -> None:
    call = desk.post.begin("t", a=1)
    desk.tell("t", "refused", a=1)
    desk.saver.finish()
    desk.post.commit()
    assert desk.endings() == [(call, "refused", "session")]


@pytest.mark.parametrize("completed", [True, False], ids=["in order", "cut off"])
def test_what_is_not_over_when_the_agent_has_ended_was_ended_with_it(
    desk: Desk, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: Codex may be gone before it has written that. After a crash the evidence says what became of such a call, and
    of another agent's a person is asked."""
    desk.begin("left", tool="sh")
    desk.begin("over", tool="sh")
    desk.agent.write("one", '{"id": "o", "tool": "", "input": {}, "status": "done", "call_id": "over"}\n')
    desk.saver.finish(completed)
    desk.post.commit()
    assert desk.endings() == [(2, "done", "session")]
    desk.agent.capabilities = Capabilities(ends_its_calls=True)
    desk.saver.finish(completed)
    desk.post.commit()
    assert desk.endings()[1:] == [] and desk.post.open_words() == ([(1, "cut")] if completed else [])


def test_a_call_that_the_file_tells_again_is_not_another_one(desk: Desk) -> None:
    """I5: a message is written again with all its calls; taking that for unlogged calls would stop a healthy run."""
    desk.post.begin("write_file", file_path="a")
    line = '{"id": "w1", "tool": "write_file", "input": {"file_path": "a"}, "status": "done"}\n'
    for _ in range(3):
        desk.agent.write("one", line)
        desk.save()
    assert desk.unseen == []
    desk.agent.write("one", line.replace("w1", "w2"))
    desk.save()
    assert desk.unseen == ["write_file"]


def test_a_session_that_begins_before_the_old_one_has_a_file_is_saved(desk: Desk) -> None:
    """I3: `--resume latest` and /clear tell their session late; what was before it may have no file at all."""
    desk.saver.switch("two")
    desk.agent.write("two", "a line\n")
    desk.save()
    assert {f.session for f in desk.post.job.writer.state.files.values()} == {"two"}


def test_the_calls_of_an_old_session_that_is_gone_back_to_are_not_missed(desk: Desk) -> None:
    """`--continue` and /resume tell their session late; its calls of before need no hook of this run."""
    desk.agent.tell("two", "write_file", "done", file_path="old")
    desk.saver.switch("two")
    desk.save()
    assert desk.unseen == []
    desk.agent.tell("two", "write_file", "done", file_path="new")
    desk.save()
    assert desk.unseen == ["write_file"]


def test_a_result_that_does_not_name_its_tool_is_no_call_of_another_one(desk: Desk) -> None:
    """Codex and Claude Code write a call and its result apart: one look may find the result alone."""
    desk.tell("", "done")
    desk.save()
    assert desk.unseen == []


def test_what_the_log_did_not_take_is_sent_whole_the_next_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4: deltas build on each other, so none may stand on bytes that the log never got."""
    desk.agent.write("one", "first\n")
    desk.save()
    desk.agent.write("one", "second\n")
    with monkeypatch.context() as broken:
        broken.setattr(
            desk.post.job.writer, "append", lambda *records, wait: (_ for _ in ()).throw(ValueError("refused"))
        )
        with pytest.raises(ValueError, match="refused"):
            desk.saver.save()
    desk.agent.write("one", "third\n")
    desk.save()
    (file,) = desk.post.job.writer.state.files.values()
    assert file.layers[-1].edits[0].offset == 0 and file.size == len("first\nsecond\nthird\n")


def test_a_save_that_hangs_in_a_blob_appends_nothing_once_the_saver_is_closed(desk: Desk) -> None:
    """I4: the agent may be started again in this session meanwhile, and its captures are another saver's, whose deltas
    build on each other."""
    hanging, leave = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        hanging.set()
        leave.wait(PATIENCE)

    desk.agent.write("one", "x" * 200_000 + "\n")
    desk.post.world.bucket.before_put = hang
    saving = threading.Thread(target=desk.saver.save, daemon=True)
    saving.start()
    assert hanging.wait(PATIENCE)
    desk.saver.close()
    leave.set()
    saving.join(PATIENCE)
    desk.saver.finish()
    desk.post.commit()
    assert not saving.is_alive() and desk.deltas() == []
    desk.saver = desk.make()
    desk.save()
    assert [d.size for d in desk.deltas()] == [200_001]
