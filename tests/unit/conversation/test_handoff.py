"""conversation/handoff.py: when a start makes the job another agent's, and what that one reads."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.recovery.cases import (
    MAIN,
    captured,
    end,
    intent,
    opening,
    run_ended,
    started,
    state_of,
    turn,
)
from tests.unit.recovery.test_prompt import TOLD
from tests.unit.wal.world import FakeClock
from wal_agent.bucket.base import MemoryBucket
from wal_agent.conversation.handoff import (
    MAX_PARTS,
    AgentCall,
    calls_since,
    describe,
    hand_over,
    handed_over,
    split,
    write_transcript,
)
from wal_agent.conversation.transcript import Line
from wal_agent.records import AnyRecord, Edit, FileDelta, Handoff, Opening
from wal_agent.recovery.plan import LocalFacts, Plan, Policy, Refuse, Resume, StartAgain, decide, prior_args
from wal_agent.recovery.prompt import HandedOver, render_prompt
from wal_agent.wal.state import RecentCall, State, apply_all
from wal_agent.wal.store import JobStore

GEMINI = (opening(), started(), turn(), captured(), intent(1), end(1), intent(2))


def claude(epoch: int = 2, cause: str = "dead", args: tuple[str, ...] = ()) -> Opening:
    return opening(epoch, cause, agent="claude", args=args)  # type: ignore[arg-type]


def taken(*records: AnyRecord, ours: Opening) -> tuple[State, Handoff | None]:
    state = state_of(*records)
    record = hand_over(state, ours)
    return (handed_over(state, record) if record else state), record


def plan(state: State, ours: Opening, policy: Policy | None = None) -> Plan:
    return decide(state, ours, LocalFacts(MAIN), policy or Policy())


def test_without_a_handoff_the_job_stays_the_other_agents() -> None:
    got = plan(state_of(*GEMINI), claude())
    assert isinstance(got, Refuse) and "gemini" in got.what


def test_the_new_agent_gets_the_call_in_flight_and_no_argument_of_the_other() -> None:
    """I8."""
    state, record = taken(*GEMINI, ours=claude())
    assert record is not None and (record.before, record.agent, record.since) == ("gemini", "claude", 0)
    got = plan(state, claude())
    assert isinstance(got, StartAgain) and got.alert == "handoff" and got.args == ()
    assert [o.intent.call for o in got.dangling] == [2] and got.finished == ()
    assert [(c.agent, c.call.call) for c in calls_since(state)] == [("gemini", 1)]


def test_the_run_before_ended_when_it_did() -> None:
    """The headline and the prompt say when the other agent stopped, not when the job was handed over."""
    before = state_of(*GEMINI)
    late = msgspec.structs.replace(claude(), time=before.time + 3600)
    state, record = taken(*GEMINI, ours=late)
    assert record is not None and record.time > before.time
    assert state.time == before.time


def test_a_job_that_had_ended_is_handed_over_too() -> None:
    ours = claude(cause="closed", args=("-p", "review it"))
    state, _ = taken(*GEMINI[:4], turn("completed"), run_ended(), ours=ours)
    got = plan(state, ours)
    assert isinstance(got, StartAgain) and got.alert == "handoff" and got.args == ("-p", "review it")


def test_a_job_of_ones_own_or_of_nobody_is_not_handed_over() -> None:
    assert hand_over(state_of(*GEMINI), opening(2)) is None
    assert hand_over(State(), claude(1, "first")) is None


HANDED = (*GEMINI, claude(), Handoff(time=3.0, before="gemini", agent="claude"))


def test_killed_behind_the_record_the_same_command_carries_on() -> None:
    """A crash before the agent started: the notice comes again, and no second record is needed."""
    state = state_of(*HANDED)
    assert hand_over(state, claude(3)) is None
    got = plan(state, claude(3))
    assert isinstance(got, StartAgain) and got.alert == "handoff" and [o.intent.call for o in got.dangling] == [2]
    assert isinstance(plan(state, opening(3, "dead")), Refuse), "it is not gemini's any more"


def test_the_notice_is_repeated_until_a_turn_is_completed() -> None:
    begun = (*HANDED, started("c1", resumed=True), turn("started", "c1"), captured("c1"))
    got = plan(state_of(*begun), claude(3))
    assert isinstance(got, Resume) and (got.alert, got.session) == ("handoff", "c1")
    done = plan(state_of(*begun, end(2), turn("completed", "c1"), turn("started", "c1")), claude(3))
    assert isinstance(done, Resume) and done.alert == "cut_off"


def test_the_way_back_resumes_the_first_session_with_its_own_arguments() -> None:
    worked = (*HANDED, started("c1", resumed=True), turn("started", "c1"), captured("c1"), intent(3, session="c1"),
              end(3), end(2), turn("completed", "c1"), run_ended())  # fmt: skip
    ours = opening(3, "closed", args=())
    state, record = taken(*worked, ours=ours)
    assert record is not None and record.since == 2
    got = plan(state, ours)
    assert isinstance(got, Resume) and (got.alert, got.session, got.args) == ("handoff", "s1", ("-p", "do it"))
    assert [c.call.call for c in calls_since(state)] == [3]


def test_arguments_of_another_agent_are_never_taken() -> None:
    state = state_of(*HANDED, started("c1", resumed=True), claude(3), started("c1", resumed=True))
    assert prior_args(state) == ()


def test_a_halt_keeps_calls_of_unknown_fate_from_the_new_agent() -> None:
    state, _ = taken(*GEMINI, ours=claude())
    assert isinstance(plan(state, claude(), Policy(on_ambiguity="halt")), Refuse)
    alone = plan(state, claude(), Policy(on_ambiguity="resume"))
    assert isinstance(alone, StartAgain) and alone.alert == "handoff" and alone.alone


# ---- the transcript


def saved(blobs_of: object, text: bytes, session: str = "s1") -> FileDelta:
    import hashlib

    edits = (Edit(offset=0, data=blobs_of.put_payload(text)),)  # type: ignore[attr-defined]
    digest = hashlib.sha256(text).hexdigest()
    return FileDelta(time=7.0, path=MAIN, size=len(text), sha256=digest, edits=edits, session=session)


def write(tmp_path: Path, text: bytes) -> tuple[list[str], str]:
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.keys import Keys

    blobs = Blobs(JobStore(MemoryBucket(), Keys("job"), FakeClock(), random.Random(1)), epoch=1)
    state, _ = taken(opening(), started(), turn(), saved(blobs, text), ours=claude())
    found = write_transcript(tmp_path / "here", state, {"gemini": MAIN}, blobs)
    return [path.read_text() for path in found.parts], found.problem


def test_the_transcript_has_who_said_what_and_no_secret(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    lines = f'{{"role":"user","content":"use {secret}"}}\n{{"role":"model","parts":[{{"text":"I will"}}]}}\n'
    (part,), problem = write(tmp_path, lines.encode())
    assert problem == "" and secret not in part
    assert part.index("## user") < part.index("## assistant") < part.index("I will")
    assert (tmp_path / "here" / "part-1.md").stat().st_mode & 0o077 == 0


def test_of_a_long_conversation_the_newest_parts_are_kept(tmp_path: Path) -> None:
    line = '{"role":"user","content":"%d ' + "word " * 3000 + '"}\n'
    parts, problem = write(tmp_path, "".join(line % n for n in range(200)).encode())
    assert len(parts) == MAX_PARTS and "199 word" in parts[-1] and "left out" in problem
    assert len(list((tmp_path / "here").iterdir())) == MAX_PARTS


CLAUDE = replace(claude(), time=5000.0)


def _next(state: State) -> tuple[State, str]:
    """The state when codex has taken the job, and whose it was."""
    record = hand_over(state, opening(3, "dead", agent="codex", time=6000.0))
    assert record is not None
    return handed_over(state, record), record.before


def test_the_third_agent_reads_what_both_before_said_and_did(tmp_path: Path) -> None:
    """The second one fails to log in: its session is empty, and it made no call."""
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.keys import Keys

    blobs = Blobs(JobStore(MemoryBucket(), Keys("job"), FakeClock(), random.Random(1)), epoch=1)
    said = saved(blobs, b'{"role":"user","content":"move the shop"}\n')
    first, _ = taken(opening(time=0.0), started(), turn(), said, intent(1), end(1), ours=CLAUDE)
    second = apply_all(first, 9, 2, [CLAUDE, replace(started(), time=5001.0)])
    state, before = _next(second)
    assert before == "claude"
    assert [(c.agent, c.call.call) for c in calls_since(state)] == [("gemini", 1)]
    found = write_transcript(tmp_path / "here", state, {"gemini": MAIN, "claude": "session.jsonl"}, blobs)
    assert found.agents == ("gemini",) and found.problem == "Nothing of claude's conversation was saved."
    assert found.parts[0].read_text().startswith("# The conversation of gemini\n\n## user\n\nmove the shop")


def test_what_was_said_with_both_agents_before_is_in_the_transcript(tmp_path: Path) -> None:
    from wal_agent.wal.blobs import Blobs
    from wal_agent.wal.keys import Keys

    blobs = Blobs(JobStore(MemoryBucket(), Keys("job"), FakeClock(), random.Random(1)), epoch=1)
    said = saved(blobs, b'{"role":"user","content":"move the shop"}\n')
    first, _ = taken(opening(time=0.0), started(), turn(), said, intent(1), end(1), ours=CLAUDE)
    more = replace(saved(blobs, b'{"role":"user","content":"go on"}\n'), path="session.jsonl")
    second = apply_all(first, 9, 2, [CLAUDE, replace(started(), time=5001.0), more])
    state, _ = _next(second)
    found = write_transcript(tmp_path / "here", state, {"gemini": MAIN, "claude": "session.jsonl"}, blobs)
    assert (found.agents, found.problem) == (("gemini", "claude"), "")
    assert "move the shop" in found.parts[0].read_text() and "go on" in found.parts[0].read_text()
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["part-1.md"]


def test_calls_of_several_agents_are_each_named() -> None:
    calls = [
        AgentCall(name, RecentCall(n, "shell", "mutation", 1.0, b"{}", 2, "done")) for n, name in ((1, "a"), (2, "b"))
    ]
    text = render_prompt(replace(TOLD, alert="handoff", handed=HandedOver("b", tuple(calls))))
    assert "What `a` and `b` ran" in text and "#1 `a` `shell`" in text and "#2 `b` `shell`" in text
    text = render_prompt(replace(TOLD, alert="handoff", handed=HandedOver("b", (calls[0],))))
    assert "What `a` ran" in text and "#1 `shell`" in text


def test_what_cannot_be_read_or_written_is_said_and_stops_nothing(tmp_path: Path) -> None:
    assert write(tmp_path, b"no json\n")[1].endswith("holds no text.")
    (tmp_path / "here").rmdir()
    (tmp_path / "here").write_text("a file")
    parts, problem = write(tmp_path, b'{"role":"user","content":"x"}\n')
    assert parts == [] and problem.startswith("No transcript could be written")


@given(st.lists(st.text(max_size=30)), st.integers(1, 40))
def test_parts_hold_every_entry_in_order(entries: list[str], size: int) -> None:
    parts = list(split(entries, size))
    assert "".join(parts) == "".join(entries)
    assert all(len(part) <= size or part in entries or part.strip() for part in parts)


def test_an_entry_says_when() -> None:
    assert describe(Line(0, 1, "user", 0.0, "hi")).startswith("## user\n\nhi")
