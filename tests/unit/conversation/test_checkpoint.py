"""conversation/checkpoint.py: a checkpoint is a pure, bounded, redacted view of the log."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.tiers import examples
from tests.unit.recovery.cases import end, intent, opening, payload, started
from tests.unit.wal.test_codec import some_records
from wal_agent.conversation.checkpoint import (
    MAX_PLANNED,
    Context,
    Document,
    Occasion,
    canonical,
    checkpoint_of,
    compare,
    list_usable,
    marked_steps,
    newest_usable,
    parse_markdown_plan,
    plan_of,
    read_document,
    task_phase,
    work_so_far,
)
from wal_agent.records import (
    AnyRecord,
    Checkpoint,
    Class,
    End,
    Ending,
    MessageGiven,
    MessageSeen,
    PlanStep,
    Progress,
    Repository,
    Turn,
    Workspace,
)
from wal_agent.wal.state import MAX_CHECKPOINT, MAX_CHECKPOINTS, MAX_RECENT, State, apply, apply_all

SECRET = "ghp_" + "a1B2c3D4e5" * 4
TASK = "Task: Move the shop to v2 (planning, 50 %)"
AT = Occasion("shop", "gemini", 9, "manual", 1000.0)
PLANS: dict[str, tuple[str, dict[str, object]]] = {
    "claude": (
        "TodoWrite",
        {"todos": [{"content": "a", "status": "completed"}, {"content": "b", "status": "pending"}]},
    ),
    "gemini": ("write_todos", {"todos": [{"description": "a", "status": "completed"}, {"description": "b"}]}),
    "codex": ("update_plan", {"plan": [{"step": "a", "status": "completed"}, {"step": "b", "status": "in_progress"}]}),
    "opencode": ("todowrite", {"todos": [{"content": "a", "status": "completed", "id": "1"}, {"content": "b"}]}),
    "qwen": ("todo_write", {"todos": [{"id": "1", "content": "a", "status": "completed"}, {"content": "b"}]}),
    "copilot": ("update_todo", {"todos": "- [x] a\n- [ ] b\n"}),
}


def told(*records: AnyRecord) -> State:
    return apply_all(State(), 1, 1, [opening(), started(), *records])


def asked(text: str = "Move the shop to v2\nand test it") -> Turn:
    return Turn(time=2.0, state="started", session="s1", prompt=payload(text.encode()))


def document(state: State, at: Occasion = AT) -> Document:
    return read_document(checkpoint_of(state, at))


def planned(agent: str, call: int = 1) -> list[AnyRecord]:
    tool, input = PLANS[agent]
    return [intent(call, tool=tool, input=json.dumps(input).encode(), cls="read_only"), end(call)]


@pytest.mark.parametrize("agent", sorted(PLANS))
def test_the_plan_is_that_of_the_agents_own_tool(agent: str) -> None:
    found = document(told(asked(), *planned(agent)))
    assert (found.context.plan, found.context.completed_steps) == (["a", "b"], ["a"])
    assert found.active_task is not None
    assert (found.active_task.title, found.active_task.progress) == ("Move the shop to v2", 50)


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.booleans(), max_size=MAX_PLANNED))
def test_of_a_long_plan_a_recovery_names_what_is_next_and_counts_the_rest(states: list[bool]) -> None:
    """Also one of more steps than a document holds, and where what is done stands between what is not."""
    plan = tuple(PlanStep(text=f"step {n}", state="done" if done else "open") for n, done in enumerate(states))
    said = Progress(time=3.0, title="T", note="Next: the tests.", plan=plan)
    note, task, *lines = work_so_far(told(asked(), said), "shop", "gemini").lines
    assert (note, task.partition(" (")[0]) == ("Note: Next: the tests.", "Task: T")
    assert len(lines) <= 8
    if states:
        assert lines[0] == f"Plan: {sum(states)} of {len(states)} steps are done."
    still = [step.text for step in plan if step.state != "done"]
    named = [line.removeprefix("[ ] ") for line in lines if line.startswith("[ ] ")]
    assert named == still[: len(named)] and (bool(named) or not still)
    more = [line.split()[1] for line in lines if line.startswith("and ")]
    assert [int(n) for n in more] == ([len(still) - 5] if len(still) > 5 else [])


@pytest.mark.parametrize("done", [(), (0,), (2,), (0, 2)])
def test_of_two_steps_with_the_same_words_each_has_its_own_state(done: tuple[int, ...]) -> None:
    words = ("test", "fix", "test")
    plan = tuple(PlanStep(text=text, state="done" if at in done else "open") for at, text in enumerate(words))
    context = document(told(asked(), Progress(time=3.0, plan=plan))).context
    assert marked_steps(context) == [(at in done, text) for at, text in enumerate(words)]


def test_an_older_document_says_by_words_what_is_done() -> None:
    assert marked_steps(Context(plan=["a", "b"], completed_steps=["a"])) == [(True, "a"), (False, "b")]


def test_of_what_is_too_long_the_end_of_the_plan_goes_with_its_states() -> None:
    """Also of equal words, of which only the last one is done."""
    plan = [PlanStep(text="\N{SNOWMAN}" * 190, state="done" if at % 2 else "open") for at in range(60)]
    context = document(told(asked(), Progress(time=3.0, plan=tuple(plan)))).context
    assert 10 < len(context.plan) < 60 and context.done == list(range(1, len(context.plan), 2))
    assert len(context.completed_steps) == len(context.done)


def test_of_two_plans_the_newer_one_counts() -> None:
    said = Progress(time=3.0, plan=(PlanStep(text="c"),))
    assert [s.text for s in plan_of(told(*planned("claude"), said))] == ["c"]
    assert [s.text for s in plan_of(told(said, *planned("claude")))] == ["a", "b"]
    failed = End(time=6.0, call=2, how="failed", by="hook")
    assert [s.text for s in plan_of(told(said, planned("claude", 2)[0], failed))] == ["c"]


def test_what_was_said_goes_before_what_was_guessed_and_stays() -> None:
    first = Progress(time=3.0, title="Other", phase="reviewing", progress=70, note="half")
    found = document(told(asked(), *planned("codex"), first, Progress(time=4.0, progress=80)))
    assert found.active_task is not None
    assert (found.active_task.title, found.active_task.phase, found.active_task.progress) == ("Other", "reviewing", 80)
    assert found.context.draft == "half"


def test_the_phase_is_the_mix_of_the_newest_calls() -> None:
    reads: list[AnyRecord] = [intent(n, tool="read_file", cls="read_only") for n in range(1, 9)]
    assert task_phase(told(*reads)) == "gathering"
    assert task_phase(told(*reads, *(intent(n, cls="mutation") for n in range(9, 13)))) == "executing"
    assert task_phase(told(intent(20, cls="mutation"), *reads)) == "reviewing"
    assert task_phase(told(*reads, *planned("gemini", 9))) == "planning"


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(some_records, max_size=25))
def test_rebuilt_it_equals_the_one_made(records: Sequence[AnyRecord]) -> None:
    """The log alone holds all of it: the state is written and read again as a snapshot is."""
    state = apply_all(State(), 1, 1, records)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    made = checkpoint_of(state, AT, "id")
    assert checkpoint_of(again, AT, "id") == made
    assert len(made.body) <= MAX_CHECKPOINT
    found = read_document(made)
    assert found.size == len(canonical({k: v for k, v in json.loads(made.body).items() if k not in ("size", "sha256")}))


def test_it_is_bounded_and_redacted_whatever_the_calls_are() -> None:
    big = json.dumps({"command": f"deploy --token {SECRET} " + "é" * 5000}).encode()
    calls: list[AnyRecord] = []
    for n in range(1, MAX_RECENT + 20):
        calls += [
            intent(n, tool=f"tool_{SECRET}" * 9, input=big, cls="mutation"),
            End(time=6.0, call=n, how="done", by="hook", result=payload(f"out {SECRET} ".encode() + b"x" * 9000)),
        ]
    said = Progress(
        time=3.0, title=SECRET, note=f"{SECRET} " + "n" * 9000, plan=tuple(PlanStep(text="s" * 900) for _ in range(99))
    )
    made = checkpoint_of(told(asked(SECRET), *calls, said), AT)
    assert len(made.body) <= MAX_CHECKPOINT and SECRET.encode() not in made.body
    found = read_document(made)
    assert 0 < len(found.context.tool_calls) <= 50
    assert found.context.tool_calls[-1].call == MAX_RECENT + 19
    assert all(len(c.input) <= 200 and len(c.output) <= 500 for c in found.context.tool_calls)


DEEP = {"todos": b'{"todos": ' + b"[" * 3000, "path": b'{"file_path": ' + b"[" * 3000}


@pytest.mark.parametrize("input", DEEP.values(), ids=DEEP)
def test_an_input_that_is_nested_without_end_tells_nothing(input: bytes) -> None:
    """A tool may be given anything, and so may a log."""
    calls: list[AnyRecord] = []
    for n, tool in enumerate(("write_todos", "write_file", "read_file"), 1):
        calls += [intent(n, tool=tool, input=input, cls="read_only" if tool == "read_file" else "mutation"), end(n)]
    found = document(told(asked(), *calls))
    assert (found.context.plan, found.workspace.modified, len(found.context.tool_calls)) == ([], [], 3)


def kept(state: State, *, at: int = 5, **more: object) -> State:
    made = checkpoint_of(state, Occasion("shop", "gemini", at, "manual", 1000.0 + at))
    return apply(state, at, 1, msgspec.structs.replace(made, **more))


@pytest.mark.parametrize("harm", [b"", b"[]", b"{}", b'{"sha256":3}', b"[" * 20_000])
def test_a_damaged_one_is_skipped_with_a_line(harm: bytes) -> None:
    state = kept(kept(told(asked())), at=6, body=harm)
    found = newest_usable(state)
    assert found.at is not None and found.at.seq == 5
    assert len(found.problems) == 1 and "checkpoint 2 (record 6) is skipped" in found.problems[0]


def test_one_changed_byte_is_found() -> None:
    made = checkpoint_of(told(asked()), AT)
    with pytest.raises(ValueError, match="SHA-256"):
        read_document(msgspec.structs.replace(made, body=made.body.replace(b"Move the", b"Drop the")))


def test_the_state_keeps_the_newest_and_none_that_is_too_long() -> None:
    state = told(asked())
    for n in range(MAX_CHECKPOINTS + 5):
        state = kept(state, at=n + 1)
    assert [c.record.number for c in state.checkpoints] == list(range(6, MAX_CHECKPOINTS + 6))
    assert kept(state, at=99, body=b"x" * (MAX_CHECKPOINT + 1)).checkpoints == state.checkpoints


def test_days_are_over_but_for_the_newest() -> None:
    state = kept(kept(told(asked())), at=6)
    later = 1000.0 + 30 * 86_400
    assert [at.seq for at, _ in list_usable(state, 1010.0)[0]] == [6, 5]
    assert [at.seq for at, _ in list_usable(state, later)[0]] == [6]


def test_a_recovery_uses_the_newest_or_builds_it_from_the_log() -> None:
    base = told(asked(), *planned("claude"))
    fresh = kept(base)
    moved = msgspec.structs.replace(fresh, time=fresh.checkpoints[-1].record.time + 60)
    found = work_so_far(moved, "shop", "gemini")
    assert (found.number, found.age, found.rebuilt) == (1, 60.0, False)
    assert found.lines == (TASK, "Plan: 1 of 2 steps are done.", "[x] a", "[ ] b")

    later = apply_all(moved, 9, 1, [Progress(time=9000.0, progress=90)])
    old = work_so_far(later, "shop", "gemini")
    assert old.rebuilt and old.number == 1 and "90 %" in old.lines[0]
    assert work_so_far(told(asked()), "shop", "gemini").lines == ()


def test_a_comparison_leaves_out_what_differs_anyway() -> None:
    state = told(asked())
    a, b = document(state), document(state, Occasion("shop", "gemini", 11, "manual", 5000.0))
    assert compare(a, b) == []
    changed = document(told(asked(), Progress(time=3.0, progress=40)))
    assert any(line.startswith("+") and "40" in line for line in compare(a, changed))


def test_a_plan_in_markdown() -> None:
    steps = parse_markdown_plan("# Plan\n\n- [x] one\n* [~] two\n1. three\n- [ ]\n")
    assert [(s.text, s.state) for s in steps] == [("one", "done"), ("two", "active"), ("1. three", "open")]


def test_a_record_of_the_log_is_what_is_read() -> None:
    made = checkpoint_of(told(asked()), AT, "an-id", number=4)
    found = read_document(made)
    assert isinstance(made, Checkpoint) and (made.number, made.time) == (4, 1000.0)
    assert (found.checkpoint_id, found.job, found.agent, found.epoch) == ("an-id", "shop", "gemini", 1)
    assert (found.sequence_number, found.record, found.time) == (4, 9, "1970-01-01T00:16:40.000Z")
    assert (found.trigger, found.role, found.ttl_days) == ("manual", "", AT.ttl_days)
    assert found.active_task is not None and (found.active_task.title, found.active_task.progress) == (
        "Move the shop to v2",
        0,
    )
    assert found.active_task.started_at == "1970-01-01T00:00:02.000Z"
    other = document(told(asked("Sell the shop"))).active_task
    assert other is not None and len(other.task_id) == 12 and other.task_id != found.active_task.task_id


def called(n: int, command: str, cls: Class = "mutation", said: str = "", how: Ending = "done") -> list[AnyRecord]:
    asked = replace(intent(n), cls=cls, input=payload(json.dumps({"command": command}).encode()))
    return [asked, replace(end(n), how=how, result=payload(json.dumps({"stdout": said}).encode()))]


@pytest.mark.parametrize(
    ("command", "written"),
    [
        ("echo a > a.txt && cat b >> 'c d.txt' 2>/dev/null", ["a.txt", "c d.txt"]),
        ("touch x; cp x y | tee -a z", ["x", "y", "z"]),
        ("sed -i 's/a/b/' f.py && sed -n 1p g.py", ["f.py"]),
        ("make all", []),
        ("echo 'unclosed > q", []),
    ],
)
def test_what_a_shell_command_wrote_is_modified(command: str, written: list[str]) -> None:
    found = document(told(*called(1, command), *called(2, "echo no > refused.txt", how="refused")))
    assert found.workspace.modified == written


def test_the_tree_is_the_newest_capture_and_what_it_may_lack() -> None:
    repository = Repository(head="c0ffee", branch="refs/heads/main")
    saved = Workspace(time=7.0, holds=1, commit="a" * 40, whole=True, repository=repository)
    found = document(told(*called(1, "make a"), saved, *called(2, "make b"), *called(3, "make c"))).workspace
    assert (found.commit, found.branch, found.uncommitted) == ("c0ffee", "refs/heads/main", 2)


def test_what_was_gathered_is_told_with_what_it_said() -> None:
    reads = called(1, "grep -c heron birds.txt", "read_only", "\n17\n18")
    found = document(told(*reads, *called(2, f"cat {SECRET}", "read_only", f"key {SECRET}")))
    assert found.context.gathered[0] == "grep -c heron birds.txt: 17"
    assert SECRET not in "".join(found.context.gathered) and len(found.context.gathered) == 2


@pytest.mark.parametrize(
    ("input", "result"),
    [
        ({"cmd": "grep -c a b", "yield_time_ms": 30_000}, "17\n"),  # Codex
        ({"command": "grep -c a b"}, {"stdout": "17", "stderr": ""}),  # Claude Code
        ({"command": "grep -c a b", "description": "run it"}, {"type": "text", "text": "17"}),  # Copilot, OpenCode
        ({"command": "grep -c a b"}, [{"type": "text", "text": "17\n"}]),  # pi
        ({"command": "grep -c a b"}, {"llmContent": "<untrusted_context>\nOutput: 17\n</untrusted_context>"}),  # Gemini
        ({"command": "grep -c a b", "description": "x"}, "Command: grep -c a b\nDirectory: (root)\nOutput: 17"),  # Qwen
    ],
)
def test_a_commands_first_line_is_gathered_whatever_the_agent_puts_around_it(input: object, result: object) -> None:
    asked = replace(intent(1), cls="read_only", input=payload(json.dumps(input).encode()))
    state = told(asked, replace(end(1), result=payload(json.dumps(result).encode())), *planned("gemini", 2))
    assert document(state).context.gathered == ["grep -c a b: 17"]


def test_messages_say_how_far_the_agent_has_read() -> None:
    one = MessageGiven(time=3.0, sender="ann", id="1", sent=1.0, text=payload(b"x"), driver="nats")
    state = apply_all(told(), 7, 1, [one, replace(one, id="2")])
    state = apply_all(state, 9, 1, [MessageSeen(time=4.0, sender="ann", id="1")])
    found = document(state).messages
    assert (found.driver, found.last_acked_seq, found.pending) == ("nats", 7, 1)
    assert [m.seq for m in state.messages] == [7, 7]
