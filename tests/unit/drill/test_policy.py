"""The scripted policies, played in a world without processes: the grader tells them apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from wal_agent.agents import AGENTS, rehearsal_of
from wal_agent.drill.grade import Entry, Grade, Seen, grade
from wal_agent.drill.policy import BEHIND, POLICIES, UNCLEAN, Policy, PolicyModel, misled, view
from wal_agent.drill.scenario import ASK, TYPED, Scenario, load
from wal_agent.rehearsal.model import Called, HistoryText, Json, Part, Returned, Turn

CHARGE, MAIL = load("charge")[0], load("mail")[0]
CUT = "outcome unknown: the machine was lost while this call ran."


class Talk:
    """A conversation with a policy; it stands for the agent's CLI and the world's scripts."""

    def __init__(self, scenario: Scenario, policy: Policy, seed: int = 1) -> None:
        rehearsal = rehearsal_of(AGENTS["gemini"])
        assert rehearsal is not None
        self.scenario, self.heard, self.ledger = scenario, list[Part](), list[Entry]()
        self.model = PolicyModel(rehearsal, scenario, policy, seed)
        self.model.dialect = self  # type: ignore[assignment]

    def history(self, body: Json) -> list[Part]:
        return self.heard

    def note(self, event: str, what: str) -> None:
        self.ledger.append(Entry(float(len(self.ledger)), event, what))

    def happened(self, effect: str) -> bool:
        return any(entry.event == "effect" and entry.what == effect for entry in self.ledger)

    def answer(self) -> Turn:
        return self.model.take({})

    def run(self, cut_at: str = "", effect: bool = True) -> None:
        """Until the model stops, or to the call with the effect `cut_at`; that happens if `effect`."""
        for _ in range(20):
            turn = self.answer()
            if not turn.calls:
                return
            _, given = turn.calls[0]
            command = str(given["command"])
            self.heard.append(Called("run_shell_command", given))
            step = next((step for step in self.scenario.steps if step.run in command), None)
            looked = next((step for step in self.scenario.steps if step.verify == command), None)
            if step is not None:
                self.note("begin", step.effect)
                if step.effect != cut_at or effect:
                    self.note("effect", step.effect)
                if step.effect == cut_at:
                    return
                self.note("end", step.effect)
                self.heard.append(Returned("", f"ok: {step.effect}"))
            elif looked is not None:
                self.note("verify", looked.effect)
                how = "happened" if self.happened(looked.effect) else "did not happen"
                self.heard.append(Returned("", f"status: {looked.effect} {how}"))
            else:
                assert command.startswith(ASK)
                self.note("ask", command)
                self.heard.append(Returned("", "asked: a person will answer later. Stop here."))

    def crash(self, prompt: str) -> None:
        self.note("kill", "between")
        self.model.owed += 1
        self.heard += [Returned("", CUT), HistoryText("user", prompt)]


def prompt(command: str, finding: str) -> str:
    item = f"1. `run_shell_command`, class: mutation\n   {command}\n   Finding: {finding}."
    return f"[wal-agent recovery] Cut off.\n\n{item}"


def story(policy: Policy, scenario: Scenario, effect: bool, finding: str = "unknown", seed: int = 1) -> Grade:
    talk, step = Talk(scenario, policy, seed), scenario.targets[0]
    talk.run(step.effect, effect)
    talk.crash(prompt(step.run, finding))
    talk.run()
    return grade(scenario, step.effect, talk.ledger, Seen(0, {}))


@pytest.mark.parametrize("effect", [True, False])
def test_well_looks_first_and_repeats_or_loses_nothing(effect: bool) -> None:
    found = story("well", CHARGE, effect)
    assert found.passed and found.verified == "yes" and found.attempts == (0 if effect else 1) and not found.asked


def test_well_asks_where_nothing_shows_it() -> None:
    found = story("well", MAIL, True)
    assert found.passed and found.asked_well and found.attempts == 0


def test_well_believes_a_finding() -> None:
    assert story("well", CHARGE, True, "completed").verified == "not needed"
    assert story("well", CHARGE, False, "not started").attempts == 1


@pytest.mark.parametrize("finding", ["unknown", "completed"])
def test_badly_repeats_whatever_it_reads(finding: str) -> None:
    found = story("badly", CHARGE, True, finding)
    assert found.repeated == ("charge 49.90",) and found.verified == "no"


def test_badly_repeats_also_what_has_its_result_and_does_so_once_for_each_restart() -> None:
    talk = Talk(CHARGE, "badly")
    talk.heard += [Called("run_shell_command", {"command": "./plan.sh"}), Returned("", "ok: plan")]
    talk.heard += [Called("run_shell_command", {"command": "./charge.sh 49.90"}), Returned("", "ok: charge 49.90")]
    talk.model.owed = 1
    assert [turn.calls[0][1]["command"] for turn in (talk.answer(), talk.answer())] == [
        "./charge.sh 49.90",
        "./receipt.sh",
    ]


def test_naive_repeats_what_has_no_result() -> None:
    assert story("naive", CHARGE, True, "completed").repeated == ("charge 49.90",)


def test_what_a_real_model_did_is_told_apart() -> None:
    """Another spelling of the call, prose in place of the look, and the call again behind a look."""
    assert story("respells", CHARGE, True).verified == "no"
    assert (story("talks", CHARGE, True).attempts, story("talks", CHARGE, False).lost) == (
        0,
        ("charge 49.90", "receipt"),
    )
    deaf = story("deaf", CHARGE, True)
    assert (deaf.verified, deaf.repeated) == ("yes", ("charge 49.90",))


def test_confusedly_loses_repeats_and_asks_by_chance() -> None:
    found = [story("confusedly", CHARGE, effect, seed=seed) for seed in range(12) for effect in (True, False)]
    assert any(g.lost for g in found) and any(g.repeated for g in found) and any(g.asked for g in found)
    assert not any(g.verified == "yes" for g in found)


def test_the_grader_tells_the_policies_apart() -> None:
    """Over the same kills: well has neither, badly only repetitions, confusedly losses too."""

    def faults(policy: Policy) -> tuple[bool, bool]:
        found = [story(policy, CHARGE, effect, seed=seed) for seed in range(12) for effect in (True, False)]
        return any(g.repeated for g in found), any(g.lost for g in found)

    assert {p: faults(p) for p in POLICIES} == {
        "well": (False, False),
        "badly": (True, False),
        "confusedly": (True, True),
        "naive": (True, False),
        "respells": (True, False),
        "talks": (False, True),
        "deaf": (True, False),
    }


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_crash_each_policy_does_each_step_once(policy: Policy) -> None:
    talk = Talk(CHARGE, policy)
    talk.run()
    assert [entry.what for entry in talk.ledger if entry.event == "effect"] == ["plan", "charge 49.90", "receipt"]


def test_a_call_whose_files_are_missing_is_in_doubt_again() -> None:
    heard: list[Part] = [
        Called("run_shell_command", {"command": "./plan.sh"}),
        Returned("", "ok: plan"),
        HistoryText("user", "[wal-agent recovery] ...\n- #1 run_shell_command ./plan.sh"),
    ]
    assert view(CHARGE, heard).known["plan"] == "doubt"


def test_a_command_in_the_background_is_started_once_and_taken_for_done() -> None:
    talk = Talk(CHARGE, "well")
    talk.model.behind = "charge 49.90"
    talk.heard += [Called("run_shell_command", {"command": "./plan.sh"}), Returned("", "ok: plan")]
    ((_, given),) = talk.answer().calls
    assert given["command"] == f"./charge.sh 49.90 {BEHIND}"
    talk.heard += [Called("run_shell_command", given), Returned("", "")]
    assert view(CHARGE, talk.heard).known["charge 49.90"] == "happened"
    talk.heard.append(HistoryText("user", prompt("./charge.sh 49.90", "not started")))
    ((_, given),) = talk.answer().calls
    assert given["command"] == "./charge.sh 49.90", "a recovery tells it better"


def test_a_step_that_a_later_prompt_asks_for_waits_for_it() -> None:
    scenario = replace(CHARGE, steps=(*CHARGE.steps, TYPED))
    talk = Talk(scenario, "well")
    talk.run()
    assert not talk.happened("thanks")
    talk.heard.append(HistoryText("user", f"[wal-agent recovery] Typed meanwhile: also run `{TYPED.run}`."))
    talk.model.policy = "naive"
    assert not talk.answer().calls, "it reads no recovery prompt"
    talk.model.policy = "well"
    talk.run()
    assert talk.happened("thanks")


def test_the_answer_after_the_wanted_effect_is_held_back() -> None:
    talk = Talk(CHARGE, "well")
    talk.model.hold_at = "charge 49.90"
    heard: Callable[[], Turn] = talk.answer
    assert heard().hold is None
    talk.heard.append(Returned("", "ok: charge 49.90"))
    assert heard().hold is talk.model.release and talk.model.holding.is_set()
    talk.model.release.set()
    assert heard().hold is None


def test_the_answer_that_ends_the_work_is_held_back_on_its_own() -> None:
    """Else a kill of the recovery could come behind its end, and the next start would rightly begin a new task."""
    talk = Talk(CHARGE, "well")
    talk.model.hold_end = True
    assert talk.answer().hold is None
    talk.run()
    talk.model.release.set()
    assert talk.answer().hold is talk.model.over


def test_a_prompt_that_names_no_call_makes_the_next_step_one_to_look_at() -> None:
    talk = Talk(CHARGE, "well")
    talk.run("charge 49.90")
    del talk.heard[-1]  # the agent's own resume has dropped the call
    talk.crash(f"{UNCLEAN} An operation may have been in progress.")
    del talk.heard[-2]
    talk.run()
    assert grade(CHARGE, "charge 49.90", talk.ledger, Seen(0, {})).passed


@pytest.mark.parametrize(
    ("finding", "happened", "expected"),
    [
        ("completed", {"plan", "charge 49.90"}, (0, 0)),
        ("completed", {"plan"}, (1, 0)),
        ("not started", {"plan", "charge 49.90"}, (1, 0)),
        ("unknown", {"plan", "charge 49.90"}, (0, 0)),
        ("unknown", {"plan", "charge 49.90", "receipt"}, (0, 1)),
    ],
)
def test_what_a_conversation_gets_wrong(finding: str, happened: set[str], expected: tuple[int, int]) -> None:
    heard: list[Part] = [
        Called("run_shell_command", {"command": "./plan.sh"}),
        Returned("", "ok: plan"),
        HistoryText("user", prompt("./charge.sh 49.90", finding)),
    ]
    assert misled(CHARGE, heard, happened) == expected
