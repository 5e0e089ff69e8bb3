"""supervise/recovery_input.py: what a recovery reports to the agent, and the inner runs that it looks up."""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path
from typing import Literal

import msgspec
import pytest
from msgspec.structs import replace

from tests.unit.recovery.cases import end, intent, opening, with_home
from tests.unit.supervise.crew import short_folder
from wal_agent import __version__
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Reconciled
from wal_agent.bucket.base import MemoryBucket
from wal_agent.bucket.file import FileBucket
from wal_agent.calls.reading import read_calls
from wal_agent.clock import SystemClock
from wal_agent.conversation.tasks import task_job
from wal_agent.evidence import collector
from wal_agent.evidence.collector import assess_nested_run
from wal_agent.evidence.model import NestedRun, Step
from wal_agent.records import MAX_PROMPT, AgentStarted, AnyRecord, Cause, End, Intent, Payload, Recovery, Turn
from wal_agent.recovery.prompt import FinishedCall, LostCall, LostCalls, PromptInput, Templates, render_prompt
from wal_agent.recovery.report import MissingEffects
from wal_agent.supervise import machine
from wal_agent.supervise.recovery_input import (
    InnerCommand,
    InnerRuns,
    Situation,
    inner_calls,
    is_quiet,
    lost_calls,
    lost_timers,
    observe_log,
    parse_inner_command,
    refused_calls,
    task_text,
    unread_notice,
    without_found,
    words_to_give,
    workspace_of_the_model,
    write_prompt,
)
from wal_agent.supervise.settings import load
from wal_agent.wal import lease as leases
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.job import OpenedJob, OpeningFields, close_job, open_job
from wal_agent.wal.keys import Keys
from wal_agent.wal.lease import LeaseRequest
from wal_agent.wal.reader import Replay
from wal_agent.wal.state import OpenCall, OpeningAt, State, apply_all
from wal_agent.wal.store import JobStore
from wal_agent.wording.messages import LOST_WORDS, REFUSED, REPLACES, WITH_START
from wal_agent.wording.messages import TASK as TASK_AS_GIVEN

TOLD = PromptInput("cut_off", "vm-17", "vm-22", False, stopped=50_533.0, saved=50_531.0, now=50_773.0)
TASK = "charge the customer, once"
HOME = opening(1, args=("-p", "do it"))  # at 1000.0


def lost_run(
    asked: bytes = TASK.encode(),
    turn: Literal["none", "started", "completed"] = "started",
    session: str = "s1",
    recovered: float | None = None,
    known: bool = True,
) -> Situation:
    """A job whose newest turn began with `asked` in session "s1"."""
    began = Turn(time=1001.0, state="started", session="s1", prompt=Payload(size=len(asked), data=asked))
    recovery = None if recovered is None else Recovery(time=recovered, from_epoch=1, verdicts=(), told="a notice")
    state = State(session=session, turn=turn, prompt=began if known else None, recovery=recovery)
    return Situation(opening(2, "dead"), with_home(state, HOME), None, {}, asked if known else b"")


def told(at: Situation, heard: tuple[str, ...] | None, *args: str) -> str:
    """What follows the recovery prompt."""
    now = replace(TOLD, turn_completed=at.before.turn == "completed")
    made = Reconciled((), 0, 0, (), heard)
    alone = write_prompt(
        now,
        Reconciled((), 0, 0),
        replace(at, asked=b"", before=with_home(at.before, None)),
        AGENTS["copilot"],
        (),
        Templates(),
    )
    whole = write_prompt(now, made, at, AGENTS["copilot"], args or HOME.args, Templates())
    assert whole.startswith(alone)
    return whole.removeprefix(alone)


def as_given(text: str) -> str:
    return f"\n{LOST_WORDS} The task, as it was given:\n\n{text}\n"


def test_the_calls_whose_changes_to_files_are_not_here() -> None:
    """By what the tree that was put back holds, whoever wrote the calls' results."""
    state = apply_all(State(), 1, 1, [call for n in (1, 2, 3) for call in (intent(n), end(n))])
    at = Situation(opening(2, "dead"), with_home(state, HOME), None, {3: b"{}"})
    assert lost_calls(at, MissingEffects(1, True, (2,))) == LostCalls((LostCall(3, "run_shell_command", b"{}"),), 1)
    assert [c.call for c in lost_calls(at, MissingEffects(0, True)).calls] == [1, 2, 3], "no tree was saved"
    assert lost_calls(at, MissingEffects()) == LostCalls(), "the folder that they changed"


def test_a_call_whose_files_are_here_as_it_wrote_them_is_not_among_them(tmp_path: Path) -> None:
    """Behind a capture that may have more than it says: by bytes, where a call names all that it wrote."""
    inputs = {
        n: json.dumps({"file_path": f"/w/{name}", "content": text}).encode()
        for n, (name, text) in enumerate([("there", "one\n"), ("other", "two\n"), ("absent", "three\n")], 1)
    } | {4: b'{"command":"echo >> there"}'}
    tools = {n: "run_shell_command" if n == 4 else "write_file" for n in inputs}
    calls = [call for n in inputs for call in (intent(n, tools[n], inputs[n]), end(n))]
    state = with_home(apply_all(State(), 1, 1, calls), replace(HOME, workspace="/w"))
    at = Situation(opening(2, "dead"), state, None, inputs)
    (tmp_path / "there").write_text("one\n")
    (tmp_path / "other").write_text("two")
    here = without_found(MissingEffects(0, True), at, tmp_path, SystemClock())
    assert [call.call for call in lost_calls(at, here).calls] == [2, 3, 4]
    assert without_found(MissingEffects(), at, tmp_path, SystemClock()) == MissingEffects()


def test_a_session_that_was_saved_before_it_had_the_task() -> None:
    assert told(lost_run(), ()) == as_given(TASK)
    assert told(lost_run(), ("an older message",)) == as_given(TASK)
    new = "\nThe user's message with this start, to follow after the above:\n\nand hurry\n"
    assert told(lost_run(), (), "-p", "and hurry") == as_given(TASK) + new
    assert told(lost_run(), (), "-p", TASK) == new.replace("and hurry", TASK), "told once"


@pytest.mark.parametrize("heard", [None, (TASK,), ("older", TASK), (f"[wal-agent recovery] ...\n\n{TASK}\n",)])
def test_a_session_that_has_it(heard: tuple[str, ...] | None) -> None:
    """Also where an earlier recovery told it."""
    assert told(lost_run(), heard) == ""


def test_no_turn_that_is_open_began_with_it() -> None:
    assert told(lost_run(turn="completed"), ()) == ""
    assert told(lost_run(turn="none"), ()) == ""
    assert told(lost_run(known=False), ()) == ""


def test_another_session_has_it_only_by_a_recovery() -> None:
    """A task that `--fresh` gave up does not come back."""
    assert told(lost_run(session="s2"), ()) == ""
    assert told(lost_run(session="s2", recovered=999.0), ()) == "", "of an earlier run"
    assert told(lost_run(session="s2", recovered=1000.5), ()) == as_given(TASK)


def test_a_task_whose_end_the_log_cut_off() -> None:
    whole = "ü" + "x" * (MAX_PROMPT - 3) + "ü and more"
    kept = whole.encode()[:MAX_PROMPT]  # in the middle of a character
    assert task_text(kept, whole) == whole and task_text(kept, "another") == kept.decode("utf-8", "replace")
    assert told(lost_run(kept), (whole,)) == ""
    assert told(lost_run(kept), ()) == as_given(kept.decode("utf-8", "replace"))


def test_the_arguments_stand_in_for_what_the_log_does_not_have() -> None:
    assert task_text(b"", "given") == "given"
    assert told(lost_run(b""), ()) == as_given("do it")
    assert task_text(b"do", "do it") == "do", "another message, which the log has whole"


def test_the_log_tells_what_was_asked() -> None:
    blobs = Blobs(JobStore(MemoryBucket(), Keys("shop"), rng=random.Random(1)))
    state = lost_run().before
    assert observe_log(Replay(state), HOME, blobs).asked == TASK.encode()
    assert observe_log(Replay(State()), HOME, blobs).asked == b""


# ---- words of a run that began no turn

NEW = "\nThe user's message with this start, to follow after the above:\n\n{}\n"


def resumed_run(cause: Cause, words: str, turned: int, known: bool = True) -> Situation:
    """Epoch 1 was asked TASK; epoch 2 resumed its session with `words` and was lost."""
    openings = (
        OpeningAt(1, opening(1, "first", args=("-p", TASK))),
        OpeningAt(2, opening(2, cause, args=("-p", words))),
    )
    at = lost_run(turn="completed", known=known)
    state = msgspec.structs.replace(at.before, openings=openings, home=2, turned=turned)
    return replace(at, before=state)


@pytest.mark.parametrize("heard", [(TASK,), None])
@pytest.mark.parametrize("args", [("-y",), ("-p", "and another")])
def test_what_a_lost_run_was_to_ask_is_asked(heard: tuple[str, ...] | None, args: tuple[str, ...]) -> None:
    """`--continue -p "and another"`, lost before its first turn; started again with or without words."""
    at = resumed_run("closed", "and another", turned=1)
    assert told(at, heard, *args) == NEW.format("and another")
    assert told(at, (TASK, "... and another ..."), *args) == "", "the session has it"


def test_words_that_were_asked_are_not_asked_again() -> None:
    """In a turn of that run, of the run before with the same words, or as far as the log does not say."""
    assert told(resumed_run("closed", "and another", turned=2), None, "-p", "and another") == ""
    assert told(resumed_run("dead", TASK, turned=1), None, "-p", TASK) == ""
    assert told(resumed_run("closed", "and another", turned=-1), None, "-p", "and another") == ""


def test_the_same_words_on_an_ended_job_are_a_task_of_their_own() -> None:
    assert told(resumed_run("closed", TASK, turned=1), None, "-p", TASK) == NEW.format(TASK)


# ---- a notice that the model has not answered


def at_end_of(*records: AnyRecord) -> Situation:
    state = apply_all(State(), 1, 1, [AgentStarted(time=1.0, pid=1, session="s1", resumed=False), *records])
    inputs = {e.intent.call: e.intent.input.data or b"" for e in state.unsettled}
    return Situation(opening(2, "dead"), with_home(state, HOME), None, inputs)


def test_what_subagents_had_completed_is_listed_under_the_call_that_runs_them() -> None:
    """I8: the charge is an effect of the call in flight, and no conversation that is resumed has it."""
    task, look, charge, open = (
        intent(1, "Agent"),
        intent(2, cls="read_only", session="s1/a"),
        intent(3, session="s1/a"),
        intent(4, session="s1/a"),
    )
    at = at_end_of(task, look, end(2), charge, end(3), open)
    assert [(c.tool, c.how) for c in inner_calls(at)] == [("run_shell_command", "done")]
    assert inner_calls(at_end_of(task, charge, end(3), end(1))) == (), "its caller has its result"
    assert "`run_shell_command` `make`: done" in render_prompt(replace(TOLD, inner=inner_calls(at)))


def test_only_what_wal_agent_refused_last_is_named() -> None:
    denied = End(time=6.0, call=2, how="refused", by="supervisor", why=f"{REFUSED} it is going down.")
    no = End(time=6.0, call=2, how="refused", by="session", why="it was refused, so it did not run")
    assert [c.how for c in refused_calls(at_end_of(intent(1), end(1), intent(2), denied))] == ["refused"]
    assert refused_calls(at_end_of(intent(1), end(1), intent(2), no)) == (), "a person's No is no news"
    assert refused_calls(at_end_of(intent(2), denied, intent(3), end(3))) == (), "it went on behind it"


def test_timers_of_the_lost_run_are_named_but_for_those_it_took_back() -> None:
    def call(number: int, tool: str, input: bytes, result: bytes) -> tuple[Intent, End]:
        kept = Payload(size=len(result), data=result)
        begun = replace(intent(number, tool, input), time=2000.0)
        return begun, End(time=2001.0, call=number, how="done", by="hook", result=kept)

    records = (
        *call(1, "CronCreate", b'{"cron":"*/5 * * * *"}', b'{"id":"a1b2c3d4"}'),
        *call(2, "CronCreate", b'{"cron":"0 9 * * *"}', b'{"id":"e5f6a7b8"}'),
        *call(3, "CronDelete", b'{"id":"a1b2c3d4"}', b"{}"),
        *call(4, "Bash", b'{"command":"make"}', b"{}"),
        *call(5, "ScheduleWakeup", b'{"prompt":"it has come"}', b'{"scheduledFor":2000000}'),
        *call(6, "CronCreate", b'{"prompt":"once"}', b'{"id":"0a0a0a0a","recurring":false,"nextFireAt":2000000}'),
        *call(7, "ScheduleWakeup", b'{"prompt":"to come"}', b'{"scheduledFor":2001001}'),
    )
    found = lost_timers(at_end_of(*records), AGENTS["claude"])
    assert [c.input for c in found] == [b'{"cron":"0 9 * * *"}', b'{"prompt":"to come"}']
    assert lost_timers(at_end_of(*records), AGENTS["gemini"]) == ()
    back = Reconciled((), 0, 0, timers=("e5f6a7b8",))
    left = lost_timers(at_end_of(*records), AGENTS["claude"], back)
    assert [c.tool for c in left] == ["ScheduleWakeup"], "Claude runs the other one again"
    assert "they are gone with the old run: `CronCreate`" in render_prompt(replace(TOLD, timers=found))


def test_what_qwen_code_schedules_says_in_words_how_long_it_lasts() -> None:
    """As 0.24.4 writes it."""
    session = b"Scheduled recurring job k3kq0z1a (0 9 * * *). Session-only (not written to disk, dies"
    kept = b"Scheduled recurring job aaaaaaa1 (0 9 * * *). Persisted to ~/.qwen/tmp/<project-hash>/s"
    come = b"Scheduled loop wakeup w1.\nScheduled for: 1970-01-01T00:33:20.000Z (in 60s).\nSession-only one-shot"
    to_come = come.replace(b"00:33:20", b"00:33:30")
    records: list[AnyRecord] = []
    for number, (tool, result) in enumerate(
        [("cron_create", session), ("cron_create", kept), ("loop_wakeup", come), ("loop_wakeup", to_come)], 1
    ):
        saved = Payload(size=len(result), data=result)
        records.append(replace(intent(number, tool, b"%d" % number), time=2000.0))
        records.append(End(time=2001.0, call=number, how="done", by="hook", result=saved))
    assert [c.input for c in lost_timers(at_end_of(*records), AGENTS["qwen"])] == [b"1", b"4"]
    records.append(replace(intent(5, "cron_delete", b'{"id":"k3kq0z1a"}'), time=2001.0))
    records.append(End(time=2001.5, call=5, how="done", by="hook"))
    assert [c.input for c in lost_timers(at_end_of(*records), AGENTS["qwen"])] == [b"4"]


def test_what_was_typed_while_a_tool_ran_is_given_in_order_where_the_session_lacks_it() -> None:
    """I3: agents keep queued prompts in memory."""

    def typed(text: str) -> Turn:
        return Turn(time=1001.0, state="started", session="s1", prompt=Payload(size=len(text), data=text.encode()))

    done = Turn(time=1000.5, state="completed", session="s1")
    turns = (typed("long ago"), done, typed("the task"), typed("and then this"), typed("stop after that"))
    at = replace(at_end_of(*turns), asked=b"stop after that")
    made = Reconciled((), 0, 0, (), ("long ago", "the task", "do it"))
    assert words_to_give(TOLD, made, at, AGENTS["gemini"], ()) == ("and then this\n\nstop after that", "")
    whole = Reconciled((), 0, 0, (), ("the task", "and then this", "stop after that"))
    assert words_to_give(TOLD, whole, at, AGENTS["gemini"], ()) == ("", "")
    noted = replace(made, prompts=None, queued=("the task", "then tell me"))
    here = replace(at_end_of(typed("the task")), asked=b"the task")
    assert words_to_give(TOLD, noted, here, AGENTS["claude"], ()) == ("the task\n\nthen tell me", "")
    assert [len(t.prompt.data or b"") for t in at_end_of(typed("x" * 9000)).before.waiting if t.prompt] == [4096]


@pytest.mark.parametrize("field", ["refused", "served", "inner", "timers", "leftovers", "moved", "unlogged", "lost"])
def test_a_start_is_silent_only_where_there_is_nothing_to_tell(field: str) -> None:
    call = FinishedCall("Bash", b"{}", "done")
    something = {"moved": ("/a", "/b"), "unlogged": True, "leftovers": ("npm",), "lost": LostCalls((), 1)}
    assert TOLD.is_quiet
    assert not replace(TOLD, **{field: something.get(field, (call,))}).is_quiet


RECORDED = Path(__file__).parents[2] / "fixtures/sessions"


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDED.glob("*.jsonl")))
def test_what_was_left_out_of_a_damaged_session_is_told_and_breaks_the_silence(name: str) -> None:
    """I3: a line glued to half of another one, and one of NULs."""
    agent, session = AGENTS[name], json.loads((RECORDED / f"{name}.calls.json").read_text())["session"]
    lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    at = len(lines) // 2
    damaged = [*lines[:at], lines[at - 1][: len(lines[at - 1]) // 2] + lines[at], bytes(20) + b"\n", *lines[at + 1 :]]
    whole, made = (agent.reconcile(b"".join(data), session, Path("/home/u/ws"), []) for data in (lines, damaged))
    assert whole.left_out == () and is_quiet(TOLD, whole)
    assert made.left_out and not is_quiet(TOLD, made)
    text = write_prompt(TOLD, made, lost_run(), agent, HOME.args, Templates())
    assert all(each in text for each in made.left_out)


def test_what_is_typed_anew_is_given_and_nothing_else() -> None:
    at = lost_run(turn="completed")
    made = Reconciled((), 0, 0, (), (TASK, "do it"))
    assert words_to_give(TOLD, made, at, AGENTS["gemini"], ("-p", "do it")) == ("", "")
    assert words_to_give(TOLD, made, at, AGENTS["gemini"], ("-p", "another")) == ("", "another")


def told_before(words: str, at: Situation, **state: object) -> Situation:
    """The lost run gave the model a notice that ended with `words`."""
    assert at.home is not None
    notice = Recovery(
        time=at.home.time + 1, from_epoch=at.home.epoch - 1, verdicts=(), told=f"[wal-agent recovery] ...\n{words}"
    )
    return replace(at, before=msgspec.structs.replace(at.before, recovery=notice, **state))


def replaced(at: Situation, heard: tuple[str, ...] | None, *args: str) -> str:
    made = Reconciled((), 0, 0, (), heard)
    return write_prompt(replace(TOLD, replaces=True), made, at, AGENTS["copilot"], args or HOME.args, Templates())


def test_a_notice_is_unread_until_the_model_has_acted_or_completed_a_turn() -> None:
    at = told_before("", lost_run(turn="completed"))
    assert unread_notice(at) is not None, "the completed turn was one of the run before"
    assert unread_notice(told_before("", lost_run(turn="completed"), turned=1)) is None
    assert unread_notice(told_before("", lost_run(), turned=1)) is not None, "its turn began, no more"
    acted = apply_all(at.before, 1, 1, [msgspec.structs.replace(intent(9), time=HOME.time + 2)])
    assert unread_notice(replace(at, before=acted)) is None
    assert unread_notice(lost_run()) is None
    assert at.before.recovery is not None
    older = msgspec.structs.replace(at.before, recovery=Recovery(time=1.0, from_epoch=1, verdicts=(), told=""))
    assert unread_notice(replace(at, before=older)) is None, "of a run before the lost one"
    never = msgspec.structs.replace(at.before.recovery, from_epoch=HOME.epoch)
    assert unread_notice(replace(at, before=msgspec.structs.replace(at.before, recovery=never))) is None, "no agent"


def test_the_newest_notice_says_in_its_first_line_that_it_replaces_those_before() -> None:
    first = render_prompt(replace(TOLD, replaces=True)).splitlines()[0]
    assert REPLACES in first and REPLACES not in render_prompt(TOLD)


@pytest.mark.parametrize("heard", [None, (), (f"[wal-agent recovery] ...\n{TASK_AS_GIVEN}\n\n{TASK}\n",)])
def test_the_task_that_only_an_unread_notice_holds_is_in_the_next_one(heard: tuple[str, ...] | None) -> None:
    """Whatever the agent says of its session: a notice that the model never answered is not heard."""
    at = told_before(f"{LOST_WORDS} {TASK_AS_GIVEN}\n\n{TASK}\n", lost_run())
    assert as_given(TASK) in replaced(at, heard)
    assert TASK not in replaced(at, (TASK,)), "the session has the person's own message"


@pytest.mark.parametrize("heard", [None, ("[wal-agent recovery] ... do it",)])
def test_a_new_conversation_that_had_only_the_notice(heard: tuple[str, ...] | None) -> None:
    """Its task stood behind the notice, and the log knows no turn of it."""
    at = told_before(f"{TASK_AS_GIVEN}\n\ndo it", lost_run(turn="none", known=False))
    assert as_given("do it") in replaced(at, heard)
    assert as_given("do it") in replaced(at, heard, "-p", "another")
    assert replaced(at, heard, "-p", "another").endswith(NEW.format("another"))


@pytest.mark.parametrize("heard", [None, (TASK, "[wal-agent recovery] ... and another")])
def test_words_of_a_start_that_only_an_unread_notice_holds(heard: tuple[str, ...] | None) -> None:
    """Its turn began (turned=2), so the log alone would take them for asked."""
    at = resumed_run("closed", "and another", turned=2)
    started = msgspec.structs.replace(at.before, turn="started")
    notice = told_before(f"{WITH_START}\n\nand another\n", replace(at, before=started))
    assert replaced(notice, heard, "-p", "and another").endswith(NEW.format("and another"))


def test_where_the_model_worked_before_the_notices_that_it_has_not_answered() -> None:
    homes = (opening(1, "first", workspace="/a"), opening(2, "dead", workspace="/b"))
    at = resumed_run("dead", TASK, turned=1)
    state = msgspec.structs.replace(at.before, openings=tuple(OpeningAt(n, o) for n, o in enumerate(homes, 1)))
    at = told_before("", replace(at, before=state))
    assert workspace_of_the_model(at) == "/a"


OUTER = "00000000000000aa"
WORDS = "wal-agent run gemini --job inner -- -p 'do it'"

NAMED = {
    WORDS: InnerCommand("gemini", "inner"),
    "wal-agent run --job=x claude": InnerCommand("claude", "x"),
    "wal-agent run --job gemini codex --bucket file:///b": InnerCommand("codex", "gemini", "file:///b"),
    "wal-agent run gemini -- --job no --bucket no": InnerCommand("gemini"),
    "wal-agent run --job": None,
    "wal-agent run nothing": None,
    "wal-agent run -- gemini": None,
}


TASKS = {
    "wal-agent task 'find it'": InnerCommand("claude", task_job("shop", "claude", "find it")),
    "wal-agent task --budget-calls 3 --agent=codex --json 'find it'": InnerCommand(
        "codex", task_job("shop", "codex", "find it")
    ),
    "wal-agent task --fork -- --it": InnerCommand("claude", task_job("shop", "claude", "--it", fork=True)),
    "wal-agent task --job other 'find it'": None,
    "wal-agent task two words": None,
}


@pytest.mark.parametrize(("words", "said"), TASKS.items())
def test_which_job_a_task_is(words: str, said: InnerCommand | None) -> None:
    assert parse_inner_command(shlex.split(words), "shop", "claude") == said


@pytest.mark.parametrize(("words", "said"), NAMED.items())
def test_what_the_words_name(words: str, said: InnerCommand | None) -> None:
    assert parse_inner_command(shlex.split(words)) == said


JUDGED: list[tuple[NestedRun | None, bool, str]] = [
    (None, True, "unknown"),
    (NestedRun("j", False), True, "not_started"),
    (NestedRun("j", False), False, "unknown"),
    (NestedRun("j", True, "closed"), True, "completed"),
    (NestedRun("j", True, "closed"), False, "completed"),
    (NestedRun("j", True, "cut_off"), True, "partial"),
    (NestedRun("j", True, "released"), True, "partial"),
    (NestedRun("j", True, "held"), True, "unknown"),
]


@pytest.mark.parametrize(("inner", "gone", "finding"), JUDGED)
def test_the_finding(inner: NestedRun | None, gone: bool, finding: str) -> None:
    assert assess_nested_run(inner, gone).finding == finding


class Stage:
    """A folder bucket that the person's settings name, and inner jobs in it."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.env = {
            "HOME": str(folder),
            "WAL_AGENT_BUCKET": f"file://{folder}/bucket",
            "WAL_AGENT_RUNTIME_DIR": str(folder / "r"),
        }
        self.bucket = FileBucket(folder / "bucket")
        self.run_dir = machine.RunDir.create(machine.runtime_dir(self.env), "00000000000000bb")
        self.here = machine.this_host(self.env, self.run_dir.lock)

    def open(self, *parents: str, version: str = __version__) -> OpenedJob:
        claim = LeaseRequest(run=self.run_dir.run, host=self.here, agent="gemini", workspace=str(self.work), ttl=30.0)
        seen = leases.read_lease(self.bucket, Keys("inner"))
        fields = OpeningFields(agent_version="", version=version, parents=parents)
        clock, rng = SystemClock(), random.Random(7)
        return open_job(
            JobStore(self.bucket, Keys("inner"), clock, rng, parallel=1),
            claim=claim,
            fields=fields,
            seen=seen,
            cause="first",
        )

    def look(self, words: str = WORDS, since: float = 1.0) -> NestedRun | None:
        settings = load("gemini", self.work, self.env, {"job": "outer"})
        looks = InnerRuns(settings, self.env, self.here)
        return looks(Step("run_shell_command", tuple(shlex.split(words)), (), self.work), OUTER, since)


@pytest.fixture
def stage() -> object:
    with short_folder() as folder:
        made = Stage(folder)
        yield made
        made.run_dir.end()


def test_a_task_is_looked_up_in_the_bucket_of_its_caller(stage: Stage) -> None:
    """It may have been given on the command line alone; the settings then name another one."""
    settings = load("gemini", stage.work, stage.env, {"job": "outer"})
    looks = InnerRuns(settings, {**stage.env, "WAL_AGENT_BUCKET": "file:///nowhere"}, stage.here, "gemini")
    step = Step("run_shell_command", ("wal-agent", "task", "find it"), (), stage.work)
    assert looks(step, OUTER, 1.0) == NestedRun(task_job("outer", "gemini", "find it"), began=False)


def test_its_job_was_never_opened(stage: Stage) -> None:
    assert stage.look() == NestedRun("inner", began=False)
    stage.open("00000000000000cc")
    assert stage.look() == NestedRun("inner", began=False), "another run began it"


def test_a_version_that_does_not_say_where_it_was_started(stage: Stage) -> None:
    stage.open(version="0.0.1")
    assert stage.look() is None


def test_it_runs_is_cut_off_or_has_ended(stage: Stage) -> None:
    job = stage.open("00000000000000cc", OUTER)
    assert stage.look() == NestedRun("inner", True, "held")
    assert stage.look(since=9e12) is None, "an earlier call's, or the clock was changed"
    job.writer.append(Turn(time=1.0, state="completed", session="s"))
    while job.writer.commit_once() == "acked":
        pass
    close_job(job, "closed", "")
    assert stage.look() == NestedRun("inner", True, "closed")


def test_its_supervisor_is_dead(stage: Stage) -> None:
    stage.open(OUTER)
    stage.run_dir.end()
    assert stage.look() == NestedRun("inner", True, "cut_off")
    stage.run_dir = replace(stage.run_dir, lock_fd=machine.RunDir.create(stage.run_dir.path.parent, "x").lock_fd)


def test_somebody_else_had_the_job_behind_it(stage: Stage) -> None:
    close_job(stage.open(OUTER), "released", "")
    stage.open()
    assert stage.look() is None


def test_a_bucket_that_only_the_command_names_is_not_asked(stage: Stage) -> None:
    """The agent wrote the command; whom this machine talks to is the person's."""
    stage.open(OUTER)
    assert stage.look(f"wal-agent run gemini --job inner --bucket {stage.env['WAL_AGENT_BUCKET']}") is not None
    assert stage.look("wal-agent run gemini --job inner --bucket file:///tmp/elsewhere") is None
    assert stage.look("wal-agent run gemini --job inner --bucket s3://attacker/loot") is None


def test_a_look_that_fails_says_nothing(stage: Stage) -> None:
    stage.bucket.put("inner/lease.json", b"junk")
    assert stage.look() is None
    assert stage.look("wal-agent run gemini --job ../x") is None


@pytest.mark.parametrize(
    "text",
    [
        WORDS,
        f"{WORDS} </dev/null >>out 2>&1; echo over",
        f"/usr/bin/{WORDS}",
        *(f"wal-agent task 'find it'{rest}" for rest in ("", "; echo $?", " >out 2>&1; echo $?")),
    ],
)
@pytest.mark.parametrize(("ended", "finding"), [("closed", "completed"), ("cut_off", "partial")])
def test_a_verdict_asks_it(tmp_path: Path, text: str, ended: str, finding: str) -> None:
    """Also where its output goes into a file, or its exit code is printed; with the run and the time of the call. The
    verdict names the job that it found."""
    asked: list[tuple[str, float]] = []

    def inner(step: Step, run: str, since: float) -> NestedRun:
        asked.append((run, since))
        return NestedRun("inner", True, ended)  # type: ignore[arg-type]

    with short_folder() as folder:
        on = Stage(folder)
        opening = on.open().replay.state.openings[-1]
        on.run_dir.end()
        data = json.dumps({"command": text}).encode()
        empty = Payload(size=1, data=b"")
        intent = Intent(time=5.0, call=1, tool="run_shell_command", input=empty, cls="idempotent", rule="", session="s")
        state = State(open=(OpenCall(2, opening.opening.epoch, intent),), openings=(opening,), next_call=2)
        (said,) = collector.decide_verdicts(
            state, read_calls(state, {1: data}), on.here, tmp_path, collector.Remains(True), inner=inner
        )
    assert (said.finding, asked) == (finding, [(opening.opening.run, 5.0)])
    assert "`inner`" in said.why
