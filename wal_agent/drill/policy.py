"""The scripted model of a drill: it works by its conversation, as a model does, and by a policy after a crash.

It sees what the agent's CLI sends: commands that were called, their results, the recovery prompt. The scripts of a
world answer `ok: EFFECT` and `status: EFFECT happened` (lib.sh), so that the script can tell what it knows.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Literal, get_args

import msgspec

from wal_agent.agents.base import Rehearsal
from wal_agent.drill.scenario import ASK, Scenario, Step
from wal_agent.rehearsal.model import Called, HistoryText, Json, Model, Part, Returned, Turn

Policy = Literal["well", "badly", "confusedly", "naive", "respells", "talks", "deaf"]
POLICIES: Final[dict[Policy, str]] = {
    "well": "believes a finding, verifies what is in doubt, asks where nothing can show it",
    "badly": "runs the last command again after each restart, whatever it reads",
    "confusedly": "of what is in doubt it assumes by chance that it happened, repeats it, or asks",
    "naive": "reads no recovery prompt; runs again what has no result in its conversation",
    "respells": "as naive, each time in other words",
    "talks": "says that it will check what is in doubt, and ends its turn",
    "deaf": "verifies what is in doubt, and runs it again whatever that shows",
}
assert tuple(POLICIES) == get_args(Policy)

Known = Literal["no", "doubt", "happened", "asked"]
RECOVERY: Final = "[wal-agent recovery]"
UNCLEAN: Final = "[unclean shutdown]"  # in a prompt that asks to verify the operation in progress, without naming it
MOST: Final = 60  # requests of a round after which the script ends it
BEHIND: Final = ">/dev/null 2>&1 &"  # behind a command that is to run in the background
SPELLINGS: Final = ("timeout 60 {}", "sh -c '{}'", "cd . && {}", "{}; echo $?", "{} 2>&1", "nohup {}")
_ITEM = re.compile(r"^\d+\. ", re.MULTILINE)


class View(msgspec.Struct, frozen=True):
    """What a conversation says of each step by its effect, and how often a step in doubt was looked up in vain.
    `shown`: the effects of the steps that it has a call, a result or a finding of."""

    known: dict[str, Known]
    shown: frozenset[str]
    last: str  # the effect of the newest command that was called, "" for none
    looked: int


def view(scenario: Scenario, heard: Sequence[Part], reads_recovery: bool = True) -> View:
    """Read a conversation."""
    known: dict[str, Known] = {}
    last, looked, behind = "", 0, ""
    for part in heard:
        if isinstance(part, Called):
            words = " ".join(str(value) for value in part.input.values())
            for step in scenario.steps:
                if step.run in words:
                    last, known[step.effect] = step.effect, "doubt"
                    behind = step.effect if BEHIND in words else ""
                elif step.verify and step.verify in words:
                    looked += 1
        elif isinstance(part, Returned):
            if behind:
                known[behind], behind = "happened", ""  # as a model takes it
            _returned(scenario, known, part.text)
        elif part.role == "user" and RECOVERY in part.text and reads_recovery:
            _recovered(scenario, known, part.text)
            looked = 0
        elif part.role == "user" and UNCLEAN in part.text and reads_recovery:
            unsure = next((s for s in scenario.steps if known.get(s.effect, "no") == "no"), None)
            known.update({unsure.effect: "doubt"} if unsure else {})
            looked = 0
    return View({s.effect: known.get(s.effect, "no") for s in scenario.steps}, frozenset(known), last, looked)


def misled(scenario: Scenario, heard: Sequence[Part], happened: Collection[str]) -> tuple[int, int]:
    """Count what a conversation gets wrong: effects of which it says the opposite of `happened`, and effects that
    happened and of which it has nothing."""
    seen = view(scenario, heard)
    wrong = untold = 0
    for effect, known in seen.known.items():
        if effect in happened and known == "no":
            wrong, untold = wrong + (effect in seen.shown), untold + (effect not in seen.shown)
        elif known == "happened" and effect not in happened:
            wrong += 1
    return wrong, untold


def _returned(scenario: Scenario, known: dict[str, Known], text: str) -> None:
    for effect in (step.effect for step in scenario.steps):
        if f"ok: {effect}" in text or f"status: {effect} happened" in text:
            known[effect] = "happened"
        elif f"status: {effect} did not happen" in text:
            known[effect] = "no"
    if "asked: a person" in text:
        known.update({effect: "asked" for effect, was in known.items() if was == "doubt"})


def _recovered(scenario: Scenario, known: dict[str, Known], text: str) -> None:
    """Believe what the recovery prompt found out of each call in flight."""
    for item in _ITEM.split(text)[1:]:
        for step in scenario.steps:
            if step.run in item:
                found: Known = "doubt"
                if "Finding: completed" in item:
                    found = "happened"
                elif "Finding: not started" in item:
                    found = "no"
                known[step.effect] = found
    missing = [line for line in text.splitlines() if line.startswith("- #")]  # calls whose files are not here
    for step in scenario.steps:
        if (step.lines_of or not step.once) and any(step.run in line for line in missing):
            known[step.effect] = "doubt"


def _was_asked(step: Step, heard: Sequence[Part], reads_recovery: bool) -> bool:
    """Whether a prompt of the conversation asks for the step."""
    said = [part.text for part in heard if isinstance(part, HistoryText) and part.role == "user"]
    return any(step.run in text and (reads_recovery or RECOVERY not in text) for text in said)


class PolicyModel(Model):
    """`behind`: the effect whose command runs in the background the first time. `hold_at`: the effect after which the
    next answer is held back until `release` is set. "" for none of either. `hold_end`: the answer that ends the work
    is. `happened`: the effects in the world now, which are kept for each request."""

    def __init__(self, rehearsal: Rehearsal, scenario: Scenario, policy: Policy, seed: int) -> None:
        super().__init__(rehearsal.dialect)
        self.rehearsal, self.scenario, self.policy = rehearsal, scenario, policy
        self.chance = random.Random(f"{seed} {scenario.name}")
        self.behind = ""
        self.hold_at, self.release, self.holding = "", threading.Event(), threading.Event()
        self.hold_end, self.over = False, threading.Event()
        self.happened: Callable[[], Collection[str]] = frozenset
        self.times: list[float] = []  # of the requests, since 1970
        self.facts: list[Collection[str]] = []  # what had happened at each
        self.owed = 0  # restarts after which the policy `badly` has not repeated yet
        self.assumed: dict[str, str] = {}  # what `confusedly` made of a doubt
        self.spelled = 0  # commands in other words
        self.unheard = ""  # the effect that `deaf` has just verified

    def take(self, body: Json) -> Turn:
        """Log the request and answer it by the policy."""
        with self._lock:
            self.requests.append(body)
            self.times.append(time.time())
            self.facts.append(self.happened())
            self._lock.notify_all()
        if len(self.requests) > MOST:
            return Turn(text="I stop here: this does not come to an end.")
        heard = self.dialect.history(body)
        turn = self._answer(heard)
        known = view(self.scenario, heard).known
        at_the_end = self.hold_end and not turn.calls
        if at_the_end or (self.hold_at and known.get(self.hold_at) == "happened" and not self.release.is_set()):
            self.holding.set()
            turn.hold = self.over if at_the_end else self.release
        return turn

    def _answer(self, heard: Sequence[Part]) -> Turn:
        believes = self.policy in ("well", "talks", "deaf")
        seen = view(self.scenario, heard, reads_recovery=believes)
        if self.policy == "badly" and self.owed and seen.last:
            self.owed = 0
            return self._run(next(step for step in self.scenario.steps if step.effect == seen.last))
        for step in self.scenario.steps:
            known = seen.known[step.effect]
            if self.unheard == step.effect:
                self.unheard = ""
                return self._run(step)
            if step.typed and not _was_asked(step, heard, believes):
                continue
            if known == "asked" or (known == "doubt" and self.assumed.get(step.effect) == "ask"):
                return Turn(text="I have asked, and stop here.")
            if known == "no":
                return self._run(step)
            if known == "doubt" and (turn := self._doubt(step, seen.looked)) is not None:
                return turn
        return Turn(text="All of it is done.")

    def _doubt(self, step: Step, looked: int) -> Turn | None:
        """Answer where it is not known whether the step happened; None: go on as if it had."""
        if self.policy == "respells":
            self.spelled += 1
            return self._call(SPELLINGS[self.spelled % len(SPELLINGS)].format(step.run))
        if self.policy in ("badly", "naive") or not step.once:
            return self._run(step)
        if self.policy == "talks":
            return Turn(text="I will check first whether it happened.")
        if self.policy == "deaf" and step.verify:
            self.unheard = step.effect
            return self._call(step.verify)
        if self.policy == "well":
            return self._call(step.verify) if step.verify and looked < 3 else self._ask(step)
        choice = self.assumed.setdefault(step.effect, self.chance.choice(("done", "done", "repeat", "ask")))
        if choice == "done":
            return None
        return self._run(step) if choice == "repeat" else self._ask(step)

    def _run(self, step: Step) -> Turn:
        if self.behind == step.effect:
            self.behind = ""
            return self._call(f"{step.run} {BEHIND}")
        return self._call(step.run)

    def _ask(self, step: Step) -> Turn:
        return self._call(f"{ASK} Did {step.effect.replace(' ', '-')} happen")

    def _call(self, command: str) -> Turn:
        return Turn(text="Next.", calls=[self.rehearsal.shell(command)])
