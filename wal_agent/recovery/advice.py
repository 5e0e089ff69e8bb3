"""What the agent is told to do next about a call in flight, with the command to look with. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from wal_agent.records import Class, Finding
from wal_agent.shell.classify import AWAY, classify_command
from wal_agent.shell.quote import inline, safe
from wal_agent.shell.rules import Classified, Rules

ASK = " If that leaves doubt, stop and ask the operator."
# Commands that only read and show nothing of the world, so running one verifies nothing.
_SHOWS_NOTHING = frozenset({"shell-builtin", "echo", "printf", "sleep", "yes"})  # names of rules


@dataclass(frozen=True, slots=True)
class Advice:
    """`next` is for the prompt. `verify`: the command in it that ends the call when the agent runs it, "" for none."""

    next: str
    verify: str


@dataclass(frozen=True, slots=True)
class _Verification:
    """How to verify: `text` for the prompt; `command` where running it counts as the look, else ""."""

    text: str
    command: str = ""


def advise(cls: Class, finding: Finding, known: Classified, rules: Rules, folder: str = "") -> Advice:
    """`known`: by which rules the call has its class. `folder`: where the call ran, if not in the workspace; a look is
    one only there.

    The project's words are quoted beside the built-in ones and take none of those away: it may know more, and it may
    be a stranger's."""
    said = rules.next[cls][finding]
    builtin, project = _builtin_verification(known, rules, folder), known.project
    if "{verify}" not in said:
        return Advice(said, "")
    theirs = _project_verification(project, known, builtin, rules, folder) if project is not None else _Verification("")
    if builtin.command and theirs.text:
        text = f"{builtin.text}; this project's rule says: {theirs.text}"
    else:
        text = theirs.text or builtin.text
    said = said.replace("{verify}", f" ({text})" if text else "")
    if known.ambiguous:
        said = f"{said.removesuffix(ASK)} {known.ambiguous}" + (ASK if said.endswith(ASK) else "")
    if project is not None and project.ambiguous:
        said = f"{said} In doubt, this project's rule says: {inline(project.ambiguous, 200)}."
    return Advice(f"{said}{_project_class_note(known, project)}", builtin.command or theirs.command)


def _builtin_verification(known: Classified, rules: Rules, folder: str) -> _Verification:
    """A command is named only when it plainly reads: what it is filled with comes from the call."""
    text, away, place = known.verify.partition(AWAY)
    command = text if is_command(text, rules) else ""
    if command and classify_command(command, rules.ours).cls != "read_only":
        return _Verification("")
    return _verification(text, f"{away}{place}", command, folder)


def _project_verification(
    project: Classified, known: Classified, builtin: _Verification, rules: Rules, folder: str
) -> _Verification:
    """What the project's rule verifies with. Running it counts only where the built-in rules name no command, find
    that this one plainly reads, and do not know the call as worse than the project says."""
    text, away, place = project.verify.partition(AWAY)
    if not text:
        return _Verification("")
    looks = classify_command(text, rules.ours)
    counts = (
        not builtin.command
        and project.cls == known.cls
        and looks.cls == "read_only"
        and looks.rule not in _SHOWS_NOTHING
    )
    return _verification(text, f"{away}{place}", text if counts else "", folder, quoted=True)


def _verification(text: str, place: str, command: str, folder: str, quoted: bool = False) -> _Verification:
    """`place`: where else than here it is to be run, as the rest of a sentence."""
    shown = " ".join([inline(text, 300) if command or quoted else text, *safe(place, 100).split()])
    if folder and (command or quoted):
        shown += f", in {inline(folder, 200)}"
    return _Verification(shown, "" if place else command)


def _project_class_note(known: Classified, project: Classified | None) -> str:
    """A project's milder class, as its own word."""
    if project is None or project.cls == known.cls:
        return ""
    name, place = inline(project.rule, 60), inline(project.source, 80)
    return f" This project's rule {name} in {place} calls it {project.cls}, which does not replace this step."


def is_command(verify: str, rules: Rules) -> bool:
    """Whether a rule's `verify` is a command, and no sentence: it begins with a program of the rules."""
    return verify.split(" ", 1)[0] in rules.begins
