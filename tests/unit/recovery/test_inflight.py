"""Check what the agent is asked to do about a call in flight, which findings carry over, and what resolves a call."""

from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from wal_agent.calls.call import ReadCall
from wal_agent.calls.checks import Reading
from wal_agent.calls.classify import classify_command
from wal_agent.calls.rules.project import ProjectRule
from wal_agent.calls.rules.table import Classified, load_rules, with_project
from wal_agent.records import Class, Finding, Recovery, Verdict
from wal_agent.recovery import inflight
from wal_agent.recovery.inflight import Advice, AskedCall, Resolver, advise, asked_call, carry_over
from wal_agent.wording.next_steps import ASK

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
    assert plain.next and "{" not in plain.next and "()" not in plain.next and plain.verify == ()
    told = advise(cls, finding, PUSH, RULES)
    looks = cls != "read_only" and finding in ("unknown", "partial")
    assert (
        (": run `git ls-remote origin main`." in told.next) == looks == (told.verify == ("git ls-remote origin main",))
    )
    assert told.look == ("`git ls-remote origin main`" if looks else "")
    if cls in ("mutation", "unknown") and finding == "unknown":
        assert told.next.endswith(ASK)


def test_what_the_rule_says_of_doubt_stands_before_the_operator() -> None:
    told = advise("mutation", "unknown", PUSH, RULES)
    assert told.next == (
        "First find out whether it happened: run `git ls-remote origin main`. Only if it did not, run it again. "
        f"If the remote names the commit that you meant to push, it is done.{ASK}"
    )


def test_a_projects_own_words_are_quoted_beside_the_built_in_ones() -> None:
    told = next_of(by_project("./deploy.sh", "./deploy.sh --status", ambiguous="run it again"))
    assert told.next == (
        f"First find out whether it happened: run `./deploy.sh --status`. Only if it did not, run it again.{ASK}"
        " In doubt, this project's rule says: `run it again`."
    )
    assert (told.look, told.verify) == ("`./deploy.sh --status`", ())
    for sentence in ("Ask the operator", "look at the dashboard", "run `x` and read its end"):
        told = next_of(by_project("./deploy.sh", sentence))
        assert ": this project's rule says: `" in told.next and told.look == ""
    told = next_of(by_project("git push origin main", "ls x"))
    assert ": run `git ls-remote origin main`; this project's rule says: `ls x`." in told.next


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
    """A rule of the project widens nothing that ends a call (I8)."""
    assert next_of(by_project(command, verify, cls)).verify == ((counts,) if counts else ())


@pytest.mark.parametrize("cls", ["read_only", "idempotent"])
@pytest.mark.parametrize("finding", get_args(Finding))
def test_a_milder_class_is_named_and_changes_no_step(cls: Class, finding: Finding) -> None:
    """A rule that says "do not run it again" does not become "run it again"."""
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
    assert told.verify == () and verify not in told.next and "whether it happened. Only" in told.next and not told.look


def test_a_sentence_is_told_as_it_is() -> None:
    told = advise("unknown", "unknown", replace(PUSH, verify="look at the file", ambiguous=""), RULES)
    assert told.next == f"First find out whether it happened: look at the file. Only if it did not, run it again.{ASK}"
    assert (told.verify, told.look) == ((), "")


def test_what_ran_elsewhere_is_to_be_looked_at_there() -> None:
    found = classify_command("ssh web1 'systemctl restart nginx'", RULES)
    told = advise(found.cls, "unknown", found, RULES)
    assert ": run `systemctl status nginx` (there, not here: it ran on web1)." in told.next
    assert (told.verify, told.look) == ((), "")


PUSH_AND_APPLY = "git push origin main && terraform apply -auto-approve"
BOTH_LOOKS = ("git ls-remote origin main", "terraform state list")


def test_each_command_of_a_text_is_to_be_verified() -> None:
    """I8: one that looks only at the push would run `terraform apply` a second time."""
    told = next_of(classify_command(PUSH_AND_APPLY, RULES))
    assert told.verify == BOTH_LOOKS
    assert ": run `git ls-remote origin main`; `terraform state list`; each in a call of its own." in told.next
    assert "names the commit" in told.next and "terraform plan" in told.next


@pytest.mark.parametrize("rest", ["./charge.sh 5", "npm test", "curl -X POST https://shop.example/charge", "$X"])
def test_where_one_command_can_only_be_looked_for_no_command_verifies_the_text(rest: str) -> None:
    for text in (f"git push origin main && {rest}", f"{rest}; git push origin main"):
        assert next_of(classify_command(text, RULES)).verify == ()


@pytest.mark.parametrize("rest", ["ls -l", "mkdir -p out"])
def test_a_command_that_is_harmless_to_repeat_needs_no_look(rest: str) -> None:
    found = classify_command(f"{rest} && git push origin main", RULES)
    assert next_of(found) == next_of(PUSH)


def test_a_projects_verification_of_one_command_does_not_end_a_text_of_several() -> None:
    rules = with_project(
        RULES, [ProjectRule("m", "mutation", "GEMINI.md", verify="cat ledger.txt", words=("./pay.sh",))]
    )
    assert next_of(classify_command("./pay.sh 5", rules)).verify == ("cat ledger.txt",)
    for text in ("./pay.sh 5 && ./mail.sh", "./pay.sh 5 && git push origin main"):
        told = next_of(classify_command(text, rules))
        assert "`cat ledger.txt`" in told.next and told.verify == ()


def test_many_commands_are_verified_by_four_and_a_look_for_the_rest() -> None:
    text = " && ".join(f"git push origin b{n}" for n in range(9))
    told = next_of(classify_command(text, RULES))
    assert told.next.count("git ls-remote origin b") == 5 and "its other commands" in told.next and told.verify == ()


@pytest.mark.parametrize(
    ("typed", "resolves"),
    [
        ("cd infra && terraform state list", True),
        ("cd infra  &&\nterraform state list", True),
        ("terraform state list", False),  # of another folder
        ("cd infra; terraform state list", False),
        ("cd infra && terraform state list || true", False),
    ],
)
def test_a_call_behind_cd_is_resolved_by_a_look_in_that_folder(typed: str, resolves: bool) -> None:
    known = classify_command("cd infra && terraform apply", RULES)
    told = next_of(known)
    assert told.verify == ("cd infra && terraform state list",) and f"`{told.verify[0]}`" in told.next
    answers = Resolver([AskedCall(7, "Bash", shell("cd infra && terraform apply"), told.verify)])
    answers.observe_call(8, ReadCall("Bash", shell(typed)))
    assert bool(whys(answers, 7)) == resolves


NOTHING = Verdict(call=3, finding="unknown", why="Not here.", verify="git ls-remote origin main")


def recovered(*verdicts: Verdict) -> Recovery:
    return Recovery(time=1.0, from_epoch=1, verdicts=verdicts, told="")


@pytest.mark.parametrize("finding", ["completed", "not_started"])
def test_a_finding_stands_where_nothing_is_known_any_more(finding: Finding) -> None:
    proof = Verdict(call=3, finding=finding, why="It is so.")
    (once,) = carry_over([NOTHING], recovered(proof), lambda call: True)
    assert once == Verdict(call=3, finding=finding, why="Found at the start before: It is so.", verify=NOTHING.verify)
    assert carry_over([NOTHING], recovered(once), lambda call: True) == (once,)


def test_what_is_seen_now_wins() -> None:
    seen = Verdict(call=3, finding="not_started", why="As before.")
    assert carry_over([seen], recovered(Verdict(call=3, finding="completed", why="x")), lambda call: True) == (seen,)


def test_a_finding_of_files_that_are_not_here_says_too_much() -> None:
    proof = recovered(Verdict(call=3, finding="completed", why="x"), Verdict(call=4, finding="completed", why="y"))
    four = Verdict(call=4, finding="unknown", why="")
    now = carry_over([NOTHING, four], proof, lambda call: call >= 4)
    assert [v.finding for v in now] == ["unknown", "completed"]


def test_nothing_stands_of_other_calls_or_of_no_recovery() -> None:
    assert carry_over([NOTHING], None, lambda call: True) == (NOTHING,)
    assert carry_over([NOTHING], recovered(), lambda call: True) == (NOTHING,)
    others = recovered(Verdict(call=2, finding="completed", why="x"), Verdict(call=3, finding="partial", why="x"))
    assert carry_over([NOTHING], others, lambda call: True) == (NOTHING,)


ASKED_PUSH = AskedCall(7, "run_shell_command", b'{"command": "git push origin main"}', ("git ls-remote origin main",))


def shell(command: str, **more: str) -> bytes:
    return json.dumps({"command": command, **more}).encode()


def whys(answers: Resolver, *open: int) -> dict[int, str]:
    return {end.call: end.why for end in answers.take_ends(open, 1.0)}


@pytest.mark.parametrize(
    "command", ["git ls-remote origin main", "git  ls-remote 'origin' main", " git ls-remote origin main # look"]
)
def test_looking_as_told_ends_it(command: str) -> None:
    answers = Resolver([ASKED_PUSH])
    answers.observe_call(9, ReadCall("Bash", shell(command)))
    assert whys(answers) == {}  # a person was faster
    assert whys(answers, 7) == {7: "the agent verified it with #9"}
    assert whys(answers, 7) == {}  # each has one end


def test_looking_in_another_folder_is_no_look() -> None:
    answers = Resolver([ASKED_PUSH])
    answers.observe_call(9, ReadCall("Bash", shell("git ls-remote origin main", dir_path="other")))
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
def test_only_what_is_done_where_the_call_ran_ends_it(ran: str, looked: str, ends: bool) -> None:
    """Claude Code's shell stays where a `cd` led it: the same words are about another repository there."""
    answers = Resolver([replace(ASKED_PUSH, folder=ran)], "/w")
    answers.observe_call(9, ReadCall("Bash", shell("git ls-remote origin main"), looked))
    assert bool(whys(answers, 7)) is ends


def test_what_the_agent_looked_with_is_kept_and_ends_nothing() -> None:
    """I8: a call that only reads and touches what the open one names is evidence for a person."""
    answers = Resolver([AskedCall(7, "run_shell_command", shell("./deploy.sh staging"))])
    answers.observe_call(8, ReadCall("Bash", shell("curl https://staging/health")))
    answers.observe_call(9, ReadCall("Bash", shell("kubectl get pods -n staging")))
    answers.observe_call(10, ReadCall("Bash", shell("kubectl delete pods -n staging")))
    answers.observe_call(11, ReadCall("Bash", shell("git status")))
    assert whys(answers, 7) == {}
    assert [(a.call, a.looked) for a in answers.answers([7], 1.0)] == [(7, (9, 10))]
    assert answers.answers([], 1.0) == []


def test_running_it_again_ends_nothing() -> None:
    """I8: the second push says nothing about the first."""
    answers = Resolver([ASKED_PUSH])
    answers.observe_call(9, ReadCall("Bash", shell("git push origin main", description="once more")))
    assert answers.take_ends([7], 1.0) == [] and [a.looked for a in answers.answers([7], 1.0)] == [(9,)]


def test_a_look_counts_for_the_calls_that_it_touches_alone() -> None:
    deploy, charge = (
        AskedCall(n, "Bash", shell(text)) for n, text in ((7, "./deploy.sh staging"), (8, "./charge.sh 5"))
    )
    answers = Resolver([deploy])
    answers.ask(charge)
    answers.observe_call(9, ReadCall("Bash", shell("cat deploy.log staging")))
    answers.observe_call(10, ReadCall("Bash", shell("ls")))
    found = [(a.call, a.looked) for a in answers.answers([7, 8], 1.0)]
    assert found == [(7, (9,))], "of this run's own calls nobody has asked the agent yet"


def test_what_was_told_to_be_known_is_what_its_end_says() -> None:
    answers = Resolver([AskedCall(7, ASKED_PUSH.tool, ASKED_PUSH.input, ASKED_PUSH.verify, "partial")])
    answers.observe_call(9, ReadCall("Bash", shell("git ls-remote origin main")))
    assert [end.finding for end in answers.take_ends([7], 1.0)] == ["partial"]


@pytest.mark.parametrize(
    "command",
    [
        "echo git ls-remote origin main",
        "echo 'git ls-remote origin main'",
        "false && git ls-remote origin mai",
        "if false; then git ls-remote origin main; fi",
        "git ls-remote origin $BRANCH",
        "cd /elsewhere && git ls-remote origin main",
        "test -f nope && git ls-remote origin main; true",
        "git ls-remote origin main > /dev/null 2>&1",
        "GIT_DIR=x git ls-remote origin main",
        "git() { :; }; git ls-remote origin main",
        "git push origin main --force",
        "git push origin 'main",
    ],
)
def test_what_only_resembles_it_ends_nothing(command: str) -> None:
    answers = Resolver([ASKED_PUSH])
    answers.observe_call(9, ReadCall("Bash", shell(command)))
    assert whys(answers, 7) == {}


def test_one_look_is_for_all_identical_calls() -> None:
    both = Resolver([ASKED_PUSH, AskedCall(8, ASKED_PUSH.tool, ASKED_PUSH.input, ASKED_PUSH.verify)])
    both.observe_call(10, ReadCall("Bash", shell("git ls-remote origin main")))
    assert list(whys(both, 7, 8)) == [7, 8]


@given(st.lists(st.sampled_from([*BOTH_LOOKS, "git log", PUSH_AND_APPLY.replace("push", "fetch")]), max_size=6))
def test_a_text_of_several_commands_is_resolved_once_each_was_verified(typed: list[str]) -> None:
    answers = Resolver([AskedCall(7, "Bash", shell(PUSH_AND_APPLY), BOTH_LOOKS)])
    for n, words in enumerate(typed, 8):
        answers.observe_call(n, ReadCall("Bash", shell(words)))
    assert bool(whys(answers, 7)) == ({*BOTH_LOOKS} <= {*typed})


@pytest.mark.parametrize("junk", [b"", b"\xff", b"[]", b'{"command": 1}', b'{"command": "\\ud800"}', b"{" * 9999])
def test_junk_ends_nothing(junk: bytes) -> None:
    answers = Resolver([ASKED_PUSH, AskedCall(8, "x", None), AskedCall(9, "y", b"\xff", ("((",))])
    answers.observe_call(10, ReadCall("Bash", junk))
    assert whys(answers, 7, 8, 9) == {}


DEPLOY = AskedCall(7, "Bash", shell("./deploy.sh staging"))
LOOKS = ("make ready", "ls", "git log -1")


@pytest.mark.parametrize("look", ["./deploy.sh --status staging", "cat logs/staging"])
def test_a_repeated_call_in_flight_runs_once_something_that_touches_it_has_looked(look: str) -> None:
    answers = Resolver([DEPLOY])
    answers.observe_call(8, ReadCall("Bash", shell(look)))
    assert answers.refuse(ReadCall("Bash", DEPLOY.input or b"", ""), {7}) is None


def test_behind_the_refusal_any_other_call_may_have_looked() -> None:
    """An agent looks with scripts of its own, which name nothing."""
    answers = Resolver([DEPLOY])
    answers.observe_call(8, ReadCall("Bash", shell("make ready")))
    assert answers.refuse(ReadCall("Bash", DEPLOY.input or b"", ""), {7}) == DEPLOY
    answers.observe_call(9, ReadCall("Bash", shell("make ready")))
    assert answers.refuse(ReadCall("Bash", DEPLOY.input or b"", ""), {7}) is None


@given(st.lists(st.sampled_from(["again", *LOOKS]), max_size=12), st.sets(st.sampled_from([7, 8])))
def test_a_call_in_flight_is_refused_until_a_look_and_never_behind_one(typed: list[str], open_calls: set[int]) -> None:
    """Only while it is open, and only calls that equal it: the way out is never closed."""
    answers, refused, looked, run = Resolver([DEPLOY]), False, False, False
    for n, word in enumerate(typed, 9):
        words = "./deploy.sh staging" if word == "again" else word
        input = shell(words, description=f"try {n}")
        found = answers.refuse(ReadCall("Bash", input, ""), open_calls)
        if found is not None:
            assert word == "again" and 7 in open_calls and not looked
            refused = True
            continue
        assert word != "again" or looked or run or 7 not in open_calls
        run = run or word == "again"
        answers.observe_call(n, ReadCall("Bash", input))
        looked = looked or refused


def test_refusals_of_a_call_are_counted_until_another_succeeds_or_the_agent_is_prompted() -> None:
    """Decision 052: each call apart, since a batch of several may be refused before the agent has read of one."""
    charge, other = AskedCall(7, "Bash", shell("./charge 1")), AskedCall(8, "Bash", shell("./charge 2"))
    answers = Resolver([charge, other])

    def repeat(asked: AskedCall) -> int:
        assert answers.refuse(ReadCall("Bash", asked.input or b"", ""), {7, 8}) == asked
        return answers.refused(asked.call)

    assert [repeat(charge), repeat(charge), repeat(other), repeat(charge)] == [1, 2, 1, 3]
    answers.begin_turn()
    assert [repeat(charge), repeat(charge), repeat(other)] == [1, 2, 1]
    answers.observe_call(9, ReadCall("Bash", shell("ls")))
    assert answers.refused(7) == answers.refused(8) == 0


@pytest.mark.parametrize(
    ("tool", "typed", "cwd"),
    [
        ("Bash", "timeout 60 ./deploy.sh staging", ""),
        ("run_shell_command", "R=$(bash deploy.sh 'staging'); echo $R", ""),
        ("bash", "cd .. && /w/deploy.sh staging && ./mail.sh", "/w/sub"),
    ],
)
def test_a_call_in_flight_is_refused_in_other_words_and_by_other_agents(tool: str, typed: str, cwd: str) -> None:
    """A real model passed the comparison of texts. tests/unit/calls has all spellings."""
    answers = Resolver([DEPLOY], "/w")
    assert answers.refuse(ReadCall(tool, shell(typed, timeout="4"), cwd), {7}) == DEPLOY


def test_of_calls_that_a_text_repeats_each_is_to_be_looked_at() -> None:
    pay = AskedCall(8, "Bash", shell("./pay.sh 5"))
    answers, both = Resolver([DEPLOY, replace(DEPLOY, call=9), pay]), shell("./deploy.sh staging && ./pay.sh 5")
    assert answers.refuse(ReadCall("Bash", both, ""), {7, 8, 9}) == DEPLOY
    answers.observe_call(10, ReadCall("Bash", shell("make ready")))
    assert answers.refuse(ReadCall("Bash", both, ""), {7, 8, 9}) == pay, "the identical one is looked at with the first"
    answers.observe_call(11, ReadCall("Bash", shell("make ready")))
    assert answers.refuse(ReadCall("Bash", both, ""), {7, 8, 9}) is None


def test_a_call_is_read_only_where_one_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """I9: no hook waits for it."""
    monkeypatch.setattr(inflight, "find_runs", None)
    for calls, open_calls in (([], {7}), ([DEPLOY], set[int]()), ([replace(DEPLOY, finding="partial")], {7})):
        assert Resolver(calls).refuse(ReadCall("Bash", DEPLOY.input or b"", ""), open_calls) is None


@pytest.mark.parametrize("finding", ["completed", "not_started", "partial"])
def test_a_call_whose_outcome_was_told_is_not_refused(finding: Finding) -> None:
    answers = Resolver([replace(DEPLOY, finding=finding)])
    assert answers.refuse(ReadCall("Bash", DEPLOY.input or b"", ""), {7}) is None


def test_only_the_very_call_is_refused() -> None:
    answers = Resolver([replace(DEPLOY, folder="/other"), AskedCall(8, "Bash", None)], "/w")
    for tool, input, cwd in (
        ("Write", DEPLOY.input, "/other"),
        ("Bash", shell("./deploy.sh production"), "/other"),
        ("Bash", DEPLOY.input, "/w"),
        ("Bash", DEPLOY.input, ""),
        ("Bash", b"\xff", "/other"),
    ):
        assert answers.refuse(ReadCall(tool, input or b"", cwd), {7, 8}) is None
    assert answers.refuse(ReadCall("Bash", DEPLOY.input or b"", "/other"), {7, 8}) is not None


# ---- checks behind `cd` (decision 064)


@pytest.mark.parametrize(
    ("command", "check", "behind"),
    [
        ("python3 tools/refund.py", "python3 tools/refunded.py 7", True),
        ("school invite", "school letters 7", True),
        ("bin/credit", "bin/credited 7", True),
        ("./cancelled.sh", "./cancel.sh 7", True),
        ("./charge.sh", "./charge-status.sh 7", False),
        ("./pay.sh", "./paid.sh 7", False),
        ("./pay.sh", "./ledger.sh 7", False),
        ("make release", "git tag -l v7", False),
        ("git push", "git tag -l v7", False),
        ("kubectl apply", "kubectl get pods", False),
        ("bin/credit", 'bin/credited "7"', False),
        ("bin/credit", "bin/credited \\7", False),
        ("bin/credit", "bin/credited 7\nls", False),
        ("bin/credit", "bin/credited token=ghp_" + "a1B2c3D4e5" * 4, False),
    ],
)
def test_a_check_that_a_model_mistakes_for_the_call_begins_otherwise(command: str, check: str, behind: bool) -> None:
    """Only where it is shown whole, and the built-in rules do not know it."""
    mine = ProjectRule("mine", "mutation", "AGENTS.md", verify=check, words=tuple(command.split()))
    rules = with_project(RULES, [mine])
    for cwd, folder in (("", "'/w/my shop'"), ("/elsewhere", "/elsewhere")):
        call = ReadCall("Bash", shell(f"true; {command} 7"), cwd)
        named, plain = (asked_call(7, call, "mutation", rules, workspace="/w/my shop", cd=cd) for cd in (True, False))
        assert plain.look.startswith("`") and replace(named, behind_cd="") == plain
        assert named.behind_cd == (f'"cd {folder} && {check}"' if behind else "")


SHOP = "/w/my shop"
VOTED = AskedCall(7, "Bash", shell("ruby vote.rb 8"), ("ruby voted.rb 8",))


@pytest.mark.parametrize("cwd", ["", SHOP, f"{SHOP}/src", "/"])
@pytest.mark.parametrize("check", ["ruby voted.rb 8", "ruby  'voted.rb' 8"])
def test_a_check_behind_cd_verifies_wherever_the_shell_is(cwd: str, check: str) -> None:
    read = replace(VOTED, reads=(Reading("ruby voted.rb 8", "voted", "AGENTS.md"),))
    for verifies in (Resolver([VOTED], SHOP), Resolver([replace(VOTED, folder=SHOP)], "/w"), Resolver([read], SHOP)):
        call = ReadCall("Bash", shell(f"cd '{SHOP}' && {check}"), cwd)
        verifies.read_check(8, call, True, printed("voted"), lambda _: True)
        verifies.observe_call(8, call)
        assert list(whys(verifies, 7)) == [7]


@pytest.mark.parametrize(
    "typed",
    [
        "cd /w && ruby voted.rb 8",
        f"cd {SHOP} && ruby voted.rb 8",
        f"cd '{SHOP}/src' && ruby voted.rb 8",
        f"cd '{SHOP}'; ruby voted.rb 8",
        f"cd '{SHOP}' || ruby voted.rb 8",
        f"cd '{SHOP}' && cd .. && ruby voted.rb 8",
        f"cd '{SHOP}' && ruby voted.rb 8 > /dev/null",
        f"cd '{SHOP}' && echo ruby voted.rb 8",
    ],
)
def test_nor_does_one_behind_another_cd(typed: str) -> None:
    answers = Resolver([VOTED], SHOP)
    answers.observe_call(8, ReadCall("Bash", shell(typed), ""))
    assert whys(answers, 7) == {}


# ---- checks that can be read (decision 063)

STATUS = "./status.sh staging"
READ = replace(DEPLOY, reads=(Reading(STATUS, "deployed", "AGENTS.md"),))


def printed(text: str) -> bytes:
    return json.dumps({"stdout": text}).encode()


def look(answers: Resolver, call: int, text: str, well: bool = True, typed: str = STATUS, once: bool = True) -> bool:
    found = answers.read_check(call, ReadCall("Bash", shell(typed), ""), well, printed(text), lambda _: once)
    if well:
        answers.observe_call(call, ReadCall("Bash", shell(typed)), changes=not found)
    return found


def again(answers: Resolver, open_calls: frozenset[int] = frozenset()) -> AskedCall | None:
    return answers.refuse(ReadCall("Bash", shell("timeout 9 ./deploy.sh staging"), ""), open_calls)


def test_a_check_that_shows_that_it_happened_resolves_the_call_and_refuses_an_equal_one() -> None:
    """I8: a real model ran the check, read that it had happened, and did it again."""
    answers = Resolver([READ])
    assert look(answers, 8, "one\ndeployed\n")
    (end,) = answers.take_ends({7}, 1.0)
    assert (end.how, end.by, end.finding) == ("verified", "recovery", "completed")
    assert "AGENTS.md" in end.why and STATUS in end.why and "deployed" in end.why
    for n in range(1, 4):
        assert again(answers) == READ and answers.refused(7) == n
        look(answers, 8 + n, "deployed")  # looking once more is no other work
    shown = answers.shown(7)
    assert shown is not None and (shown.call, shown.output) == (11, "deployed")


def test_the_refusal_ends_once_the_work_goes_on_or_the_agent_is_prompted_or_a_check_says_otherwise() -> None:
    for go_on in (
        lambda a: a.observe_call(9, ReadCall("Bash", shell("./mail.sh"), ""), True),
        lambda a: a.begin_turn(),
        lambda a: look(a, 9, "rolled back"),
    ):
        answers = Resolver([READ])
        look(answers, 8, "deployed")
        assert again(answers) == READ
        answers.observe_call(9, ReadCall("Bash", shell("ls")))
        assert again(answers) == READ, "what only reads is no work"
        go_on(answers)
        assert again(answers) is None and answers.shown(7) is None


@pytest.mark.parametrize(
    ("text", "well", "typed", "once"),
    [
        ("not deployed", True, STATUS, True),
        ("deployed to production", True, STATUS, True),
        ("", True, STATUS, True),
        ("deployed", True, f"{STATUS} || true", True),
        ("deployed", True, "./status.sh staging --all", True),
        ("deployed", True, STATUS, False),  # it may show the equal call that was done before
    ],
)
def test_whatever_else_a_check_prints_it_is_a_look_as_before(text: str, well: bool, typed: str, once: bool) -> None:
    answers = Resolver([READ])
    look(answers, 8, text, well, typed, once)
    assert answers.take_ends({7}, 1.0) == [] and answers.shown(7) is None
    assert again(answers, frozenset({7})) is None, "it touches what the call names"


def test_a_check_of_two_calls_shows_neither() -> None:
    answers = Resolver([READ, replace(READ, call=8)])
    look(answers, 9, "deployed")
    assert answers.take_ends({7, 8}, 1.0) == []


def test_a_check_that_fails_shows_a_line_of_its_output_and_nothing_else() -> None:
    """`kubectl get` of what is gone fails, and says so."""
    gone = Reading("kubectl get pod x", 'Error from server (NotFound): * "x" not found')
    answers = Resolver([AskedCall(7, "Bash", shell("kubectl delete pod x"), reads=(gone,))])
    look(answers, 8, "The connection to the server was refused", False, gone.command)
    assert answers.take_ends({7}, 1.0) == [] and answers.unlooked({7})
    look(answers, 9, 'Error from server (NotFound): pods "x" not found', False, gone.command)
    assert [e.finding for e in answers.take_ends({7}, 1.0)] == ["completed"]


def test_of_several_checks_each_has_to_show_it() -> None:
    reads = tuple(Reading(check, "exit 0") for check in ("cat a", "cat b"))
    answers = Resolver([AskedCall(7, "Bash", shell("touch-a && touch-b"), reads=reads)])
    look(answers, 8, "", True, "cat a")
    assert answers.take_ends({7}, 1.0) == []
    look(answers, 9, "", True, "cat b")
    assert [e.finding for e in answers.take_ends({7}, 1.0)] == ["completed"]


@pytest.mark.parametrize("finding", ["completed", "not_started", "partial"])
def test_evidence_goes_before_what_a_check_is_read_to_show(finding: Finding) -> None:
    answers = Resolver([replace(READ, finding=finding)])
    assert not look(answers, 8, "deployed") and answers.take_ends({7}, 1.0) == []


@pytest.mark.parametrize(
    ("command", "verify", "reads"),
    [
        ("./deploy.sh x", "./status.sh", True),  # the built-in rules do not know it
        ("./deploy.sh x", "Run `./status.sh`.", True),
        ("./deploy.sh x", "true", False),  # shows nothing
        ("curl -X POST https://x", "./status.sh", False),  # they know it, and cannot know this check
        ("curl -X POST https://x", "curl -s https://x", True),
        ("git push origin main", "git status", False),  # they name a check of their own
        ("cat x", "./status.sh", False),
    ],
)
def test_whose_check_a_project_may_read(command: str, verify: str, reads: bool) -> None:
    """Decision 063: a project says how to read its own check where the built-in rules say nothing of the call."""
    words = tuple(command.split()[:1])
    mine = ProjectRule("mine", "mutation", "GEMINI.md", verify=verify, done_if="deployed", words=words)
    told = next_of(classify_command(command, with_project(RULES, [mine])))
    theirs = [r for r in told.reads if r.source]
    assert [r.command for r in theirs] == ([verify.removeprefix("Run `").removesuffix("`.")] if reads else [])


def test_a_milder_class_of_a_project_reads_nothing() -> None:
    mine = ProjectRule("m", "read_only", "GEMINI.md", verify="./status.sh", done_if="exit 0", words=("./deploy.sh",))
    assert next_of(classify_command("./deploy.sh", with_project(RULES, [mine]))).reads == ()


@pytest.mark.parametrize(
    ("command", "check", "done_if"),
    [
        ("gh pr merge -b 9 12 --squash", "gh pr view 12 --json state,mergedAt,mergeCommit", '{*"state":"MERGED"*}'),
        ("kubectl delete pod x", "kubectl get pod x", 'Error from server (NotFound): * "x" not found'),
        ("kubectl -n prod delete pod x", "kubectl -n prod get pod x", 'Error from server (NotFound): * "x" not found'),
        ("kubectl delete pod x y", "", ""),
        ("kubectl delete pod,svc x", "", ""),
        ("gh pr merge 12 && ./tell.sh", "", ""),
        ("git push --delete origin x", "", ""),
        ("git push origin main", "", ""),  # not without the commit that it was to send
    ],
)
def test_the_built_in_checks_that_can_be_read(command: str, check: str, done_if: str) -> None:
    told = next_of(classify_command(command, RULES))
    assert told.reads == ((Reading(check, done_if),) if check else ())
    assert not check or told.verify == (check,)


def test_a_push_is_read_by_the_commit_that_it_was_to_send() -> None:
    told = advise("mutation", "unknown", PUSH, RULES, sent=f"{'a' * 40} refs/heads/main")
    answers = Resolver([replace(ASKED_PUSH, reads=told.reads)])
    look(answers, 8, f"{'b' * 40}\trefs/heads/main", True, "git ls-remote origin main")
    assert [e.finding for e in answers.take_ends({7}, 1.0)] == ["unknown"], "the agent decides, as before"
    answers = Resolver([replace(ASKED_PUSH, reads=told.reads)])
    look(answers, 8, f"{'a' * 40}\trefs/heads/main", True, "git ls-remote origin main")
    assert [e.finding for e in answers.take_ends({7}, 1.0)] == ["completed"]


@given(st.lists(st.sampled_from(["again", "deployed", "no", "work", "read", "fails"]), max_size=12))
def test_a_check_that_is_read_only_ever_refuses_more(typed: list[str]) -> None:
    """I1, I8: with a `done_if` no call runs that would be refused without it, and none that is no repetition is."""
    plain, read = Resolver([DEPLOY]), Resolver([READ])
    happened = False
    for n, word in enumerate(typed, 9):
        if word == "again":
            refused = [again(answers, frozenset({7})) is not None for answers in (plain, read)]
            assert refused[1] or not refused[0] or happened, "resolved, and the work has gone on"
            if any(refused):
                continue
            for answers in (plain, read):
                answers.observe_call(n, ReadCall("Bash", shell("./deploy.sh staging")), changes=True)
            continue
        assert read.refuse(ReadCall("Bash", shell("./mail.sh"), ""), {7}) is None
        happened = happened or word == "deployed"
        for answers in (plain, read):
            if word in ("deployed", "no"):
                look(answers, n, word)
            elif word == "fails":
                look(answers, n, "deploy", False)
            else:
                answers.observe_call(
                    n, ReadCall("Bash", shell("make x" if word == "work" else "ls")), changes=word == "work"
                )
