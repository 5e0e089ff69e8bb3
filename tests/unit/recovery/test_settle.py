"""I8: what the agent did about a call in flight ends it; what it says, and what merely resembles it, does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from wal_agent.recovery.settle import AskedCall, Resolver

ASKED_PUSH = AskedCall(7, "run_shell_command", b'{"command": "git push origin main"}', "git ls-remote origin main")


def shell(command: str, **more: str) -> bytes:
    return json.dumps({"command": command, **more}).encode()


def whys(answers: Resolver, *open: int) -> dict[int, str]:
    return {end.call: end.why for end in answers.ends(open, 1.0)}


@pytest.mark.parametrize(
    "command", ["git ls-remote origin main", "git  ls-remote 'origin' main", " git ls-remote origin main # look"]
)
def test_looking_as_told_ends_it(command: str) -> None:
    answers = Resolver([ASKED_PUSH])
    answers.saw(9, "run_shell_command", shell(command))
    assert whys(answers) == {}  # a person was faster
    assert whys(answers, 7) == {7: "the agent looked with #9, as it was told to"}
    assert whys(answers, 7) == {}  # each has one end


def test_looking_in_another_folder_is_no_look() -> None:
    answers = Resolver([ASKED_PUSH])
    answers.saw(9, "run_shell_command", shell("git ls-remote origin main", dir_path="other"))
    assert whys(answers, 7) == {}


@pytest.mark.parametrize(
    ("ran", "looked", "ends"),
    [
        ("", "", True),
        ("", "/w", True),
        ("", "/w/sub", False),
        ("/other", "/other", True),
        ("/other", "/w", False),
        ("/other", "", False),  # nobody knows where that look was
        ("/other", "/other/sub", False),
    ],
)
@pytest.mark.parametrize("command", ["git ls-remote origin main", "git push origin main"])
def test_only_what_is_done_where_the_call_ran_ends_it(ran: str, looked: str, ends: bool, command: str) -> None:
    """Claude Code's shell stays where a `cd` led it: the same words are about another repository there."""
    answers = Resolver([replace(ASKED_PUSH, folder=ran)], "/w")
    answers.saw(9, "run_shell_command", shell(command), looked)
    assert bool(whys(answers, 7)) is ends


def test_running_it_again_ends_it() -> None:
    answers = Resolver([ASKED_PUSH])
    answers.saw(9, "run_shell_command", shell("git push origin main", description="once more"))
    (end,) = answers.ends([7], 1.0)
    assert (end.how, end.by, end.finding) == ("interrupted", "recovery", "unknown")
    assert end.why == "the very same call was run again as #9, and ended"
    assert answers.given == {7}


def test_what_was_told_to_be_known_is_what_its_end_says() -> None:
    answers = Resolver([AskedCall(7, ASKED_PUSH.tool, ASKED_PUSH.input, ASKED_PUSH.verify, "partial")])
    answers.saw(9, "run_shell_command", shell("git ls-remote origin main"))
    assert [end.finding for end in answers.ends([7], 1.0)] == ["partial"]


@pytest.mark.parametrize(
    ("tool", "command"),
    [
        ("run_shell_command", "echo git ls-remote origin main"),
        ("run_shell_command", "echo 'git ls-remote origin main'"),
        ("run_shell_command", "false && git ls-remote origin mai"),
        ("run_shell_command", "if false; then git ls-remote origin main; fi"),
        ("run_shell_command", "git ls-remote origin $BRANCH"),
        ("run_shell_command", "cd /elsewhere && git ls-remote origin main"),
        ("run_shell_command", "test -f nope && git ls-remote origin main; true"),
        ("run_shell_command", "git ls-remote origin main > /dev/null 2>&1"),
        ("run_shell_command", "GIT_DIR=x git ls-remote origin main"),
        ("run_shell_command", "git() { :; }; git ls-remote origin main"),
        ("run_shell_command", "git push origin main --force"),
        ("run_shell_command", "git push origin 'main"),
        ("other_tool", "git push origin main"),
    ],
)
def test_what_only_resembles_it_ends_nothing(tool: str, command: str) -> None:
    answers = Resolver([ASKED_PUSH])
    answers.saw(9, tool, shell(command))
    assert whys(answers, 7) == {}


def test_of_identical_calls_one_was_run_again_and_one_look_is_for_all() -> None:
    twins = [ASKED_PUSH, AskedCall(8, ASKED_PUSH.tool, ASKED_PUSH.input, ASKED_PUSH.verify)]
    answers = Resolver(twins)
    answers.saw(9, "run_shell_command", ASKED_PUSH.input or b"")
    assert list(whys(answers, 7, 8)) == [7]
    answers.saw(10, "run_shell_command", shell("git ls-remote origin main"))
    assert list(whys(answers, 7, 8)) == [8]
    both = Resolver(twins)
    both.saw(10, "run_shell_command", shell("git ls-remote origin main"))
    assert list(whys(both, 7, 8)) == [7, 8]


@pytest.mark.parametrize("junk", [b"", b"\xff", b"[]", b'{"command": 1}', b'{"command": "\\ud800"}', b"{" * 9999])
def test_junk_ends_nothing(junk: bytes) -> None:
    answers = Resolver([ASKED_PUSH, AskedCall(8, "x", None), AskedCall(9, "y", b"\xff", "((")])
    answers.saw(10, "run_shell_command", junk)
    assert whys(answers, 7, 8, 9) == {}
