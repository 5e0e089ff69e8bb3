"""plan: whose job it is, with which arguments it continues, and how it describes the end of the run before."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.recovery.cases import (
    HOST,
    MAIN,
    OTHER,
    captured,
    end,
    intent,
    opening,
    payload,
    run_ended,
    started,
    state_of,
    turn,
    with_home,
)
from wal_agent.errors import ConfigError, CrashLoop, NotThisJob
from wal_agent.records import AnyRecord, Handoff, Opening, Owner, Repository, RunEnded, StepBegun, Turn, Workspace
from wal_agent.recovery.plan import (
    LocalFacts,
    PlanInputs,
    Policy,
    Refuse,
    Resume,
    Start,
    StartAgain,
    decide,
    describe_project,
    is_other_persons,
    prior_args,
    refuse_other_job,
)
from wal_agent.wal.reader import Damage
from wal_agent.wal.state import State

LOCAL = LocalFacts(main_file=MAIN)
RAN = (opening(), started(), turn(), captured())


def prior(*records: AnyRecord, home: int | None = None) -> State:
    """`home`: the epoch of the home run; by default of the newest opening, -1 for none."""
    state = state_of(*records)
    openings = [o.opening for o in state.openings]
    wanted = home if home is not None else (openings[-1].epoch if openings else -1)
    return with_home(state, next((o for o in openings if o.epoch == wanted), None))


def inputs(before: State, ours: Opening | None = None, local: LocalFacts = LOCAL) -> PlanInputs:
    return PlanInputs(before, ours or opening(before.epoch + 1, "dead", args=()), local, Policy())


# ---- arguments


def test_a_run_without_arguments_went_on_with_the_earlier_ones() -> None:
    log = (opening(1, args=("-p", "one")), opening(2, "dead", args=()), opening(3, "dead", args=()))
    assert prior_args(prior(*log)) == ("-p", "one")
    assert prior_args(prior(*log, home=1)) == ("-p", "one") and prior_args(prior(*log, home=-1)) == ()
    later = (*log[:2], opening(3, "dead", args=("-p", "two")))
    assert prior_args(prior(*later)) == ("-p", "two") and prior_args(prior(*later, home=2)) == ("-p", "one")


@pytest.mark.parametrize("cause", ["first", "closed"])
def test_a_job_that_had_come_to_its_end_left_no_arguments(cause: Any) -> None:
    assert prior_args(prior(opening(1, args=("-p", "one")), opening(2, cause, args=()))) == ()


def test_another_agents_arguments_count_for_nothing() -> None:
    log = (opening(1, args=("a",), agent="claude"), opening(2, "dead", args=(), agent="gemini"))
    assert prior_args(prior(*log)) == ()
    mine = (opening(0, args=("mine",), agent="gemini"), *log)
    assert prior_args(prior(*mine)) == ("mine",)
    handed = (*mine, Handoff(time=3.0, before="gemini", agent="claude"))
    assert prior_args(prior(*handed)) == ("a",), "the job is claude's by now"


# ---- whose job it is


def test_a_job_of_no_agent_is_that_of_who_asks() -> None:
    def takes(before: State, agent: str) -> bool:
        return not isinstance(decide(before, opening(2, agent=agent), LOCAL, Policy()), Refuse)

    assert takes(prior(home=-1), "pi")
    assert takes(prior(*RAN), "gemini") and not takes(prior(*RAN), "pi")
    handed = prior(*RAN, Handoff(time=9.0, before="gemini", agent="codex"))
    assert takes(handed, "codex") and not takes(handed, "gemini") and not takes(handed, "pi")


@pytest.mark.parametrize(
    ("then", "now", "agent", "unlogged", "refused"),
    [
        (("./a", "x"), ("./b",), "generic", True, True),
        (("/usr/bin/a",), ("a", "y"), "generic", True, False),
        (("./a",), ("./b",), "generic", False, False),
        ((), ("./b",), "generic", True, False),
        (("./a",), (), "generic", True, False),
        (("./a",), ("./b",), "other", True, False),
    ],
)
def test_where_any_command_can_be_run_its_program_is_the_agent(
    then: tuple[str, ...], now: tuple[str, ...], agent: str, unlogged: bool, refused: bool
) -> None:
    before = prior(opening(1, args=then, agent=agent), started())
    ours = opening(2, "dead", args=now, agent="generic")
    found = refuse_other_job(inputs(before, ours, replace(LOCAL, unlogged=unlogged)))
    assert (found is not None and "./a" in found.what and "./b" in found.what) == refused


def test_another_folders_job_is_one_of_this_machine_by_its_name_or_its_boot() -> None:
    here = replace(LOCAL, home_exists=True)
    renamed = msgspec.structs.replace(OTHER, boot=HOST.boot)
    rebooted = msgspec.structs.replace(OTHER, name=HOST.name)
    for host, refused in ((HOST, True), (renamed, True), (rebooted, True), (OTHER, False)):
        found = refuse_other_job(inputs(prior(*RAN), opening(2, "dead", host, workspace="/w/else"), here))
        assert (found is not None) == refused
        if found is not None:
            assert found.kind is NotThisJob and "Its folder is" not in found.what, "the sentence names both"


def test_before_the_job_is_opened_its_folder_is_named_where_it_is_another() -> None:
    before = prior(*RAN)
    there = refuse_other_job(inputs(before, opening(2, "dead", agent="pi", workspace="/w/else")))
    assert there is not None and there.what.endswith("Its folder is /w/shop; this one is /w/else.")
    here = refuse_other_job(inputs(before, opening(2, "dead", agent="pi")))
    assert here is not None and "Its folder" not in here.what and here.kind is NotThisJob and here.hint
    assert refuse_other_job(inputs(before)) is None


def test_nothing_is_said_of_a_job_that_never_started_or_whose_log_is_damaged() -> None:
    ours = opening(2, "dead", agent="pi")
    assert refuse_other_job(inputs(prior(*RAN, home=-1), ours)) is None
    damage = Damage(seq=2, why="it is.", good=1, time=1.0)
    assert refuse_other_job(inputs(prior(*RAN), ours, replace(LOCAL, damage=damage))) is None
    refused = decide(prior(*RAN), ours, LOCAL, Policy())
    assert isinstance(refused, Refuse) and refused.kind is ConfigError


def test_a_project_is_named_by_its_origin_else_by_its_first_commit() -> None:
    root = "root:" + "ab" * 20
    assert describe_project(("origin:git@x:a/b.git", root)) == "git@x:a/b.git"
    assert describe_project((root,)) == "first commit abababababab", "as git abbreviates one"
    assert describe_project(()) == describe_project(("origin:", "junk")) == "unknown"
    assert describe_project(("origin:b", "origin:a")) == "a", "the same each time"


PERSON = Owner(user="ada", person="p1", folder="f1")


@pytest.mark.parametrize(
    ("owner", "host", "workspace", "other"),
    [
        (Owner(user="bob", person="p2", folder="f2"), OTHER, "/w/b", True),
        (Owner(user="bob", person="p2", folder="f2"), HOST, "/w/b", True),
        (Owner(user="bob", person="p2", folder="f2"), OTHER, "/w/shop", True),
        (Owner(user="bob", person="p2", folder="f2"), HOST, "/w/shop", False),
        (Owner(user="bob", person="p2", folder="f1"), OTHER, "/w/b", False),
        (Owner(user="bob", person="p2"), OTHER, "/w/b", True),
        (Owner(user="ada", person="p2", folder="f2"), OTHER, "/w/b", False),
        (Owner(user="bob", person="p1", folder="f2"), OTHER, "/w/b", False),
    ],
)
def test_a_job_is_taken_over_from_another_person(owner: Owner, host: Any, workspace: str, other: bool) -> None:
    home = opening(1, owner=PERSON)
    assert is_other_persons(home, opening(2, "dead", host, owner=owner, workspace=workspace)) == other
    unnamed = opening(1, owner=Owner(person="p9", folder="f9"))
    assert not is_other_persons(unnamed, opening(2, "dead", host, owner=owner, workspace=workspace))


def test_without_folder_ids_two_folders_are_not_taken_for_one() -> None:
    home = opening(1, owner=Owner(user="ada", person="p1"))
    assert is_other_persons(home, opening(2, "dead", OTHER, owner=Owner(user="bob", person="p2")))


# ---- how the run before ended


def ended_as(cls: Any, completed: bool = False, until: float = 0.0, why: str = "") -> RunEnded:
    return RunEnded(time=8.0, code=1, completed=completed, cls=cls, until=until, why=why)


def test_a_job_that_was_released_by_a_run_whose_agent_died_was_cut_off() -> None:
    got = decide(prior(*RAN, ended_as("heap")), opening(2, "released", args=()), LOCAL, Policy())
    assert isinstance(got, Resume) and got.alert == "cut_off" and "vm-17" in got.why
    with_call = decide(prior(*RAN, intent(), ended_as("heap")), opening(2, "released", args=()), LOCAL, Policy())
    assert isinstance(with_call, Resume) and with_call.alert == "crash"
    given_up = decide(prior(*RAN, ended_as("drained", why="spot")), opening(2, "released", args=()), LOCAL, Policy())
    assert isinstance(given_up, Resume) and given_up.alert == "preempted"
    assert got.why != given_up.why


def test_the_job_that_no_run_has_closed_is_asked_of_the_log() -> None:
    """The owner that took it next died before its opening: only the missing epoch says so."""
    done = (*RAN, turn("completed"))
    for ended, cause in (
        (ended_as("completed", completed=True), "closed"),
        (ended_as("completed", completed=False), "dead"),
        (ended_as("completed", completed=True, until=9.0), "dead"),
        (ended_as("heap", completed=True), "dead"),
    ):
        assert inputs(prior(*done, ended), opening(3, "dead")).cause == cause
        assert inputs(prior(*done, ended), opening(2, "dead")).cause == "dead"


def test_the_cause_is_that_of_the_opening_right_behind_the_home_run() -> None:
    log = prior(*RAN, opening(2, "released"), opening(3, "dead"), home=1)
    assert inputs(log, opening(4, "closed")).cause == "released"
    assert inputs(prior(*RAN, home=-1), opening(2, "unlocked")).cause == "unlocked"


def test_a_pause_is_one_while_the_job_rests() -> None:
    paused = (*RAN, run_ended(False, until=90.0))
    assert inputs(prior(*paused), opening(2, "released")).pause is not None
    assert inputs(prior(*paused), opening(2, "dead")).pause is None
    assert inputs(prior(*RAN, run_ended(False)), opening(2, "released")).pause is None


def test_what_may_have_changed_something_and_is_not_known_is_doubtful() -> None:
    log = prior(*RAN, intent(1), intent(2), intent(3, cls="read_only"), intent(4))
    known = replace(LOCAL, findings=((1, "completed"), (4, "unknown")))
    assert [o.intent.call for o in inputs(log, local=known).doubtful] == [2, 4]


def test_a_captured_session_is_the_newest_ones_main_file() -> None:
    assert inputs(prior(*RAN)).captured
    assert not inputs(prior(opening(), turn(session=""), captured(""))).captured, "it has no name to resume by"
    assert not inputs(prior(*RAN, started("s2"))).captured
    assert not inputs(prior(opening(), started(), captured(path="other"))).captured


def test_a_handoff_goes_on_also_without_a_session_and_tells_it() -> None:
    handed = (*RAN, Handoff(time=9.0, before="gemini", agent="codex"))
    ours = opening(2, "closed", agent="codex", args=("x",))
    got = decide(prior(*handed), ours, LOCAL, Policy())
    assert isinstance(got, StartAgain) and got.alert == "handoff" and "gemini" in got.why and not got.alone
    assert decide(prior(*handed), ours, LOCAL, Policy(named=True)) == got  # the session is the other agent's
    alone = decide(prior(*handed, intent(3)), ours, LOCAL, Policy(on_ambiguity="resume"))
    assert isinstance(alone, StartAgain) and alone.alert == "handoff" and alone.alone


def test_a_start_again_is_reported_where_there_is_something_to_report() -> None:
    log = (opening(), started(), turn())
    ours = opening(2, "dead", args=())
    quiet = decide(prior(*log), ours, LOCAL, Policy())
    assert isinstance(quiet, StartAgain) and quiet.alert is None and quiet.prompt is None
    done = decide(prior(*log, intent(1), end(1)), ours, LOCAL, Policy())
    assert isinstance(done, StartAgain) and done.alert == "cut_off"
    unlogged = msgspec.structs.replace(intent(1), unlogged=True)
    ran: list[AnyRecord] = [unlogged, msgspec.structs.replace(end(1), by="session"), captured(path="x", settled=1)]
    seen = decide(prior(*log, *ran), ours, LOCAL, Policy())
    assert isinstance(seen, StartAgain) and seen.alert == "cut_off" and seen.finished == ()
    words = Turn(time=1.0, state="started", session="s1", prompt=payload(b"do it"))
    asked = decide(prior(opening(), started(), words), ours, LOCAL, Policy())
    assert isinstance(asked, StartAgain) and asked.prompt == words.prompt


def test_no_hooks_no_word_on_what_was_in_flight() -> None:
    ours = opening(2, "dead", args=())
    hooked, blind = (decide(prior(*RAN), ours, replace(LOCAL, unlogged=u), Policy()) for u in (False, True))
    assert isinstance(hooked, Resume) and isinstance(blind, Resume) and hooked.why != blind.why


def warnings_of(before: State, ours: Opening) -> tuple[str, ...]:
    plan = decide(before, ours, LOCAL, Policy())
    assert isinstance(plan, Resume | StartAgain)
    return tuple(plan.warnings)


def test_steps_that_were_cut_off_are_a_warning_of_which_five_are_named() -> None:
    steps = [StepBegun(time=1.0, name=f"s{n}", command=("run", str(n))) for n in range(1, 8)]
    (one,) = warnings_of(prior(*RAN, *steps[:1]), opening(2, "dead"))
    assert "s1 (run 1)" in one
    (many,) = warnings_of(prior(*RAN, *steps), opening(2, "dead"))
    assert "s5 (run 5)" in many and "s6 (run 6)" not in many and "7" in many


def test_another_agents_version_is_no_warning() -> None:
    """After a handoff the session is another program's."""
    handed = (*RAN, Handoff(time=9.0, before="gemini", agent="codex"))
    ours = opening(2, "closed", agent="codex", agent_version="9")
    assert warnings_of(prior(*handed), ours) == ()


# ---- halts


def place(n: int, what: str = "heap x call k") -> RunEnded:
    return RunEnded(time=float(n), code=1, completed=False, cls="heap", place=what)


def test_a_job_that_died_twice_at_one_place_halts_unless_that_is_switched_off_or_a_new_session_is_asked_for() -> None:
    log = prior(*RAN, place(1, "s1 turn"), opening(2, "released"), started(resumed=True), place(2, "s1 turn"))
    ours = opening(3, "released", args=())
    halted = decide(log, ours, LOCAL, Policy())
    assert isinstance(halted, Refuse) and halted.kind is CrashLoop
    assert not isinstance(decide(log, ours, LOCAL, Policy(crash_limit=0)), Refuse)
    assert isinstance(decide(log, ours, LOCAL, Policy(fresh=True)), Start)
    once = prior(*RAN, place(1, "s1 turn"), opening(2, "released"), started(resumed=True), place(2, "s1 other"))
    assert not isinstance(decide(once, ours, LOCAL, Policy()), Refuse)


def test_the_crash_limit_is_reached_by_as_many_crashes() -> None:
    deaths = [opening(n, "dead", time=1000.0 + n) for n in range(2, 4)]
    log, ours = prior(*RAN, *deaths), opening(4, "dead", time=1010.0, args=())
    assert len(inputs(log, ours).crashes) == 3
    assert isinstance(decide(log, ours, LOCAL, Policy(crash_limit=3)), Refuse)
    assert not isinstance(decide(log, ours, LOCAL, Policy(crash_limit=4)), Refuse)


def test_a_saved_tree_of_another_repository_is_no_job_of_this_one() -> None:
    saved = Workspace(
        time=5.0, holds=0, commit="c" * 40, whole=True, repository=Repository(head="", branch="", identity=("root:a",))
    )
    found = refuse_other_job(inputs(prior(*RAN, saved), local=replace(LOCAL, identity=("root:b",))))
    assert found is not None and found.kind is NotThisJob
    assert refuse_other_job(inputs(prior(*RAN, saved), local=replace(LOCAL, identity=("root:a",)))) is None
