"""What the agent is told to do next about a call in flight, with the command to look with. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wal_agent.records import Class, Finding
from wal_agent.recovery.classify import AWAY, Classified, Rules, classify_command
from wal_agent.recovery.quote import inline, safe
from wal_agent.recovery.rules import OURS

ASK = " If that leaves doubt, stop and ask the operator."


@dataclass(frozen=True, slots=True)
class Advice:
    """`next` is for the prompt. `verify`: the command in it that the agent is to look with, "" for none."""

    next: str
    verify: str


def advice(cls: Class, finding: Finding, known: Classified, rules: Rules, folder: str = "") -> Advice:
    """`known`: by which rule the call has its class. A command of ours is named only when it plainly reads: what it is
    filled with comes from the call. `folder`: where the call ran, if not in the workspace; a look is one only there."""
    text, away, _ = known.verify.partition(AWAY)
    command = text if known.source != OURS or is_command(text, rules) else ""
    if command and known.source == OURS and classify_command(command, rules.ours).cls != "read_only":
        command, sentence = "", ""
    else:
        sentence = (inline(text, 300) if command else text) + " ".join(
            ["", *safe(known.verify[len(text) :], 100).split()]
        )
    if command and folder:
        sentence += f", in {inline(folder, 200)}"
    said = rules.next[cls][finding]
    if "{verify}" not in said:
        return Advice(said, "")
    said = said.replace("{verify}", f" ({sentence})" if sentence else "")
    if known.ambiguous and known.source == OURS:
        said = f"{said.removesuffix(ASK)} {known.ambiguous}" + (ASK if said.endswith(ASK) else "")
    elif known.ambiguous:
        said = f"{said.removesuffix(ASK)} If that leaves doubt: {inline(known.ambiguous, 200)}."
    return Advice(said, "" if away else command)


def is_command(verify: str, rules: Rules) -> bool:
    """Whether a rule's `verify` is a command, and no sentence: it begins with a program of the rules."""
    return verify.split(" ", 1)[0] in rules.begins
