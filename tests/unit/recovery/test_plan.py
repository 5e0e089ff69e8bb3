"""plan: each row by an example, and for any state that no call in flight is dropped (I8)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.unit.recovery.cases import (
    HOST,
    MAIN,
    OTHER,
    answer,
    captured,
    end,
    intent,
    opening,
    run_ended,
    started,
    state_of,
    turn,
    with_home,
)
from wal_agent.errors import ConfigError, CrashLoop, Damaged, PersonNeeded
from wal_agent.records import AnyRecord, Cause, End, Opening, Repository, RunEnded, RunsOn, Workspace
from wal_agent.recovery.plan import (
    REMARKS,
    SHOWN_CALLS,
    SHOWN_FOLDER,
    SHOWN_NAME,
    TABLE,
    LocalFacts,
    Plan,
    Policy,
    Refuse,
    Resume,
    Start,
    StartAgain,
)
from wal_agent.recovery.plan import decide as plan
from wal_agent.wal.reader import Damage

LOCAL = LocalFacts(main_file=MAIN)
POLICY = Policy()


def decide(
    *records: AnyRecord,
    cause: Cause = "dead",
    ours: Opening | None = None,
    local: LocalFacts = LOCAL,
    policy: Policy = POLICY,
) -> Plan:
    state = state_of(*records)
    home = next((o.opening for o in reversed(state.openings)), None)
    return plan(with_home(state, home), ours or opening(state.epoch + 1, cause, args=()), local, policy)


RAN = (opening(), started(), turn(), captured())


def test_a_first_run_starts() -> None:
    ours = opening(1, "first", args=("-p", "x"))
    assert decide(ours=ours) == Start(("-p", "x"), "nothing to recover")


def test_a_call_in_flight_resumes_with_the_alert() -> None:
    got = decide(*RAN, intent(1), end(1), intent(2))
    assert isinstance(got, Resume)
    assert (got.session, got.alert, got.args) == ("s1", "crash", ("-p", "do it"))
    assert [o.intent.call for o in got.dangling] == [2] and [e.intent.call for e in got.finished] == [1]
    assert got.why == "was cut off on vm-17 with 1 open call"


@pytest.mark.parametrize(
    ("cause", "ended", "alert"),
    [
        ("dead", False, "crash"),
        ("unlocked", False, "crash"),
        ("released", False, "preempted"),
        ("released", True, "preempted"),
        ("dead", True, "unsettled"),
        ("closed", False, "unsettled"),
        ("closed", True, "unsettled"),
    ],
)
def test_the_alert_says_how_it_came(cause: Cause, ended: bool, alert: str) -> None:
    got = decide(*RAN, intent(), *([run_ended(False)] if ended else []), cause=cause)
    assert isinstance(got, Resume) and got.alert == alert and len(got.dangling) == 1


def test_without_a_captured_session_the_task_begins_anew_with_the_alert() -> None:
    got = decide(opening(), started(), turn(), intent(1), end(1), intent(2))
    assert isinstance(got, StartAgain) and got.alert == "crash" and got.args == ("-p", "do it")
    assert len(got.dangling) == 1 and len(got.finished) == 1


def test_a_session_that_a_client_names_is_made_again_where_it_was_not_saved() -> None:
    got = decide(opening(), started(), turn(), intent(1), end(1), intent(2), policy=Policy(named=True))
    assert isinstance(got, Resume) and got.session == "s1" and got.alert == "crash"
    assert len(got.dangling) == 1 and len(got.finished) == 1
    unnamed = decide(opening(), turn("started", ""), policy=Policy(named=True))
    assert isinstance(unnamed, StartAgain)


def test_a_session_of_an_earlier_run_is_not_taken_for_the_newest() -> None:
    got = decide(
        *RAN, turn("completed"), opening(2, "closed"), started("s2"), turn("started", "s2"), intent(session="s2")
    )
    assert isinstance(got, StartAgain) and len(got.dangling) == 1


def test_calls_of_an_earlier_session_are_not_put_into_this_one() -> None:
    got = decide(*RAN, intent(1), end(1), opening(2, "closed"), started("s2"), turn("started", "s2"), captured("s2"))
    assert isinstance(got, Resume) and got.session == "s2" and got.finished == ()


@pytest.mark.parametrize("cause", ["dead", "released", "unlocked"])
def test_a_run_that_died_before_anything_was_recorded_starts_again(cause: Cause) -> None:
    got = decide(opening(), cause=cause)
    assert isinstance(got, StartAgain) and got.alert is None and got.args == ("-p", "do it")
    assert decide(opening(), started(), cause="closed").__class__ is Start


def test_what_is_typed_now_wins_over_what_was_typed_then() -> None:
    got = decide(opening(), ours=opening(2, "dead", args=("-m", "x")))
    assert isinstance(got, StartAgain) and got.args == ("-m", "x")


@pytest.mark.parametrize(
    ("cause", "state", "alert"),
    [
        ("dead", "started", "cut_off"),
        ("dead", "completed", "cut_off"),
        ("unlocked", "started", "cut_off"),
        ("closed", "started", "cut_off"),  # rc 0 is no proof of an end
        ("released", "started", "preempted"),
        ("released", "completed", "preempted"),
    ],
)
def test_without_a_call_in_flight_it_resumes_unless_it_came_to_its_end(cause: Cause, state: str, alert: str) -> None:
    got = decide(*RAN, turn(state), cause=cause)
    assert isinstance(got, Resume) and got.alert == alert and got.dangling == ()


def test_a_run_that_came_to_its_end_is_not_resumed_unless_asked() -> None:
    records = (*RAN, turn("completed"), run_ended())
    assert isinstance(decide(*records, cause="closed"), Start)
    asked = decide(*records, cause="closed", policy=replace(POLICY, resume_closed=True))
    assert isinstance(asked, Resume) and (asked.session, asked.alert) == ("s1", "over")


def test_what_ended_with_a_call_that_was_answered_and_not_proven_is_not_cut_off() -> None:
    """I8: such a call keeps the job released, and that is no way in which its run ended."""
    records = (*RAN, turn("started"), intent(), answer(1, 1), turn("completed"), replace(run_ended(), cls="completed"))
    asked = decide(*records, cause="released", policy=replace(POLICY, resume_closed=True))
    assert isinstance(asked, Resume) and (asked.alert, asked.dangling) == ("over", ())


def test_what_ended_when_a_person_settled_its_last_call_was_not_given_up() -> None:
    """The run left a call open, so its job was released; `ack` settled that, and closed the job."""
    state = state_of(*RAN, turn("completed"), intent(), run_ended(), opening(2, "released"), end())
    asked = plan(with_home(state, RAN[0]), opening(3, "closed"), LOCAL, replace(POLICY, resume_closed=True))
    assert isinstance(asked, Resume) and asked.why == "had ended on vm-17; no call was open"


@pytest.mark.parametrize("calls", [(), (intent(),)])
@pytest.mark.parametrize("state", ["started", "completed"])
def test_a_pause_is_told_as_one_and_keeps_calls_in_flight(state: str, calls: tuple[AnyRecord, ...]) -> None:
    got = decide(*RAN, turn(state), *calls, run_ended(False, 90.0, "rate limit\x1b[31m"), cause="released")
    assert isinstance(got, Resume) and got.alert == "paused" and len(got.dangling) == len(calls)
    assert got.why.startswith("was paused on vm-17 (rate limit\\x1b[31m)")
    anew = decide(opening(), started(), turn(state), *calls, run_ended(False, 90.0), cause="released")
    assert isinstance(anew, StartAgain) and anew.alert == ("paused" if calls else None)


def test_a_pause_of_another_run_or_of_one_that_died_is_none() -> None:
    paused = (*RAN, run_ended(False, 90.0), opening(2, "released"))
    again = started(resumed=True)
    for later in (again, turn("started")), (again,):
        got = plan(with_home(state_of(*paused, *later), opening(2, "released")), opening(3, "dead"), LOCAL, POLICY)
        assert isinstance(got, Resume) and got.alert == "cut_off"
    refused = plan(with_home(state_of(*paused), RAN[0]), opening(3, "dead"), LOCAL, POLICY)  # its agent never started
    assert isinstance(refused, Resume) and refused.alert == "paused"
    dead = decide(*RAN, run_ended(False, 90.0), cause="dead")  # its last word came, its lease was not settled
    assert isinstance(dead, Resume) and dead.alert == "cut_off"


def test_the_opening_of_a_refused_run_hides_neither_home_nor_cause() -> None:
    refused = opening(2, "dead", workspace="/w/other")
    state = state_of(*RAN, intent(), refused)
    got = plan(with_home(state, RAN[0]), opening(3, "released"), LOCAL, POLICY)
    assert isinstance(got, Resume) and got.alert == "crash"
    again = plan(
        with_home(state, RAN[0]), opening(3, "released", workspace="/w/other"), replace(LOCAL, home_exists=True), POLICY
    )
    assert isinstance(again, Refuse) and again.kind is ConfigError


def test_damage_says_what_can_be_had() -> None:
    broken = Damage(seq=398, why="record 398 of job j is damaged (checksum).", good=397, time=50_500.0)
    got = decide(*RAN, intent(), local=replace(LOCAL, damage=broken))
    assert isinstance(got, Refuse) and got.kind is Damaged and got.error().exit_code == 73
    assert str(got.error()) == (
        "record 398 of job j is damaged (checksum). Everything up to record 397 (1970-01-01 14:01:40 UTC) can be "
        "restored. Write it into a new folder with `wal-agent restore --at 397 --to DIR`; work on under another name: "
        "--job NAME."
    )


def test_an_owner_that_died_before_its_opening_makes_no_crash_of_a_job_that_had_ended() -> None:
    """The lease went from closed to that owner; the log shows only that an epoch is missing."""
    done = (*RAN, turn("completed"), run_ended(completed=True))
    assert isinstance(decide(*done, ours=opening(3, "dead", args=("-p", "next"))), Start)
    assert isinstance(decide(*done, ours=opening(2, "dead", args=("-p", "next"))), Resume)
    cut_off = (*RAN, run_ended(completed=False))
    assert isinstance(decide(*cut_off, ours=opening(3, "dead", args=("-p", "next"))), Resume)
    assert isinstance(decide(*RAN, intent(1), *done[4:], ours=opening(3, "dead")), Resume)


def test_another_agents_job() -> None:
    got = decide(*RAN, ours=opening(2, "dead", agent="claude"))
    assert isinstance(got, Refuse) and got.kind is ConfigError and "--job" in got.hint


@pytest.mark.parametrize(
    ("host", "exists", "refused"),
    [(HOST, True, True), (HOST, False, False), (OTHER, True, False), (OTHER, False, False)],
)
def test_another_folder_of_the_same_machine(host: object, exists: bool, refused: bool) -> None:
    ours = opening(2, "dead", host=host, workspace="/w/else")  # type: ignore[arg-type]
    got = decide(*RAN, intent(), ours=ours, local=replace(LOCAL, home_exists=exists))
    assert isinstance(got, Refuse) is refused


def test_a_crash_loop_halts_and_ends_with_time() -> None:
    deaths = [opening(n, "dead", time=1000.0 + 10 * n) for n in range(2, 6)]
    records: tuple[AnyRecord, ...] = (*RAN, intent(), *deaths)
    got = decide(*records, ours=opening(6, "dead", time=1060.0))
    assert isinstance(got, Refuse) and got.kind is CrashLoop
    assert "5 crashes in 10 minutes" in got.what and "run_shell_command" in got.what
    assert isinstance(decide(*records, ours=opening(6, "dead", time=1700.0)), Resume)
    assert isinstance(decide(*records, ours=opening(6, "released", time=1060.0)), Resume)
    assert isinstance(
        decide(*records, ours=opening(6, "dead", time=1060.0), policy=replace(POLICY, crash_limit=0)), Resume
    )


def test_the_policy_may_halt_for_calls_that_nobody_can_tell() -> None:
    halt = replace(POLICY, on_ambiguity="halt")
    got = decide(*RAN, intent(1), policy=halt)
    assert isinstance(got, Refuse) and got.kind is PersonNeeded and "#1 run_shell_command" in got.what
    told = replace(LOCAL, findings=((1, "completed"),))
    assert isinstance(decide(*RAN, intent(1), policy=halt, local=told), Resume)
    assert isinstance(decide(*RAN, intent(1, cls="read_only"), policy=halt), Resume)


def test_the_policy_may_let_the_agent_decide_alone_where_nobody_can_tell() -> None:
    alone = replace(POLICY, on_ambiguity="resume")
    got = decide(*RAN, intent(1), policy=alone)
    assert isinstance(got, Resume) and got.alone and [o.intent.call for o in got.dangling] == [1]
    known = decide(*RAN, intent(1), policy=alone, local=replace(LOCAL, findings=((1, "completed"),)))
    assert isinstance(known, Resume) and not known.alone
    anew = decide(opening(), started(), turn(), intent(1), policy=alone)
    assert isinstance(anew, StartAgain) and anew.alone
    asked = decide(*RAN, intent(1))
    assert isinstance(asked, Resume) and not asked.alone


def test_a_new_session_as_asked_forgets_no_call_in_flight() -> None:
    fresh = replace(POLICY, fresh=True)
    ours = opening(2, "dead", args=("-p", "new"))
    assert decide(*RAN, ours=ours, policy=fresh) == Start(("-p", "new"), "a new session, as asked")
    got = decide(*RAN, intent(1), ours=ours, policy=fresh)
    assert isinstance(got, Refuse) and got.kind is PersonNeeded and "#1 run_shell_command" in got.what


def test_another_version_of_the_agent_is_told_and_decides_nothing() -> None:
    newer = opening(2, "dead", agent_version="0.62.0\x1b[31m")
    for records in (RAN, (*RAN, intent(1))):
        got = decide(*records, ours=newer)
        assert isinstance(got, Resume)
        assert got.warnings == ("gemini is 0.62.0\\x1b[31m here; it was 0.61.0 when this session was saved.",)
        assert replace(got, warnings=()) == decide(*records)
    for unknown in (opening(2, "dead", agent_version=""), opening(2, "dead")):
        got = decide(*RAN, ours=unknown)
        assert isinstance(got, Resume) and got.warnings == ()


HERE = ("origin:git@github.com:acme/shop.git", "root:" + "a" * 40)


@pytest.mark.parametrize(
    ("then", "refused"),
    [
        (HERE, False),
        ((), False),
        (("root:" + "a" * 40,), False),  # cloned from the same place, which was then no origin
        (("origin:https://GitHub.com/acme/shop",), False),  # a shallow clone, by another way
        (("origin:ssh://me@github.com:22/acme/shop.git/",), False),
        (("origin:https://example.org/acme/shop", "root:" + "a" * 40), False),  # a fork
        (("origin:https://github.com/acme/shop", "root:" + "b" * 40), False),  # history was rewritten
        (("origin:https://example.org/acme/shop",), True),
        (("root:" + "b" * 40,), True),
        (("origin:https://example.org/other", "root:" + "b" * 40), True),
        (("origin:", "nonsense", "future:x"), False),
    ],
)
def test_another_repository_under_the_same_name_is_refused(then: tuple[str, ...], refused: bool) -> None:
    saved = Workspace(
        time=5.0, holds=0, commit="c" * 40, whole=True, repository=Repository(head="", branch="", identity=then)
    )
    got = decide(*RAN, saved, intent(1), local=replace(LOCAL, identity=HERE))
    assert isinstance(got, Refuse) is refused
    if isinstance(got, Refuse):
        assert got.kind is ConfigError and "--job" in got.hint and "git@github.com:acme/shop.git" in got.what
    assert isinstance(decide(*RAN, saved, intent(1)), Resume)


def test_a_tree_saved_outside_of_git_is_no_other_repository() -> None:
    saved = Workspace(time=5.0, holds=0, commit="c" * 40, whole=True)
    assert isinstance(decide(*RAN, saved, local=replace(LOCAL, identity=HERE)), Resume)


RECORDS = st.one_of(
    st.builds(opening, st.integers(1, 9), st.sampled_from(["first", "closed", "released", "unlocked", "dead"]),
              st.sampled_from([HOST, OTHER]), workspace=st.sampled_from(["/w/shop", "/w/b"]), time=st.floats(0, 2000)),
    st.builds(started, st.sampled_from(["s1", "s2"])),
    st.builds(turn, st.sampled_from(["started", "completed"]), st.sampled_from(["s1", "s2"])),
    st.builds(intent, st.integers(1, 6), cls=st.sampled_from(["read_only", "mutation", "unknown"]),
              session=st.sampled_from(["s1", "s2"])),
    st.builds(end, st.integers(1, 6)),
    st.builds(answer, st.integers(1, 6)),
    st.builds(captured, st.sampled_from(["s1", "s2"]), st.sampled_from([MAIN, "x"])),
    st.builds(run_ended, st.booleans()),
)  # fmt: skip


@given(
    st.lists(RECORDS, max_size=12),
    st.none() | st.builds(opening, st.integers(1, 9)),
    st.builds(opening, st.integers(1, 20), st.sampled_from(["first", "closed", "released", "unlocked", "dead"])),
    st.builds(LocalFacts, st.just(MAIN), st.booleans()),
    st.builds(Policy, st.sampled_from(["ask", "halt", "resume"]), st.booleans(), st.booleans(), st.integers(0, 3)),
)
def test_any_state_gives_a_plan_and_no_call_in_flight_is_dropped(
    records: list[AnyRecord], home: Opening | None, ours: Opening, local: LocalFacts, policy: Policy
) -> None:
    state = state_of(*records)
    got = plan(with_home(state, home), ours, local, policy)
    if state.unanswered and not isinstance(got, Refuse):
        assert isinstance(got, StartAgain | Resume)
        assert got.dangling == state.unanswered and got.alert is not None
    if isinstance(got, Resume):
        assert state.files[MAIN].session == got.session
    if isinstance(got, Refuse):
        assert got.error().exit_code in (73, 78, 79, 80) and got.what.endswith((".", ":"))


ANSWERED = (*RAN, intent(1), opening(2, "dead"), started(resumed=True), answer(1), turn("completed"), run_ended(True))


def test_a_call_that_the_agent_answered_for_is_not_asked_about_again() -> None:
    """I8: it stays open in the log, and the next task is a new session."""
    assert [o.intent.call for o in state_of(*ANSWERED).open] == [1]
    assert isinstance(decide(*ANSWERED, ours=opening(3, "closed")), Start)
    assert isinstance(decide(*ANSWERED, ours=opening(3, "closed"), policy=Policy(fresh=True)), Start)
    halting = Policy(on_ambiguity="halt")
    assert isinstance(decide(*ANSWERED, ours=opening(3, "closed"), policy=halting), Start)


def test_only_what_is_not_answered_is_in_the_notice_of_a_later_crash() -> None:
    later = (*ANSWERED, opening(3, "dead"), started(resumed=True), turn(), intent(2, input=b'{"command":"other"}'))
    got = decide(*later, ours=opening(4, "dead"))
    assert isinstance(got, Resume) and [o.intent.call for o in got.dangling] == [2]


def test_every_row_is_reached_by_a_name_of_its_own() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_the_documented_table_has_each_row_in_order() -> None:
    page = (Path(__file__).parents[3] / "docs/RECOVERY.md").read_text()
    _, shown, _ = page.split("<!-- plan table -->")
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 4 for line in lines)
    names = [line.split(" | ")[0].removeprefix("| ") for line in lines if not line.startswith(("| |", "|---"))]
    rows = [f"{n}. {row.name}" for n, row in enumerate(TABLE, 1)]
    assert names == [*rows, *(remark.name for remark in REMARKS)]


# ---- a second task on an ended job


SECOND = (*RAN, turn("completed"), run_ended(True), opening(2, "closed", args=("-p", "the second task")))


def second(*records: AnyRecord, talked: bool = False) -> object:
    before = with_home(state_of(*SECOND, *records), opening(2, "closed", args=("-p", "the second task")))
    return plan(before, opening(3, "dead", args=()), replace(LOCAL, talked=talked), POLICY)


@pytest.mark.parametrize("calls", [(), (intent(), end())])
def test_a_second_task_that_no_turn_has_begun_is_begun_again(calls: tuple[AnyRecord, ...]) -> None:
    """Whatever the session before came to, and with the new session's file saved or not."""
    for records in (started("s2"),), (started("s2"), captured("s2")):
        before = with_home(
            state_of(*RAN, *calls, turn("completed"), run_ended(True), *SECOND[-1:], *records),
            opening(2, "closed", args=("-p", "the second task")),
        )
        got = plan(before, opening(3, "dead", args=()), LOCAL, POLICY)
        assert isinstance(got, StartAgain) and got.args == ("-p", "the second task") and got.prompt is None


def test_a_session_that_was_taken_up_again_and_not_asked_yet_is_resumed() -> None:
    """By the agent's own means, so what it holds is in no turn of the log."""
    got = second(started(""), started("s9"), captured("s9"), talked=True)
    assert isinstance(got, Resume) and got.session == "s9"


def test_a_run_whose_words_were_asked_is_not_begun_again_for_a_session_that_it_cleared() -> None:
    """`/clear`, and nothing typed since."""
    got = second(started("s2"), turn("completed", "s2"), started("s3"), captured("s3"))
    assert isinstance(got, Resume) and got.session == "s3"


@pytest.mark.parametrize("session", ["--yolo", "-p", "../x", "a\0b", "a\n"])
def test_a_session_that_is_no_id_is_refused(session: str) -> None:
    """Who writes the bucket would choose an argument of the agent."""
    ran = [replace_session(record, session) for record in (opening(), started(), turn(), captured())]
    got = decide(*ran)
    assert isinstance(got, Refuse) and got.kind is Damaged


def replace_session(record: AnyRecord, session: str) -> AnyRecord:
    return msgspec.structs.replace(record, session=session) if hasattr(record, "session") else record


@pytest.mark.parametrize("calls", [1, SHOWN_CALLS, SHOWN_CALLS + 1])
def test_a_sentence_names_so_many_calls(calls: int) -> None:
    got = decide(*RAN, *map(intent, range(1, calls + 1)), policy=replace(POLICY, on_ambiguity="halt"))
    assert isinstance(got, Refuse) and got.kind is PersonNeeded
    assert got.what.count("#") == min(calls, SHOWN_CALLS)


def test_names_from_a_log_do_not_flood_a_sentence() -> None:
    """They are another machine's, and may be hostile."""
    long = "n" * 999
    agent = decide(replace(opening(), agent=long), started(), turn())
    assert isinstance(agent, Refuse) and agent.what.count("n" * 10) and len(agent.what) < SHOWN_NAME + 200
    folder = decide(replace(opening(), workspace="/" + long), started(), turn(), local=replace(LOCAL, home_exists=True))
    assert isinstance(folder, Refuse) and len(folder.what) < 2 * SHOWN_FOLDER + 200
    version = decide(replace(opening(), agent_version=long), *RAN[1:])
    assert isinstance(version, Resume) and len("".join(version.warnings)) < 2 * SHOWN_NAME + 300


@pytest.mark.parametrize(("looked", "unlooked"), [((9,), 0), ((), 1)])
def test_an_answer_lets_the_next_task_be_a_new_session_and_only_a_look_completes_the_job(
    looked: tuple[int, ...], unlooked: int
) -> None:
    """I8, R6: where nothing looked the run was released, and its next start is no recovery of a crash."""
    ended = RunEnded(time=8.0, code=0, completed=True, cls="completed")
    records = (*RAN, intent(1), opening(2, "dead"), started(resumed=True), answer(1, *looked), turn("completed"), ended)
    assert len(state_of(*records).unlooked) == unlooked
    assert isinstance(decide(*records, ours=opening(3, "released")), Start)
    drained = replace(ended, cls="drained")
    assert isinstance(decide(*records[:-1], drained, ours=opening(3, "released")), Resume)


@pytest.mark.parametrize("how", ["done", "interrupted"])
def test_a_call_that_was_cut_off_or_runs_on_is_asked_about_whatever_the_turn_did(how: str) -> None:
    """I8: Esc, `/exit`, and the same command again. `interrupted` is the word of older logs."""
    word: dict[str, AnyRecord] = {
        "done": RunsOn(time=6.0, call=1, by="hook", why="in the background", task="b1"),
        "interrupted": End(time=6.0, call=1, how="interrupted", by="session"),
    }
    ended = RunEnded(time=8.0, code=0, completed=True, cls="completed")
    got = decide(*RAN, intent(1), word[how], turn("completed"), ended, ours=opening(2, "released"))
    assert isinstance(got, Resume) and [o.intent.call for o in got.dangling] == [1]
    serves = RunsOn(time=6.0, call=1, by="hook", why="a server", serves=True)
    assert isinstance(decide(*RAN, intent(1), serves, turn("completed"), ended, ours=opening(2, "closed")), Start)
