"""wal/state.py: what a state keeps of calls, messages, steps, checkpoints, marks, rewrites and tasks (I9)."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.unit.wal.world import end, host, intent
from wal_agent.records import (
    AgentStarted,
    Answer,
    AnyRecord,
    Checkpoint,
    Class,
    Compaction,
    CompactionDone,
    Edit,
    Ending,
    FileDelta,
    FileGone,
    Mark,
    MessageGiven,
    MessageSeen,
    Opening,
    Pack,
    Payload,
    PlanStep,
    Progress,
    Rewrite,
    StateGone,
    StatePut,
    StepBegun,
    StepEnded,
    StepPaused,
    TaskOf,
    Turn,
    Workspace,
)
from wal_agent.wal import state as states
from wal_agent.wal.plans import MAX_PLAN
from wal_agent.wal.state import (
    MAX_CALL,
    MAX_CHECKPOINT,
    MAX_COMPACTED,
    MAX_INPUT,
    MAX_MARKS,
    MAX_MESSAGES,
    MAX_OUTPUT,
    MAX_RECENT,
    MAX_REWRITES,
    MAX_STEP_RECORD,
    MAX_TASKS,
    FileState,
    OpenCall,
    ShelvedSession,
    State,
    StepAt,
    apply,
    apply_all,
    exceeded_limit,
    rebase,
)


def after(*records: AnyRecord, state: State | None = None) -> State:
    return apply_all(state or State(), 1, 1, records)


def words(text: str) -> Payload:
    return Payload(size=len(text), data=text.encode())


def opening(epoch: int, task: TaskOf | None) -> Opening:
    return Opening(
        time=900.0,
        run="a",
        epoch=epoch,
        cause="first",
        host=host("a"),
        agent="gemini",
        agent_version="1",
        version="1",
        workspace="/w",
        task=task,
    )


# ---- the newest calls


def test_a_recent_call_has_the_beginnings_of_input_and_result() -> None:
    long = msgspec.structs.replace(intent(1), input=Payload(size=9_000, data=b"i" * 9_000))
    done = msgspec.structs.replace(end(1), result=Payload(size=9_000, data=b"r" * 9_000), duration_ms=7)
    before, state = after(long), after(long, done)
    assert (before.recent[0].how, before.recent[0].output) == ("", b"")
    (call,) = state.recent
    assert (call.input, call.size, call.output) == (b"i" * MAX_INPUT, 9_000, b"r" * MAX_OUTPUT)
    assert (call.how, call.duration_ms) == ("done", 7)
    denied = after(intent(1), msgspec.structs.replace(end(1), how="refused", why="no"))
    assert denied.recent[0].output == b"no", "without a result, why it ended so"


def test_only_the_newest_calls_are_recent_and_each_end_belongs_to_its_own() -> None:
    state = after(*(intent(n) for n in range(1, MAX_RECENT + 4)), end(5), end(99))
    assert [c.call for c in state.recent] == list(range(4, MAX_RECENT + 4))
    assert [c.call for c in state.recent if c.how] == [5]


def test_calls_are_counted_and_numbered_on() -> None:
    state = after(intent(4), intent(2))
    assert (state.next_call, state.calls, state.last_tool) == (5, 2, "run_shell_command")


def test_the_time_is_the_newest_of_all_records_but_openings() -> None:
    state = after(intent(1, time=50.0), intent(2, time=40.0), opening(2, None))
    assert (state.time, state.epoch, state.opened) == (50.0, 2, 1), "it may come days later"


# ---- whether anything was recorded


@pytest.mark.parametrize(
    ("state", "ran"),
    [
        (State(), False),
        (State(turned=0, calls=3), False),
        (State(turned=-1, calls=1), True),
        (State(turned=-1, turn="completed"), True),
        (State(turned=2, home=2), True),
        (State(turned=2, home=3), False),
        (State(turned=0, home=0), False),
        (State(turned=2, home=3, turn="started"), True),
    ],
)
def test_a_start_from_nothing_loses_a_turn_of_the_session_or_of_the_home_run(state: State, ran: bool) -> None:
    assert state.ran is ran


def test_the_task_is_that_of_the_newest_run_that_has_one() -> None:
    one, two = TaskOf(job="a"), TaskOf(job="b")
    state = after(*(opening(n, task) for n, task in enumerate((one, two, None), 1)))
    assert state.task == two and State().task is None
    assert after(opening(1, None)).task is None


# ---- the plan


def plan_call(call: int, tool: str = "TodoWrite", size: int = 0, how: Ending = "done") -> list[AnyRecord]:
    stated = b'{"todos": []}'.ljust(size)
    asked = msgspec.structs.replace(intent(call), tool=tool, input=Payload(size=len(stated), data=stated))
    return [asked, msgspec.structs.replace(end(call), how=how)]


def test_the_plan_is_the_newest_that_was_stated_and_done() -> None:
    state = after(*plan_call(1), *plan_call(2), *plan_call(3, how="failed"), *plan_call(4, tool="write_file"))
    assert state.plan is not None and state.plan.call == 2
    assert after(*plan_call(1, size=MAX_PLAN)).plan is not None
    assert after(*plan_call(1, size=MAX_PLAN + 1)).plan is None
    bulk = msgspec.structs.replace(intent(1), tool="TodoWrite", input=Payload(size=3, blob="0" * 64 + "-1"))
    assert after(bulk, end(1)).plan is None, "a plan is never read from a blob"


def task_call(call: int, tool: str, given: object, result: object = None) -> list[AnyRecord]:
    sent, got = (json.dumps(value).encode() for value in (given, result))
    asked = msgspec.structs.replace(intent(call), tool=tool, input=Payload(size=len(sent), data=sent))
    return [asked, msgspec.structs.replace(end(call), result=Payload(size=len(got), data=got))]


def test_claudes_tasks_are_one_plan_whose_steps_come_and_change_one_by_one() -> None:
    """The inputs and results are those of Claude Code 2.1.330."""

    def made(call: int, id: str, subject: str) -> list[AnyRecord]:
        return task_call(call, "TaskCreate", {"subject": subject}, {"task": {"id": id, "subject": subject}})

    def plan(state: State) -> list[tuple[str, str]]:
        assert state.plan is not None
        return [(row["content"], row["status"]) for row in json.loads(state.plan.input)["todos"]]

    state = after(*made(1, "1", "a"), *made(2, "2", "b"), *made(3, "3", "c"))
    changes = ({"taskId": "1", "status": "completed"}, {"taskId": "2", "status": "in_progress", "subject": "B"})
    state = after(*(r for n, c in enumerate(changes, 4) for r in task_call(n, "TaskUpdate", c)), state=state)
    assert plan(state) == [("a", "completed"), ("B", "in_progress"), ("c", "pending")]
    state = after(*task_call(6, "TaskUpdate", {"taskId": "3", "status": "deleted"}), state=state)
    assert plan(state) == [("a", "completed"), ("B", "in_progress")] and state.plan is not None and state.plan.call == 6
    odds: tuple[object, ...] = ({"taskId": "9", "status": "completed"}, {"status": 1}, [], "x", None)
    for odd in odds:
        assert after(*task_call(7, "TaskUpdate", odd), state=state).plan == state.plan
    assert after(*task_call(7, "TaskCreate", {"subject": "x"}, "?"), state=state).plan == state.plan
    assert plan(after(*made(7, "1", "of a new session"), state=state)) == [("of a new session", "pending")]
    long = plan(after(*(r for n in range(1, 501) for r in made(n, str(n), "word " * 40))))
    assert len(long) == 500, "a long plan is kept whole"


def test_of_two_plans_the_newer_one_counts() -> None:
    mine = Progress(time=3.0, plan=(PlanStep(text="one"),), title="t")
    said = after(*plan_call(1), mine)
    assert said.plan is None and said.progress is not None and said.progress.plan == mine.plan
    stated = after(*plan_call(2), state=said)
    assert stated.plan is not None and stated.progress is not None
    assert (stated.progress.plan, stated.progress.title) == (None, "t")
    noted = after(Progress(time=4.0, note="n"), state=after(*plan_call(1)))
    assert noted.plan is not None, "words without a plan leave it"


def test_an_empty_field_of_progress_changes_nothing() -> None:
    first = Progress(time=1.0, title="t", phase="planning", progress=0, note="n", plan=())
    second = Progress(time=2.0, by="person")
    merged = after(first, second).progress
    assert merged == msgspec.structs.replace(first, time=2.0, by="person")
    newer = Progress(time=3.0, title="u", phase="executing", progress=50, note="m", plan=(PlanStep(text="x"),))
    assert after(first, newer).progress == newer


# ---- checkpoints, marks, tasks, compactions


def checkpoint(number: int, body: bytes = b"{}", task: str = "") -> Checkpoint:
    return Checkpoint(time=1.0, number=number, trigger="periodic", body=body, task=task)


def test_a_checkpoint_that_no_run_writes_is_not_kept() -> None:
    assert after(checkpoint(1, b"x" * MAX_CHECKPOINT)).checkpointed == 1
    state = after(checkpoint(1, b"x" * (MAX_CHECKPOINT + 1), "task"))
    assert (state.checkpoints, state.tasks, state.checkpointed) == ((), {}, 0)


def test_the_newest_checkpoints_are_kept_and_numbers_never_go_back() -> None:
    state = after(*(checkpoint(n) for n in range(1, 60)), checkpoint(7))
    assert len(state.checkpoints) == states.MAX_CHECKPOINTS and state.checkpointed == 59


def test_a_task_begins_behind_its_first_checkpoint() -> None:
    state = apply(State(), 4, 2, checkpoint(3, task="job-1"))
    state = apply(state, 9, 3, checkpoint(5, task="job-1"))
    assert [(name, at.seq, at.epoch, at.checkpoint) for name, at in state.tasks.items()] == [("job-1", 4, 2, 3)]
    many = after(*(checkpoint(n, task=f"t{n}") for n in range(MAX_TASKS + 2)), state=state)
    assert len(many.tasks) == MAX_TASKS and "job-1" not in many.tasks and "t2" in many.tasks
    assert after(checkpoint(1)).tasks == {}


def test_a_mark_moves_to_its_newest_place_and_the_oldest_go_first() -> None:
    state = apply(State(), 3, 1, Mark(time=1.0, name="a", session="s", key="k1"))
    state = apply(state, 4, 1, Mark(time=1.0, name="b", session="s"))
    state = apply(state, 5, 1, Mark(time=1.0, name="a", session="s", key="k2"))
    assert [(name, at.seq, at.record.key) for name, at in state.marks.items()] == [("b", 4, ""), ("a", 5, "k2")]
    many = after(*(Mark(time=1.0, name=f"m{n}", session="s") for n in range(MAX_MARKS - 1)), state=state)
    assert len(many.marks) == MAX_MARKS and "b" not in many.marks and "a" in many.marks


def test_a_compaction_names_a_bounded_part_of_the_conversation() -> None:
    files = [FileDelta(time=1.0, path=f"f{n:02}", size=n, sha256="", edits=(), session="s") for n in range(20)]
    calls = [intent(n) for n in range(1, 21)]
    (found,) = after(*files, *calls, Compaction(time=2.0, n=1, session="s", trigger="t" * 99)).compactions
    assert [name for name, _, _ in found.files] == [f"f{n:02}" for n in range(MAX_COMPACTED)]
    assert found.open == tuple(range(5, 21)) and found.call == 20 and len(found.trigger) == 40
    assert after(Compaction(time=1.0, n=5, session="s"), Compaction(time=1.0, n=2, session="s")).compacted == 5


def test_a_long_name_of_a_session_is_cut_and_still_found() -> None:
    long = "s" * 300
    begun, done = Compaction(time=1.0, n=1, session=long), CompactionDone(time=2.0, n=1, session=long)
    (found,) = after(begun, done).compactions
    assert found.done and len(found.session) == 200
    other = CompactionDone(time=2.0, n=1, session="s" * 199)
    assert not after(begun, other).compactions[0].done


def test_what_a_message_and_a_call_are_named_by_is_bounded() -> None:
    state = after(msgspec.structs.replace(given("i" * 200, "s" * 200), verb="v" * 200))
    (message,) = state.messages
    assert (len(message.sender), len(message.id), len(message.verb)) == (100, 100, 20)
    (call,) = after(msgspec.structs.replace(intent(1), tool="t" * 300)).recent
    assert len(call.tool) == 200


def saved(path: str, sha256: str = "aa", size: int = 5) -> FileDelta:
    return FileDelta(time=1.0, path=path, size=size, sha256=sha256, edits=(), session="s")


def rewrite(n: int, path: str = "f.jsonl", size: int = 5, sha256: str = "aa") -> Rewrite:
    return Rewrite(time=2.0, n=n, kind="compact", session="s", path=path, size=size, sha256=sha256, result="bb")


def test_a_rewrite_keeps_the_file_that_it_names_and_no_other() -> None:
    state = apply(after(saved("f.jsonl")), 7, 3, rewrite(4))
    (trace,) = state.rewrites
    assert (trace.seq, trace.epoch, trace.before, state.rewritten) == (7, 3, state.files["f.jsonl"], 4)
    for wrong in (rewrite(5, path="other"), rewrite(5, size=6), rewrite(5, sha256="cc")):
        assert after(wrong, state=state).rewrites == state.rewrites
    many = after(*(rewrite(n) for n in range(5, 5 + MAX_REWRITES)), rewrite(1), state=state)
    assert len(many.rewrites) == MAX_REWRITES and many.rewritten == 4 + MAX_REWRITES


# ---- messages


def given(id: str, sender: str = "x", time: float = 1.0) -> MessageGiven:
    return MessageGiven(time=time, sender=sender, id=id, sent=0.5, text=words("hi"), verb="pause")


def seen(id: str, sender: str = "x", **more: str) -> MessageSeen:
    return MessageSeen(time=9.0, sender=sender, id=id, **more)


def test_a_message_is_one_of_its_sender_and_keeps_its_first_outcome() -> None:
    state = after(given("1"), given("1", "y"), given("1", time=3.0))
    assert [(m.sender, m.id, m.time) for m in state.messages] == [("y", "1", 1.0), ("x", "1", 3.0)]
    state = after(seen("1", refused="r" * 999), seen("1", answer="late"), seen("2"), state=state)
    assert [(m.sender, m.seen, len(m.refused), m.answer) for m in state.messages] == [
        ("y", 0.0, 0, ""),
        ("x", 9.0, states.MAX_OUTCOME, ""),
    ]


def test_of_too_many_messages_those_go_first_that_were_seen() -> None:
    full = after(*(given(str(n)) for n in range(MAX_MESSAGES)), seen("7"), seen("9"))
    more = after(given("new"), state=full)
    assert len(more.messages) == MAX_MESSAGES and {"7", "9"} - {m.id for m in more.messages} == {"7"}
    unseen = after(*(given(str(n)) for n in range(MAX_MESSAGES + 1)))
    assert len(unseen.messages) == MAX_MESSAGES and unseen.messages[0].id == "1", "else the oldest"


# ---- steps


def put(version: int = 1, step: str = "s", size: int = 3) -> StatePut:
    return StatePut(time=1.0, step=step, version=version, value=Payload(size=size, data=b"x" * size))


BEGUN = StepBegun(time=1.0, name="s", command=("true",))


def step_end(how: str) -> StepEnded:
    return StepEnded(time=2.0, name="s", how=how, stdout=Payload(size=4, data=b"out\n"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "begun", "undecided", "failures"),
    [
        ("done", True, False, 0),
        ("failed", True, False, 1),
        ("not_started", False, False, 0),
        ("not_done", False, False, 0),
    ],
)
def test_a_step_ends_once(how: str, begun: bool, undecided: bool, failures: int) -> None:
    state = apply_all(State(opened=3), 1, 2, [BEGUN])
    assert state.undecided_steps == {"s": StepAt(first=3, begun=BEGUN, epoch=2)}
    state = after(step_end(how), step_end("failed"), state=state)
    at = state.steps["s"]
    assert (at.begun is not None, at.undecided, at.failures) == (begun, undecided, failures)
    assert state.undecided_steps == {}


def test_a_step_counts_its_failures_and_keeps_what_it_printed() -> None:
    state = after(BEGUN, step_end("failed"), BEGUN, step_end("failed"), BEGUN)
    at = state.steps["s"]
    assert (at.failures, at.ended, at.kept) == (2, None, 0), "the newest try has no end"
    assert after(put(size=3), step_end("done"), state=state).steps["s"].kept == 7


def test_a_pause_lasts_until_the_step_is_done_or_writes_a_value() -> None:
    paused = StepPaused(time=1.0, name="s", until=5.0)
    state = after(BEGUN, paused, step_end("failed"))
    assert state.steps["s"].paused == paused
    assert after(BEGUN, step_end("done"), state=state).steps["s"].paused is None
    assert after(put(), state=state).steps["s"].paused is None
    assert after(StateGone(time=2.0, step="s"), state=state).steps["s"].paused is None


def test_a_value_that_is_gone_leaves_only_what_ran_under_its_name() -> None:
    assert after(put(), StateGone(time=2.0, step="s")).steps == {}
    ran = after(BEGUN, put(), StateGone(time=2.0, step="s"))
    assert ran.steps["s"].value is None and ran.steps["s"].begun == BEGUN
    assert after(put(5), put(2)).state_version == 5


def test_a_record_about_a_step_that_no_run_has_written_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (step_end("done"), StateGone(time=1.0, step="s"), put(step="a b"), put(size=MAX_STEP_RECORD)):
        assert after(wrong).steps == {}
    monkeypatch.setattr(states, "MAX_STEPS", 2)
    full = after(put(step="a"), put(step="b"))
    assert after(put(step="c"), state=full).steps == full.steps and len(full.steps) == 2
    assert after(put(9, step="b"), state=full).steps["b"].value == put(9, step="b"), "a known name is written on"


# ---- what no run has written


def _many(count: int) -> tuple[OpenCall, ...]:
    return (OpenCall(1, 1, intent(1)),) * count


def _packs(count: int) -> Workspace:
    return Workspace(time=1.0, holds=0, commit="c", packs=(Pack(size=1, sha256="", parts=()),) * count)


def _files(count: int) -> dict[str, FileState]:
    return {str(n): FileState(session="s", size=0, sha256="") for n in range(count)}


@pytest.mark.parametrize("more", [0, 1])
def test_a_state_that_says_more_than_any_run_is_refused(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAX_OPEN", "MAX_FILES", "MAX_PACKS", "MAX_STEPS", "MAX_INSIDE"):
        monkeypatch.setattr(states, name, 3)
    count = 3 + more
    shelved = ShelvedSession("s", _files(count), (), 0)
    each = [
        State(open=_many(count)),
        State(files=_files(count)),
        State(shelf={"gemini": shelved}),
        State(workspace=_packs(count)),
        State(inside={str(n): _packs(0) for n in range(count)}),
        State(steps={str(n): StepAt(first=0) for n in range(count)}),
        State(next_call=MAX_CALL + more),
    ]
    assert [bool(exceeded_limit(state)) for state in each] == [bool(more)] * len(each)


# ---- captured trees and files


def test_a_capture_takes_the_place_of_the_packs_that_it_replaces() -> None:
    def pack(n: int) -> Pack:
        return Pack(size=n, sha256="", parts=())

    def tree(n: int, replaces: int = 0, whole: bool = False) -> Workspace:
        return Workspace(time=1.0, holds=0, commit="c", packs=(pack(n),), whole=whole, replaces=replaces)

    def sizes(*records: AnyRecord) -> list[int]:
        found = after(*records).workspace
        assert found is not None and found.replaces == 0
        return [p.size for p in found.packs]

    assert sizes(tree(1), tree(2), tree(3)) == [1, 2, 3]
    assert sizes(tree(1), tree(2), tree(3), tree(4, replaces=2)) == [1, 4]
    assert sizes(tree(1), tree(2), tree(3, whole=True)) == [3]
    assert sizes(tree(1), tree(2, replaces=9)) == [2] and sizes(tree(1), tree(2, replaces=-1)) == [1, 2]


@pytest.mark.parametrize(("how", "cls", "lacks"), [
    ("done", "mutation", True),
    ("failed", "unknown", True),
    ("done", "read_only", False),
    ("refused", "mutation", False),
    ("interrupted", "mutation", False),
])  # fmt: skip
def test_which_calls_a_capture_may_lack(how: Ending, cls: Class, lacks: bool) -> None:
    asked = msgspec.structs.replace(intent(4), cls=cls)
    ended = msgspec.structs.replace(end(4), how=how)
    assert states.call_changed_files(asked, ended, None) is lacks
    for holds, also, has in ((3, (), False), (4, (), True), (0, (4,), True), (0, (5,), False)):
        tree = Workspace(time=1.0, holds=holds, commit="c", also=also)
        assert states.call_changed_files(asked, ended, tree) is (lacks and not has)


def test_a_snapshot_takes_the_place_of_what_it_was_made_of_and_of_nothing_else() -> None:
    def layer(n: int) -> FileDelta:
        return FileDelta(time=n, path="f", size=n, sha256="", edits=(Edit(offset=0, data=words("x")),), session="s")

    def with_file(**more: object) -> State:
        return State(files={"f": FileState(session="s", size=9, sha256="", **more)})  # type: ignore[arg-type]

    before, after_it = with_file(layers=(layer(1), layer(2))), with_file(chunks=("c",), base_size=9)
    grown = with_file(layers=(layer(1), layer(2), layer(3)))
    assert rebase(grown, before, after_it).files["f"] == FileState(
        session="s", size=9, sha256="", chunks=("c",), base_size=9, layers=(layer(3),)
    )
    for other in (with_file(layers=(layer(2), layer(3))), with_file(layers=(layer(1),)), with_file(base_size=1)):
        assert rebase(other, before, after_it) == other, "begun anew since"
    assert rebase(grown, State(), after_it) == grown and rebase(grown, before, State()) == grown


def test_a_turn_keeps_the_words_of_its_own_session() -> None:
    first = Turn(time=1.0, state="started", session="s", prompt=words("one"))
    quiet = Turn(time=2.0, state="started", session="s")
    assert after(first, quiet).prompt == first
    assert after(first, msgspec.structs.replace(quiet, session="t")).prompt is None


def test_a_message_with_too_long_a_name_is_still_one_and_can_be_seen() -> None:
    """No run writes one: `inbox.NAME` allows 100 characters. A driver of another package once may have."""
    long, other = "i" * 101, "s" * 101
    state = after(given(long, other), given(long + "more", other, time=3.0))
    assert [(m.sender, m.id, m.time, m.seen) for m in state.messages] == [("s" * 100, "i" * 100, 3.0, 0.0)]
    assert after(seen(long, other), state=state).messages[0].seen == 9.0
    assert after(seen("i" * 99, other), seen(long, "s" * 99), state=state).messages[0].seen == 0.0


def test_a_given_message_is_not_yet_seen_and_says_in_which_run_it_was_given() -> None:
    (message,) = apply(State(), 7, 3, given("1")).messages
    assert (message.epoch, message.sent, message.time, message.seen) == (3, 0.5, 1.0, 0.0)
    assert (message.verb, message.refused, message.answer) == ("pause", "", "")


def test_an_answer_keeps_what_was_looked_with_and_the_newest_words() -> None:
    first, silent = Answer(time=1.0, call=1, looked=(3,), because="why"), Answer(time=2.0, call=1, looked=(2, 3))
    (merged,) = after(intent(1), first, silent).answers
    assert (merged.looked, merged.because, merged.time) == ((2, 3), "why", 2.0)
    (newer,) = after(intent(1), first, Answer(time=2.0, call=1, because="other")).answers
    assert (newer.looked, newer.because) == ((3,), "other")
    many = after(intent(1), Answer(time=1.0, call=1, looked=tuple(range(states.MAX_LOOKED + 5)))).answers[0].looked
    assert many == tuple(range(5, states.MAX_LOOKED + 5))
    assert after(first).answers == () == after(intent(1), end(1), first).answers, "only a call in flight has one"


def test_a_short_input_of_a_call_that_no_capture_has_is_kept_as_it_is() -> None:
    for size, kept in ((states.MAX_BRIEF, states.MAX_BRIEF), (states.MAX_BRIEF + 1, states.MAX_BRIEF), (3, 3)):
        payload = Payload(size=size, data=b"x" * size)
        (call,) = after(msgspec.structs.replace(intent(1), input=payload), end(1)).unheld
        assert call.intent.input == Payload(size=kept, data=b"x" * kept)
        assert (call.end.result, call.end.why, call.intent.before) == (None, "", ())
    bulk = Payload(size=9, blob="0" * 64 + "-1")
    (call,) = after(msgspec.structs.replace(intent(1), input=bulk), end(1)).unheld
    assert call.intent.input == bulk


@pytest.mark.parametrize(
    ("turned", "home", "epoch", "then"), [(-1, 1, 2, 0), (-1, 2, 2, -1), (0, 1, 2, 0), (0, 2, 2, 0), (3, 1, 5, 3)]
)
def test_a_fresh_session_in_a_later_run_ends_what_an_older_snapshot_did_not_know(
    turned: int, home: int, epoch: int, then: int
) -> None:
    started = AgentStarted(time=1.0, pid=1, session="s", resumed=False)
    state = apply(State(turned=turned, home=home, turn="completed"), 9, epoch, started)
    assert (state.turned, state.home, state.turn, state.prompt) == (then, epoch, "none", None)


def test_a_transcript_of_one_byte_is_one() -> None:
    gone = FileGone(time=2.0, path="f.jsonl")
    assert len(after(saved("f.jsonl", size=1), gone).past) == 1
    assert after(saved("f.jsonl", size=0), gone).past == () == after(gone).past


def test_what_a_step_keeps_is_its_value_and_what_it_printed() -> None:
    assert after(BEGUN).steps["s"].kept == 0
    assert after(put(size=3)).steps["s"].kept == 3
    assert after(put(size=3), BEGUN, step_end("done")).steps["s"].kept == 7
    assert after(BEGUN, msgspec.structs.replace(step_end("done"), stderr=words("no"))).steps["s"].kept == 6
    assert after(BEGUN).steps["s"].first == 0 and after(opening(1, None), BEGUN).steps["s"].first == 1
