"""supervise/recovery_input.py: what follows the recovery prompt (the task that a session was lost before it had it)."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Literal

import msgspec
import pytest

from tests.unit.recovery.cases import end, intent, opening
from wal_agent.agents import AGENTS
from wal_agent.agents.base import Reconciled
from wal_agent.bucket.memory import MemoryBucket
from wal_agent.clock import SystemClock
from wal_agent.records import Cause, Payload, Recovery, Turn
from wal_agent.recovery.prompt import Lost, LostCall, Told
from wal_agent.recovery.templates import Templates
from wal_agent.recovery.tree_words import Effects
from wal_agent.supervise.conversation import MAX_PROMPT
from wal_agent.supervise.recovery_input import LOST, lost_calls, task_text, write_prompt
from wal_agent.supervise.situation import Situation, observe_log
from wal_agent.wal.blobs import Blobs
from wal_agent.wal.keys import Keys
from wal_agent.wal.reader import Replay
from wal_agent.wal.state import OpeningAt, State, apply_all

TOLD = Told("cut_off", "vm-17", "vm-22", False, stopped=50_533.0, saved=50_531.0, now=50_773.0)
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
    recovery = None if recovered is None else Recovery(time=recovered, from_epoch=1, verdicts=(), told="")
    state = State(session=session, turn=turn, prompt=began if known else None, recovery=recovery)
    return Situation(opening(2, "dead"), state, HOME, None, {}, asked if known else b"")


def told(at: Situation, heard: tuple[str, ...] | None, *args: str) -> str:
    """What follows the recovery prompt."""
    now = replace(TOLD, turn_completed=at.before.turn == "completed")
    made = Reconciled(b"", 0, 0, (), heard)
    alone = write_prompt(
        now, Reconciled(b"", 0, 0), replace(at, asked=b"", home=None), AGENTS["copilot"], (), Templates()
    )
    whole = write_prompt(now, made, at, AGENTS["copilot"], args or HOME.args, Templates())
    assert whole.startswith(alone)
    return whole.removeprefix(alone)


def as_given(text: str) -> str:
    return f"\n{LOST} The task, as it was given:\n\n{text}\n"


def test_the_calls_whose_changes_to_files_are_not_here() -> None:
    """Issue 12.9: by what the tree that was put back holds, whoever wrote the calls' results."""
    state = apply_all(State(), 1, 1, [call for n in (1, 2, 3) for call in (intent(n), end(n))])
    at = Situation(opening(2, "dead"), state, HOME, None, {3: b"{}"})
    assert lost_calls(at, Effects(1, True, True, (2,))) == Lost((LostCall(3, "run_shell_command", b"{}"),), 1, True)
    assert [c.call for c in lost_calls(at, Effects(0, False, True)).calls] == [1, 2, 3], "no tree was saved"
    assert not lost_calls(at, Effects(0, False, True)).sure
    assert lost_calls(at, Effects()) == Lost(), "the folder that they changed"


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
    blobs = Blobs(MemoryBucket(), Keys("shop"), SystemClock(), random.Random(1))
    state = lost_run().before
    assert observe_log(Replay(state), HOME, blobs).asked == TASK.encode()
    assert observe_log(Replay(State()), HOME, blobs).asked == b""


# ---- Issue 12.6: words of a run that began no turn

NEW = "\nThe user's message with this start, to follow after the above:\n\n{}\n"


def resumed_run(cause: Cause, words: str, turned: int, known: bool = True) -> Situation:
    """Epoch 1 was asked TASK; epoch 2 resumed its session with `words` and was lost."""
    openings = (
        OpeningAt(1, opening(1, "first", args=("-p", TASK))),
        OpeningAt(2, opening(2, cause, args=("-p", words))),
    )
    at = lost_run(turn="completed", known=known)
    state = msgspec.structs.replace(at.before, openings=openings, home=2, turned=turned)
    return replace(at, before=state, home=openings[-1].opening)


@pytest.mark.parametrize("heard", [(TASK,), None])
@pytest.mark.parametrize("args", [("-y",), ("-p", "and another")])
def test_what_a_lost_run_was_to_ask_is_asked(heard: tuple[str, ...] | None, args: tuple[str, ...]) -> None:
    """Issue 12.6: `--continue -p "and another"`, lost before its first turn; started again with or without words."""
    at = resumed_run("closed", "and another", turned=1)
    assert told(at, heard, *args) == NEW.format("and another")
    assert told(at, (TASK, "... and another ..."), *args) == "", "the session has it"


def test_words_that_were_asked_are_not_asked_again() -> None:
    """Issue 12.6: in a turn of that run, of the run before with the same words, or as far as the log does not say."""
    assert told(resumed_run("closed", "and another", turned=2), None, "-p", "and another") == ""
    assert told(resumed_run("dead", TASK, turned=1), None, "-p", TASK) == ""
    assert told(resumed_run("closed", "and another", turned=-1), None, "-p", "and another") == ""


def test_the_same_words_on_an_ended_job_are_a_task_of_their_own() -> None:
    """Issue 12.6."""
    assert told(resumed_run("closed", TASK, turned=1), None, "-p", TASK) == NEW.format(TASK)
