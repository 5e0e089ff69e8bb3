"""The next step: one for every class and finding, with a command only where that reads."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from wal_agent.records import Class, Finding
from wal_agent.recovery.advice import ASK, Advice, advise
from wal_agent.recovery.declared import ProjectRule
from wal_agent.shell.classify import classify_command
from wal_agent.shell.rules import Classified, load_rules, with_project

RULES = load_rules()
PUSH = classify_command("git push origin main", RULES)


def by_project(command: str, verify: str, cls: Class = "mutation", ambiguous: str = "") -> Classified:
    """A command as the rules have it, where the project has one for it too."""
    words = tuple(command.split())
    mine = ProjectRule("mine", cls, "GEMINI.md", verify=verify, ambiguous=ambiguous, words=words)
    return classify_command(command, with_project(RULES, [mine]))


def next_of(known: Classified) -> Advice:
    return advise(known.cls, "unknown", known, RULES)


@pytest.mark.parametrize("cls", get_args(Class))
@pytest.mark.parametrize("finding", get_args(Finding))
def test_every_finding_has_a_next_step(cls: Class, finding: Finding) -> None:
    plain = advise(cls, finding, replace(PUSH, verify="", ambiguous=""), RULES)
    assert plain.next and "{" not in plain.next and "()" not in plain.next and plain.verify == ""
    told = advise(cls, finding, PUSH, RULES)
    looks = cls != "read_only" and finding in ("unknown", "partial")
    assert ("(`git ls-remote origin main`)" in told.next) == looks == (told.verify == "git ls-remote origin main")
    if cls in ("mutation", "unknown") and finding == "unknown":
        assert told.next.endswith(ASK)


def test_what_the_rule_says_of_doubt_stands_before_the_operator() -> None:
    told = advise("mutation", "unknown", PUSH, RULES)
    assert told.next == (
        "Do not run it again before you have verified that it did not happen (`git ls-remote origin main`). "
        f"If the remote names the commit that you meant to push, it is done.{ASK}"
    )


def test_a_projects_own_words_are_quoted_beside_the_built_in_ones() -> None:
    told = next_of(by_project("./deploy.sh", "./deploy.sh --status", ambiguous="run it again"))
    assert told.next == (
        f"Do not run it again before you have verified that it did not happen (`./deploy.sh --status`).{ASK}"
        " In doubt, this project's rule says: `run it again`."
    )
    told = next_of(by_project("git push origin main", "ls x"))
    assert "(`git ls-remote origin main`; this project's rule says: `ls x`)" in told.next


@pytest.mark.parametrize(
    ("command", "verify", "cls", "counts"),
    [
        ("./deploy.sh", "curl -s https://shop.example/version", "mutation", "curl -s https://shop.example/version"),
        ("./deploy.sh", "cat ledger.txt", "unknown", "cat ledger.txt"),
        ("./deploy.sh", "cat ledger.txt", "idempotent", ""),  # milder than what is known
        ("./deploy.sh", "./deploy.sh --status", "mutation", ""),  # may change something
        ("./deploy.sh", "ls > x", "mutation", ""),
        ("./deploy.sh", "true", "mutation", ""),  # shows nothing
        ("./deploy.sh", "echo it is done", "mutation", ""),
        ("git push origin main", "cat ledger.txt", "mutation", "git ls-remote origin main"),
        ("git push origin main", "cat ledger.txt", "read_only", "git ls-remote origin main"),
    ],
)
def test_what_a_project_verifies_with_counts_only_where_nothing_better_is_known(
    command: str, verify: str, cls: Class, counts: str
) -> None:
    """Issue 12.4: a rule of the project widens nothing that ends a call (I8)."""
    assert next_of(by_project(command, verify, cls)).verify == counts


@pytest.mark.parametrize("cls", ["read_only", "idempotent"])
@pytest.mark.parametrize("finding", get_args(Finding))
def test_a_milder_class_is_named_and_changes_no_step(cls: Class, finding: Finding) -> None:
    """Issue 12.4: "do not run it again" does not become "run it again"."""
    known, plain = by_project("git push origin main", "", cls), PUSH
    told, alone = (advise("mutation", finding, k, RULES) for k in (known, plain))
    assert told.next.startswith(alone.next) and told.verify == alone.verify
    if told.next != alone.next:
        claim = f" This project's rule `mine` in `GEMINI.md` calls it {cls}, which does not replace this step."
        assert told.next == f"{alone.next}{claim}"


@pytest.mark.parametrize(
    "verify", ["git ls-remote 'ext::sh -c rm% x' main", "git push", "ls > x", "git ls-remote `rm x`"]
)
def test_a_command_that_may_change_something_is_not_told(verify: str) -> None:
    """What it is filled with comes from the call, so from whoever wrote that."""
    told = advise("mutation", "unknown", replace(PUSH, verify=verify), RULES)
    assert told.verify == "" and verify not in told.next and "it did not happen. If" in told.next


def test_a_sentence_is_told_as_it_is() -> None:
    told = advise("unknown", "unknown", replace(PUSH, verify="look at the file", ambiguous=""), RULES)
    assert told.next == f"Verify first (look at the file).{ASK}" and told.verify == ""


def test_what_ran_elsewhere_is_to_be_looked_at_there() -> None:
    found = classify_command("ssh web1 'systemctl restart nginx'", RULES)
    told = advise(found.cls, "unknown", found, RULES)
    assert "(`systemctl status nginx` (there, not here: it ran on web1))" in told.next and told.verify == ""
