"""supervise/gate.py: calls of earlier runs (I8), calls that no hook announced (I5), subagents' calls, and the bounds
of a task."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.unit.supervise.crew import Post, ended, starting
from tests.unit.wal.world import intent
from wal_agent.agents.base import Allow, Deny
from wal_agent.calls.call import ReadCall
from wal_agent.calls.rules.table import load_rules
from wal_agent.errors import UsageError
from wal_agent.events import CallEnded, CallStarted, Event
from wal_agent.records import Answer, Cut, End, Finding, Verdict
from wal_agent.recovery.inflight import AskedCall
from wal_agent.supervise import gate as gates
from wal_agent.supervise.gate import Calls, Gate, RecoveredCalls, RunningCall, cut_payload, unannounced_error
from wal_agent.wal.blobs import INLINE
from wal_agent.wal.state import RecentCall
from wal_agent.wording.messages import DENY_BUDGET, DENY_CALLER, DENY_DRAINING, DENY_LATE, LOST, WAS_CUT

CHARGE = {"command": "./charge.sh 49.90"}


@pytest.fixture
def post(tmp_path: Path) -> Post:
    """With two calls of earlier runs in flight: #1 and #2."""
    post = Post(tmp_path)
    post.job.writer.append(intent(1), intent(2))
    post.commit()
    return post


def asked(call: int, finding: Finding = "unknown") -> AskedCall:
    verify, look = ("cat ledger.txt",), "`cat ledger.txt`"
    return AskedCall(call, "run_shell_command", json.dumps(CHARGE).encode(), verify, finding, look=look)


def recovered(
    post: Post, calls: Sequence[AskedCall] = (), harmless: Sequence[int] = (), **findings: Finding
) -> RecoveredCalls:
    """`findings`: of `c1`, `c2`."""
    verdicts = [Verdict(call=int(name[1:]), finding=found, why=f"why {name}") for name, found in findings.items()]
    found = RecoveredCalls(post.context, verdicts, frozenset(harmless), calls)
    post.gate = Gate(post.context, load_rules, lambda: post.fresh, found)
    return found


# ---- calls of earlier runs


def test_a_turn_settles_what_evidence_or_harmlessness_decides(post: Post) -> None:
    settled = recovered(post, [asked(1), asked(2)], harmless=[2], c1="completed", c2="unknown", c9="completed")
    assert settled.after_turn() == [
        End(time=post.world.clock.now(), call=1, how="verified", by="recovery", finding="completed", why="why c1"),
        End(time=post.world.clock.now(), call=2, how="verified", by="recovery", finding="unknown", why="why c2"),
    ], "#9 is not open"


@pytest.mark.parametrize("finding", ["unknown", "partial"])
def test_what_is_not_known_and_may_harm_stays_open_with_the_answer_that_the_turn_was(
    post: Post, finding: Finding
) -> None:
    """I8: also what was ended while it ran, of which the rest is to be done."""
    settled = recovered(post, [asked(1, finding), asked(2, finding)], c1=finding, c2=finding)
    assert [each.call for each in settled.unlooked()] == [1, 2]
    assert settled.after_turn() == [Answer(time=post.world.clock.now(), call=n) for n in (1, 2)]
    post.job.writer.append(settled.answer(1, "I looked"))
    post.commit()
    assert [answer.call for answer in settled.after_turn()] == [1, 2], "words alone are no look"
    settled.ends_after_call(3, ReadCall("Bash", json.dumps({"command": "./ledger.sh --list | grep c1"}).encode(), ""))


def test_a_call_that_a_person_settled_meanwhile_gets_no_second_end(post: Post) -> None:
    settled = recovered(post, [asked(1)], c1="completed")
    post.job.writer.append(End(time=1.0, call=1, how="resolved", by="person"))
    post.commit()
    assert settled.after_turn() == []


def test_a_look_settles_at_once_and_only_once(post: Post) -> None:
    """Another crash before the end of the turn must not ask again."""
    settled = recovered(post, [asked(1)], c1="completed")
    look = (json.dumps({"command": "cat ledger.txt"}).encode(), "")
    (end,) = settled.ends_after_call(3, ReadCall("Bash", *look))
    assert (end.call, end.how, end.by) == (1, "verified", "recovery")
    assert settled.ends_after_call(4, ReadCall("Bash", *look)) == [] and settled.after_turn() == []
    assert recovered(post).ends_after_call(3, ReadCall("Bash", *look)) == [], "nothing was asked"


@pytest.mark.parametrize(
    ("command", "changes", "check", "goes_on"),
    [
        ("make", True, False, True),
        ("make", False, False, False),
        ("make", True, True, False),
        ("wal-agent settle 1 --because seen && cat ledger.txt", True, False, False),
    ],
)
def test_the_agent_goes_on_with_a_call_that_changes_something_and_only_then(
    post: Post, monkeypatch: pytest.MonkeyPatch, command: str, changes: bool, check: bool, goes_on: bool
) -> None:
    """I8: until then a check that showed a call's effect keeps an equal one refused. To settle is no work."""
    settled, noted = recovered(post, [asked(1)]), list[bool]()
    monkeypatch.setattr(settled._answers, "read_check", lambda *_: check)
    monkeypatch.setattr(settled._answers, "observe_call", lambda number, call, goes_on: noted.append(goes_on))
    settled.ends_after_call(3, ReadCall("Bash", json.dumps({"command": command}).encode(), ""), True, changes, b"x")
    assert noted == [goes_on]


def test_a_refusal_says_of_each_call_what_is_known_of_it(post: Post) -> None:
    post.job.writer.append(Cut(time=1.0, call=2, by="session", why="Esc"))
    post.commit()
    assert (post.gate._known(1), post.gate._known(2)) == (LOST, WAS_CUT)


def test_the_agent_is_told_to_stop_where_the_log_takes_nothing_until_a_call_may_run(post: Post) -> None:
    assert not post.gate.told_to_stop
    for word, nested, told in (("budget", "", False), ("late", "gemini:inner", False), ("late", "", True)):
        post.gate._deny("because", word, nested=nested)
        assert post.gate.told_to_stop is told
    post.begin()
    assert not post.gate.told_to_stop
    post.gate._deny("because", "unsaved")
    assert post.gate.told_to_stop
    post.gate.begin_turn()
    assert not post.gate.told_to_stop


def test_only_a_call_that_was_asked_about_and_is_open_can_be_answered(post: Post) -> None:
    settled = recovered(post, [asked(1), asked(9)])
    assert settled.answer(1, "words") == Answer(time=post.world.clock.now(), call=1, because="words")
    for call, known in ((2, "#1"), (9, "#1")):
        with pytest.raises(UsageError) as refused:
            settled.answer(call, "words")
        assert known in refused.value.hint
    with pytest.raises(UsageError) as refused:
        recovered(post).answer(1, "words")
    assert "none" in refused.value.hint


def test_a_repetition_of_a_call_in_flight_is_refused_until_something_looked(post: Post) -> None:
    recovered(post, [asked(1)])
    again = starting("run_shell_command", **CHARGE)
    with post.committing():
        refused = post.gate.begin_call(again)
        assert isinstance(refused, Deny) and "cat ledger.txt" in refused.reason
        assert post.gate.begin_call(starting("read_file", file_path="x")) == Allow(), "what only reads may"
        assert post.gate.begin_call(again, "gemini:inner") == Allow(), "another agent was not asked"
        assert post.gate.begin_call(starting("run_shell_command", command="cat ledger.txt")) == Allow()
        post.gate.finish_call(ended("run_shell_command", command="cat ledger.txt"))
        assert post.gate.begin_call(again) == Allow()


@pytest.mark.parametrize(
    ("tool", "fields", "looks"),
    [
        ("Bash", {"command": "wal-agent settle 1 --because 'charge.sh 49.90 is in the ledger'"}, False),
        ("Bash", {"command": "wal-agent recall charge.sh"}, False),
        ("mcp__wal-agent__settle", {"call": 1, "because": "charge.sh 49.90"}, False),
        ("mcp_wal-agent_recall", {"words": "charge.sh"}, False),
        ("Bash", {"command": "wal-agent step look -- grep charge.sh ledger.txt"}, True),
        ("Bash", {"command": "grep charge.sh ledger.txt && wal-agent settle 1 --because 'it is there'"}, True),
    ],
)
def test_a_report_about_a_call_is_no_look_at_it(post: Post, tool: str, fields: dict[str, object], looks: bool) -> None:
    """I8: whatever it names."""
    found = recovered(post, [asked(1)])
    found.ends_after_call(3, ReadCall(tool, json.dumps(fields).encode(), ""))
    (answer,) = found.after_turn()
    assert isinstance(answer, Answer) and bool(answer.looked) == looks


def test_the_end_of_a_turn_is_put_off_once_where_nothing_has_looked(post: Post) -> None:
    """A small model ended its turn so in 15 of 15 rounds in doubt."""
    recovered(post, [asked(1), asked(2, "completed")])
    words = post.gate.nudge()
    assert "call #1 " in words and "`cat ledger.txt`" in words and "#2" not in words
    assert post.gate.nudge() == ""


@pytest.mark.parametrize("how", ["looked", "harmless", "resolved", "ends", "not asked"])
def test_a_turn_ends_where_nothing_is_left_to_look_at(post: Post, how: str) -> None:
    found = recovered(post, [] if how == "not asked" else [asked(1)], harmless=[1] if how == "harmless" else [])
    if how == "looked":
        found.ends_after_call(3, ReadCall("Bash", json.dumps({"command": "grep 49.90 ledger.txt"}).encode(), ""))
    elif how == "resolved":
        post.job.writer.append(End(time=1.0, call=1, how="resolved", by="person"))
        post.commit()
    elif how == "ends":
        post.gate.close()
    assert post.gate.nudge() == ""


@pytest.mark.parametrize("how", ["looked", "harmless", "resolved", "words"])
def test_what_is_no_open_question_any_more_may_be_repeated(post: Post, how: str) -> None:
    """I8: the agent's words alone close no question, in no later session either."""
    found = recovered(post, [asked(1)], harmless=[1] if how == "harmless" else [])
    if how == "looked":
        post.job.writer.append(Answer(time=1.0, call=1, looked=(2,)))
    elif how == "words":
        post.job.writer.append(found.answer(1, "I looked"))
    elif how == "resolved":
        post.job.writer.append(End(time=1.0, call=1, how="resolved", by="person"))
    post.commit()
    with post.committing():
        decision = post.gate.begin_call(starting("run_shell_command", **CHARGE))
        assert isinstance(decision, Deny) is (how == "words")


# ---- what bounds a task


class Bounds:
    def __init__(self, left: int = 9, until: float = math.inf) -> None:
        self.left, self.at = left, until

    def until(self) -> float:
        return self.at

    def take_call(self) -> bool:
        self.left -= 1
        return self.left >= 0


def bounded(post: Post, bounds: Bounds) -> Gate:
    return Gate(post.context, load_rules, lambda: post.fresh, bounds=bounds)


def test_a_call_over_the_budget_is_refused_whatever_it_does(post: Post) -> None:
    gate = bounded(post, Bounds(1))
    assert gate.begin_call(starting("read_file", file_path="a")) == Allow()
    assert gate.begin_call(starting("read_file", file_path="b")) == Deny(DENY_BUDGET)
    post.commit()
    assert [(e.call, e.how) for e in post.ends()] == [(4, "refused")]


def test_a_task_ends_where_the_runs_around_it_do(post: Post) -> None:
    write, now = starting("write_file", file_path="a"), post.world.clock.boot()
    with post.committing():
        assert bounded(post, Bounds(until=0.0)).begin_call(write) == Deny(DENY_CALLER)
        assert bounded(post, Bounds(until=now)).begin_call(write) == Deny(DENY_LATE)
        assert bounded(post, Bounds(until=now + 1)).begin_call(write) == Allow()


# ---- calls that no hook announced


def test_a_call_that_no_hook_announced_is_logged_with_how_it_ended(post: Post) -> None:
    """I5. Where that is not known it stays open: it may have run."""
    read, command = json.dumps({"file_path": "a"}).encode(), json.dumps({"command": "rm x"}).encode()
    post.gate.log_unannounced("s", "read_file", read, "id-1", "failed")
    post.gate.log_unannounced("s", "run_shell_command", command, "id-2", None)
    post.commit()
    first, second = post.intents()[2:]
    assert (first.call, first.cls, first.unlogged, first.agent_call) == (3, "read_only", True, "id-1")
    assert (second.call, second.cls, second.session, second.input.data) == (4, "mutation", "s", command)
    assert [(e.call, e.how, e.by) for e in post.ends()] == [(3, "failed", "session")]
    assert post.gate.was_announced("id-1") and not post.gate.was_announced("id-3")
    assert post.gate.begun["read_file"] == 1
    assert post.gate.running() == [], "its tool is over"


def test_a_log_that_has_ended_takes_no_unannounced_call_and_raises_nothing(post: Post) -> None:
    post.job.writer.seal(1.0)
    post.gate.log_unannounced("s", "read_file", b"{}", "id", "done")
    assert len(post.intents()) == 2


def test_the_error_names_the_agent_and_the_tool() -> None:
    error = unannounced_error("gemini", "write_file")
    assert "gemini ran write_file" in error.what and "wal-agent doctor gemini" in error.hint


def test_a_result_is_cut_to_what_a_record_holds() -> None:
    for data in (b"x" * (INLINE + 1), "é".encode() * INLINE, b"\xff" * (2 * INLINE)):
        cut = cut_payload(data)
        assert cut.data is not None and cut.size == len(cut.data) <= INLINE
        assert str(len(data)) in cut.data.decode()[-100:]


# ---- which calls are over


def test_what_has_ended_is_known_up_to_the_oldest_that_runs(tmp_path: Path) -> None:
    post = Post(tmp_path)
    assert (post.gate.newest(), post.gate.ended_upto(), post.gate.ended_beyond()) == (0, 0, ())
    for n in range(4):
        post.begin(file_path=str(n))
    assert (post.gate.newest(), post.gate.ended_upto(), post.gate.ended_beyond()) == (4, 0, ())
    post.gate.finish_call(ended("write_file", file_path="1"))
    post.gate.finish_call(ended("write_file", file_path="3"))
    assert (post.gate.ended_upto(), post.gate.ended_beyond()) == (0, (2, 4))
    post.gate.finish_call(ended("write_file", file_path="0"))
    assert (post.gate.ended_upto(), post.gate.ended_beyond()) == (2, (4,))
    post.gate.finish_call(ended("write_file", file_path="2"))
    assert (post.gate.newest(), post.gate.ended_upto(), post.gate.ended_beyond()) == (4, 4, ())


def test_calls_of_earlier_runs_are_over(post: Post) -> None:
    """Their tools are gone, whatever became of them."""
    recovered(post)
    assert (post.gate.newest(), post.gate.ended_upto(), post.gate.ended_beyond()) == (2, 2, ())
    assert post.gate.reported_upto() == 2
    assert post.begin(file_path="a") == 3 and post.gate.ended_upto() == 2


def test_of_many_calls_behind_one_that_runs_the_newest_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = Post(tmp_path)
    monkeypatch.setattr(gates, "MAX_BEYOND", 3)
    with post.committing():
        post.gate.begin_call(starting("write_file", file_path="runs"))
        for n in range(6):
            post.gate.begin_call(starting("write_file", file_path=str(n)))
            post.gate.finish_call(ended("write_file", file_path=str(n)))
    assert post.gate.ended_beyond() == (4, 5, 6, 7)


def test_a_subagents_call_is_in_no_report_of_the_main_session(tmp_path: Path) -> None:
    post = Post(tmp_path)
    inner = replace(starting("write_file", file_path="a"), inner="sub", call_id="x")
    assert not post.gate.had_inner
    with post.committing():
        assert post.gate.begin_call(inner) == Allow()
    (record,) = post.intents()
    assert record.session == "s/sub" and post.gate.had_inner
    done = replace(ended("write_file", file_path="a"), call_id="x")
    assert post.gate.is_inner(done) and not post.gate.is_inner(replace(done, call_id="y"))
    assert post.gate.reported_upto() == 1, "no session file waits for it"
    assert post.gate.find_call("write_file", inner.input, "", 9, exact=False) is None
    assert post.gate.find_call("write_file", inner.input, "x", 9, exact=False) is not None
    post.begin(file_path="b")
    assert not post.gate.is_inner(ended("write_file", file_path="b"))
    assert post.gate.finish_call(done)
    assert not post.gate.is_repeated_end("write_file", inner.input, 9, "x", denied=False)


def test_a_subagents_call_that_the_main_session_reports_is_ended_by_it(tmp_path: Path) -> None:
    """I8: Copilot has no ids, and a person's No inside a subagent no hook."""
    post = Post(tmp_path)
    with post.committing():
        post.gate.begin_call(replace(starting("write_file", file_path="a"), inner="sub", reported=True))
    (record,) = post.intents()
    found = post.gate.find_call("write_file", b'{"file_path":"a"}', "", 9, exact=True)
    assert record.session == "s/sub" and found is not None and post.gate.reported_upto() == 0


def test_an_id_is_one_of_a_subagent_only_where_one_was_named(tmp_path: Path) -> None:
    post = Post(tmp_path)
    with post.committing():
        post.gate.begin_call(replace(starting("read_file", file_path="a"), call_id="x"))
        post.gate.begin_call(replace(starting("read_file", file_path="a"), inner="sub"))
    assert not post.gate.had_inner, "without an id no file can have it"


def test_the_newest_ids_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I9; an id that comes again is new again."""
    post = Post(tmp_path)
    monkeypatch.setattr(gates, "IDS", 2)
    for id in ("a", "b", "a", "c"):
        post.gate.begin_call(replace(starting("read_file", file_path="x"), call_id=id))
    assert [post.gate.was_announced(id) for id in ("a", "b", "c")] == [True, False, True]


def test_a_call_with_an_id_is_matched_by_it_whatever_the_counts_say(tmp_path: Path) -> None:
    post = Post(tmp_path)
    post.begin(file_path="a")
    assert not post.gate.finish_call(replace(ended("write_file", file_path="a"), call_id="never"))
    assert post.gate.finish_call(ended("write_file", file_path="a"))


def test_what_may_begin_is_said_as_one_word(tmp_path: Path) -> None:
    post = Post(tmp_path)
    assert post.gate.refusal == ""
    post.gate.drain()
    assert post.gate.refusal == DENY_DRAINING
    post.gate.close("over")
    assert post.gate.refusal == "over"


def test_the_start_of_a_call_is_emitted_and_a_read_changed_nothing(tmp_path: Path) -> None:
    post, events = Post(tmp_path), list[Event]()
    post.listeners.append(events.append)
    post.gate.begin_call(replace(starting("read_file", file_path="a"), call_id="x"))
    post.gate.end_call(1, "interrupted", "why")
    assert [e for e in events if isinstance(e, CallStarted | CallEnded)] == [
        CallStarted(1, "read_file", "read_only", "x"),
        CallEnded(1, "read_file", "interrupted", 0.0),
    ]
    call = post.begin("read_file", file_path="b")
    assert post.gate.last is not None and post.gate.last.call == call
    assert (post.gate.last.changes, post.gate.last.cls) == (False, "read_only")


def test_a_call_that_was_answered_may_run_also_where_its_answer_was_late(tmp_path: Path) -> None:
    """I5: an error on the way out must not leave a call that is for ever about to be answered."""
    post = Post(tmp_path)
    post.gate._deadline = 0.0
    assert isinstance(post.gate.begin_call(starting("write_file", file_path="a")), Deny)
    assert post.gate._unanswered == set()


def test_a_call_that_was_denied_is_told_again_only_as_a_denial() -> None:
    calls = Calls()
    for n, denied in ((1, False), (2, True)):
        calls.start(RunningCall(n, "t", b"{}", "", True, 1.0))
        calls.end(n, again=True, denied=denied)
    assert calls.is_repeated(ReadCall("t", b"{}"), 9, denied=True)
    assert [known.call for known in calls.again] == [1]
    assert not calls.is_repeated(ReadCall("t", b"{}"), 9, denied=True)
    assert calls.reported_upto(5) == 0
    assert calls.is_repeated(ReadCall("t", b"{}"), 9) and calls.reported_upto(5) == 5


@pytest.mark.parametrize(("times", "stubborn"), [(gates.STUBBORN - 1, False), (gates.STUBBORN, True)])
def test_an_agent_that_repeats_a_call_so_often_needs_a_person(post: Post, times: int, stubborn: bool) -> None:
    """Decision 052. The reason of the first one stays."""
    recovered(post, [asked(1)])
    again = starting("run_shell_command", **CHARGE)
    for _ in range(times):
        assert isinstance(post.gate.begin_call(again), Deny)
    assert (post.gate.stuck is not None) is stubborn
    first = post.gate.stuck
    post.gate.begin_call(again)
    assert post.gate.stuck is not None and (first is None or post.gate.stuck is first)


def test_refusals_count_anew_once_the_agent_is_prompted(post: Post) -> None:
    """What a prompt asks for may be a repetition."""
    recovered(post, [asked(1)])
    again = starting("run_shell_command", **CHARGE)
    for _ in range(gates.STUBBORN - 1):
        assert isinstance(post.gate.begin_call(again), Deny)
    post.gate.begin_turn()
    assert isinstance(post.gate.begin_call(again), Deny) and post.gate.stuck is None


@pytest.mark.parametrize(
    ("tool", "nested", "denied"),
    [("run_shell_command", "", True), ("run_shell_command", "gemini:inner", False), ("read_file", "", False)],
)
def test_what_was_done_before_a_recovery_is_said_of_the_agents_own_changing_calls(
    post: Post, monkeypatch: pytest.MonkeyPatch, tool: str, nested: str, denied: bool
) -> None:
    done = RecentCall(9, tool, "mutation", 1.0, b"{}", 2)
    monkeypatch.setattr(post.gate, "_before_recovery", lambda *_: done)
    with post.committing():
        assert isinstance(post.gate.begin_call(starting(tool, command="./charge.sh"), nested), Deny) is denied


def test_a_check_may_mean_an_equal_call_that_was_done_before(post: Post) -> None:
    first = post.begin("run_shell_command", **CHARGE)
    post.gate.finish_call(ended("run_shell_command", command=CHARGE["command"]))
    post.commit()
    settled = recovered(post, [asked(first), asked(first + 1)])
    assert settled._is_first(asked(first)) and not settled._is_first(asked(first + 1))


@pytest.mark.parametrize("way", ["only this call", "another call behind it", "one refusal of each of three"])
def test_a_turn_that_ends_with_refusals_of_one_call_needs_a_person(tmp_path: Path, way: str) -> None:
    """Decision 052: where the agent is not prompted again, so that the run ends with its turn."""
    post = Post(tmp_path)
    post.job.writer.append(*(intent(n) for n in (1, 2, 3)))
    post.commit()
    inputs = {n: {"command": f"./charge.sh {n}"} for n in (1, 2, 3)}
    recovered(post, [AskedCall(n, "run_shell_command", json.dumps(inputs[n]).encode()) for n in inputs])
    for n in (1, 2, 3) if way.startswith("one") else (1, 1, 1):
        denied = post.gate.begin_call(starting("run_shell_command", **inputs[n]))
    assert isinstance(denied, Deny) and denied.stop and "``" not in denied.reason.replace(" ", "")
    if way.startswith("another"):
        post.begin("read_file", file_path="ledger.txt")
    assert (post.gate.ended_turn is not None) is (way == "only this call") and post.gate.stuck is None
