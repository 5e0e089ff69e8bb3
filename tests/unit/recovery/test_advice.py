"""The next step: one for every class and finding, with a command only where that reads."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from wal_agent.records import Class, Finding
from wal_agent.recovery.advice import ASK, advice
from wal_agent.recovery.classify import Classified, classify_command
from wal_agent.recovery.rules import load_rules

RULES = load_rules()
PUSH = classify_command("git push origin main", RULES)
DEPLOY = Classified("unknown", "deploy", "x", "./deploy.sh --status", "ask in #ops", "GEMINI.md")


@pytest.mark.parametrize("cls", get_args(Class))
@pytest.mark.parametrize("finding", get_args(Finding))
def test_every_finding_has_a_next_step(cls: Class, finding: Finding) -> None:
    plain = advice(cls, finding, replace(PUSH, verify="", ambiguous=""), RULES)
    assert plain.next and "{" not in plain.next and "()" not in plain.next and plain.verify == ""
    told = advice(cls, finding, PUSH, RULES)
    looks = cls != "read_only" and finding in ("unknown", "partial")
    assert ("(`git ls-remote origin main`)" in told.next) == looks == (told.verify == "git ls-remote origin main")
    if cls in ("mutation", "unknown") and finding == "unknown":
        assert told.next.endswith(ASK)


def test_what_the_rule_says_of_doubt_stands_before_the_operator() -> None:
    told = advice("mutation", "unknown", PUSH, RULES)
    assert told.next == (
        "Do not run it again before you have verified that it did not happen (`git ls-remote origin main`). "
        f"If the remote names the commit that you meant to push, it is done.{ASK}"
    )


def test_a_projects_own_words_are_quoted_and_win() -> None:
    told = advice("unknown", "unknown", DEPLOY, RULES)
    assert told.next == "Verify first (`./deploy.sh --status`). If that leaves doubt: `ask in #ops`."
    assert told.verify == "./deploy.sh --status"


@pytest.mark.parametrize(
    "verify", ["git ls-remote 'ext::sh -c rm% x' main", "git push", "ls > x", "git ls-remote `rm x`"]
)
def test_a_command_that_may_change_something_is_not_told(verify: str) -> None:
    """What it is filled with comes from the call, so from whoever wrote that."""
    told = advice("mutation", "unknown", replace(PUSH, verify=verify), RULES)
    assert told.verify == "" and verify not in told.next and "it did not happen. If" in told.next


def test_a_sentence_is_told_as_it_is() -> None:
    told = advice("unknown", "unknown", replace(PUSH, verify="look at the file", ambiguous=""), RULES)
    assert told.next == f"Verify first (look at the file).{ASK}" and told.verify == ""


def test_what_ran_elsewhere_is_to_be_looked_at_there() -> None:
    found = classify_command("ssh web1 'systemctl restart nginx'", RULES)
    told = advice(found.cls, "unknown", found, RULES)
    assert "(`systemctl status nginx` (there, not here: it ran on web1))" in told.next and told.verify == ""
