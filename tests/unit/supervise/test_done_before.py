"""supervise/done_before.py: what was done in the turn that was cut off, and comes again first thing after the recovery,
is refused once (I1). What was done before a compaction: test_gate.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from tests.unit.supervise.crew import Post, ended, starting
from wal_agent.agents.base import Allow, Decision, Deny
from wal_agent.calls.call import ReadCall
from wal_agent.calls.rules.table import load_rules
from wal_agent.records import Payload, Turn
from wal_agent.supervise.done_before import DoneBefore
from wal_agent.supervise.gate import PATIENCE, Gate

CHARGE = "./charge.sh 49.90"
MAIL = "./mail.sh"


def turn(post: Post, state: Literal["started", "completed"] = "started", prompt: str = "charge the customer") -> None:
    asked = Payload(size=len(prompt), data=prompt.encode()) if prompt else None
    post.job.writer.append(Turn(time=post.world.clock.now(), state=state, session="s", prompt=asked))
    post.commit()


def run(post: Post, command: str, failed: bool = False, result: str = "charged 49.90") -> Decision:
    event = starting("run_shell_command", command=command)
    answer = post.gate.begin_call(event)
    if answer == Allow():
        end = ended("run_shell_command", command=command)
        post.gate.finish_call(replace(end, failed=failed, result=json.dumps({"out": result}).encode()))
    return answer


def recover(post: Post) -> None:
    """The next run goes on with the job."""
    post.commit()
    post.gate = Gate(post.context, load_rules, lambda: post.fresh)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    """A run that was cut off behind a charge and a mail."""
    post = Post(tmp_path)
    turn(post)
    with post.committing():
        assert run(post, CHARGE) == run(post, MAIL) == Allow()
    recover(post)
    return post


def test_what_was_done_in_the_turn_that_was_cut_off_is_refused_once_with_its_result(post: Post) -> None:
    with post.committing():
        assert run(post, "cat ledger") == Allow(), "what only reads is no act"
        refused = run(post, f"timeout 60 {CHARGE}")
        assert isinstance(refused, Deny) and "charged 49.90" in refused.reason and "#1" in refused.reason
        assert isinstance(run(post, f"bash {MAIL}"), Deny), "nor is a refusal"
        assert run(post, CHARGE) == Allow(), "the agent means it"
        assert run(post, CHARGE) == Allow(), "and knows of that"


def test_refusals_of_done_calls_do_not_end_the_turn(tmp_path: Path) -> None:
    """A model that begins again from the first step reads of each."""
    post = Post(tmp_path)
    turn(post)
    many = [f"./step.sh {n}" for n in range(2 * PATIENCE)]
    with post.committing():
        assert all(run(post, command) == Allow() for command in many)
    recover(post)
    with post.committing():
        refused = [run(post, command) for command in many]
    assert all(isinstance(answer, Deny) and not answer.stop for answer in refused)


@pytest.mark.parametrize("command", ["./charge.sh 20", "mkdir -p out", "git push origin main"])
def test_behind_an_act_that_is_new_nothing_is_refused(post: Post, command: str) -> None:
    """A test suite that is run again behind a change is no mistake."""
    with post.committing():
        assert run(post, command) == Allow() and run(post, CHARGE) == Allow()


def test_a_write_that_repeats_one_is_allowed_and_no_new_act(tmp_path: Path) -> None:
    post = Post(tmp_path)
    turn(post)
    with post.committing():
        assert run(post, "mkdir -p out") == run(post, CHARGE) == Allow()
    recover(post)
    with post.committing():
        assert run(post, "mkdir -p out") == Allow() and isinstance(run(post, CHARGE), Deny)


def test_a_person_with_another_prompt_means_it(post: Post) -> None:
    turn(post, prompt="")
    with post.committing():
        assert isinstance(run(post, CHARGE), Deny), "the notice of a recovery is no prompt"
    recover(post)
    turn(post, prompt="and charge once more")
    with post.committing():
        assert run(post, CHARGE) == Allow()


@pytest.mark.parametrize("maker", ["codemode", "exec", "Agent", "task", "mcp__other__agent"])
def test_what_makes_the_call_for_the_agent_is_nothing_new(tmp_path: Path, maker: str) -> None:
    """I8: pi ran the charge twice, the second time from a script."""
    post = Post(tmp_path)
    turn(post)
    with post.committing():
        assert run(post, CHARGE) == Allow()
    recover(post)
    with post.committing():
        assert post.gate.begin_call(starting(maker, code="go on", prompt="go on")) == Allow()
        assert isinstance(run(post, CHARGE), Deny)


@pytest.mark.parametrize("why", ["failed", "completed turn", "another turn", "nested"])
def test_what_was_not_done_in_the_turn_that_was_cut_off_is_not_refused(tmp_path: Path, why: str) -> None:
    post = Post(tmp_path)
    turn(post)
    with post.committing():
        assert run(post, CHARGE, failed=why == "failed") == Allow()
    if why == "completed turn":
        turn(post, "completed")
    elif why == "another turn":
        turn(post, "completed")
        post.world.clock.at += 1
        turn(post, prompt="charge it again")
    recover(post)
    with post.committing():
        again = starting("run_shell_command", command=CHARGE)
        assert post.gate.begin_call(again, "gemini:inner" if why == "nested" else "") == Allow()


def test_a_long_input_is_equal_by_its_size_and_beginning(tmp_path: Path) -> None:
    """Only the beginning of it is kept."""
    post = Post(tmp_path)
    turn(post)
    long = "git push origin main " + "x" * 700
    with post.committing():
        assert run(post, long) == Allow()
    post.commit()
    (recent,) = post.state.recent
    assert recent.size > len(recent.input)
    for command, equal in ((long + "x", False), (long[:-1] + "y" * 2, False), (long, True)):
        found = DoneBefore(lambda: post.state, "/w", post.state)
        call = ReadCall("run_shell_command", starting("", command=command).input)
        assert (found.before_recovery(call, "mutation") is not None) is equal
