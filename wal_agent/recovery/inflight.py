"""Report calls in flight with class, finding and next step, carry earlier findings over, and resolve them (I8). Pure.

- Identical calls are reported as one counter. The next step names the command that verifies the call.
- Evidence fades: on another machine, or behind later calls, a push that was seen to have landed could not be told from
  one that had not. What was proven of a call whose run is gone has not changed since. A call that was half done then is
  asked about again: what is left of it may have been done since.
- A call is resolved when the agent verified it as asked, or ran the very call again. Only calls that the log saw count,
  never the agent's own words.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal_agent.evidence.model import call_folder, relocate
from wal_agent.records import Class, End, Finding, Intent, Recovery, Verdict
from wal_agent.shell.classify import AWAY, FOLDERS, NO_RULE, classify, classify_command, read_input, worse_class
from wal_agent.shell.quote import inline, safe
from wal_agent.shell.reader import parse
from wal_agent.shell.rules import OURS, Classified, Rules
from wal_agent.wal.state import EndedCall, OpenCall

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


_GroupKey = tuple[str, bytes | int, str]  # tool, input (the call's number where it is not known), folder


@dataclass(frozen=True, slots=True)
class InFlight:
    """`calls` are the numbers of the identical calls that have no end, of `issued` in all; where agents give no call id
    it cannot be told which of them ended. `input` None: it could not be read. `started`: seconds since 1970 (UTC).
    `folder`: where it ran by the agent's own word, as that is on this machine; "" for the workspace, or if not told."""

    calls: tuple[int, ...]
    issued: int
    tool: str
    input: bytes | None
    started: float
    cls: Class
    why: str
    finding: Finding
    because: str
    next: str
    rule: str = ""
    source: str = OURS  # whose rule it is: wal-agent's, or a file of the project
    verify: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class Unannounced:
    """A call that ran before it was logged: no hook announced it."""

    tool: str
    input: bytes | None
    cls: Class
    how: str  # its ending


def group_calls(
    open: Iterable[OpenCall],
    finished: Iterable[EndedCall],
    inputs: Mapping[int, bytes],
    verdicts: Iterable[Verdict],
    rules: Rules,
    way: tuple[str, str] = ("", ""),
) -> tuple[InFlight, ...]:
    """The open calls in the order of their beginning, identical ones together. A call without a verdict is unknown.
    `inputs`: by call number, of open and finished calls; a call that is missing there stands alone. `way`: the
    workspace that the calls ran in, and the one here."""
    found = {v.call: v for v in verdicts}
    ended = Counter(_group_key(e.intent, inputs, way) for e in finished if e.intent.call in inputs)
    groups: dict[_GroupKey, list[OpenCall]] = {}
    for o in open:
        groups.setdefault(_group_key(o.intent, inputs, way), []).append(o)
    return tuple(_describe_group(key, group, inputs, ended, found, rules) for key, group in groups.items())


def _group_key(intent: Intent, inputs: Mapping[int, bytes], way: tuple[str, str]) -> _GroupKey:
    """Equal for identical calls: the same words in another folder are another call."""
    return intent.tool, inputs.get(intent.call, intent.call), _call_folder_here(intent, *way)


def _call_folder_here(intent: Intent, there: str, here: str) -> str:
    """Claude Code's shell stays where a `cd` led it, and Codex's workdir stands in no input: the fact alone tells."""
    told = call_folder(intent.before)
    if told is None:
        return ""
    now = relocate((Path(there), Path(here)) if there else None, str(told))
    return "" if now == here else now


def _describe_group(
    key: _GroupKey,
    group: list[OpenCall],
    inputs: Mapping[int, bytes],
    ended: Mapping[_GroupKey, int],
    found: Mapping[int, Verdict],
    rules: Rules,
) -> InFlight:
    first = group[0].intent
    data = inputs.get(first.call)
    known = classify(first.tool, data, rules) if data is not None else NO_RULE
    # Rules may have changed since; then the call is told as the worse of what it was and what it would be.
    cls = worse_class(first.cls, known.cls)
    verdicts = [found.get(o.intent.call) or Verdict(call=o.intent.call, finding="unknown", why="") for o in group]
    finding, because = verdicts[0].finding, verdicts[0].why
    if any(v.finding != finding for v in verdicts):
        finding, because = "unknown", "Not the same can be said of each of these identical calls."
    folder = key[2]
    told = advise(cls, finding, known, rules, folder)
    return InFlight(
        calls=tuple(o.intent.call for o in group),
        issued=len(group) + ended.get(key, 0),
        tool=first.tool,
        input=data,
        started=first.time,
        cls=cls,
        why=known.why,
        finding=finding,
        because=because,
        next=told.next,
        rule=known.rule,
        source=known.source,
        verify=told.verify,
        folder=folder,
    )


EARLIER = "Found at the start before: "
_PROVEN = ("completed", "not_started")


def carry_over(now: Sequence[Verdict], earlier: Recovery | None, here: Callable[[int], bool]) -> tuple[Verdict, ...]:
    """The verdicts, with the earlier finding in the place of unknown. `here(call)`: what a call has done to files is in
    this workspace, if it was done before that recovery; where it may not be, the earlier finding says too much."""
    known = {v.call: v for v in earlier.verdicts if v.finding in _PROVEN} if earlier is not None else {}
    return tuple(_carry_over_one(v, known[v.call]) if v.call in known and here(v.call) else v for v in now)


def _carry_over_one(now: Verdict, then: Verdict) -> Verdict:
    if now.finding != "unknown":
        return now
    why = then.why if then.why.startswith(EARLIER) else f"{EARLIER}{then.why}"
    return Verdict(call=now.call, finding=then.finding, why=why, verify=now.verify)


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call in flight that the agent was asked about; `verify` is the command that it was told to look with, and
    `finding` what it was told to be known. `folder`: where it ran, as that is here; "" for the workspace."""

    call: int
    tool: str
    input: bytes | None
    verify: str = ""
    finding: Finding = "unknown"
    folder: str = ""


class Resolver:
    """What is known of the calls that were asked about. Threads may share it."""

    def __init__(self, asked: Iterable[AskedCall], workspace: str = "") -> None:
        self._asked = tuple(asked)
        self._workspace = workspace
        self._lock = threading.Lock()
        self._found: dict[int, str] = {}
        self.given: set[int] = set()  # calls whose end was given

    def saw(self, call: int, tool: str, input: bytes, cwd: str = "") -> None:
        """A later call that ended well. `cwd`: where the agent said that it ran, "" where it says nothing: then that
        counts as the workspace. A call that ran elsewhere is only answered there, whatever the words are."""
        folder = "" if cwd == self._workspace else cwd
        with self._lock:
            there = [a for a in self._left() if a.folder == folder]
            same = [a for a in there if a.tool == tool and a.input is not None and _is_same_input(a.input, input)]
            for asked in same[:1]:  # of identical ones, one was run again
                self._found[asked.call] = f"the very same call was run again as #{call}, and ended"
            for asked in there:
                if asked.call not in self._found and asked.verify and _verifies(input, asked):
                    self._found[asked.call] = f"the agent looked with #{call}, as it was told to"

    def _left(self) -> Sequence[AskedCall]:
        return [a for a in self._asked if a.call not in self._found]

    def ends(self, open: Iterable[int], now: float) -> list[End]:
        """The ends of those that are still open, each once. `now`: seconds since 1970."""
        with self._lock:
            settled = {*open} & self._found.keys() - self.given
            self.given |= settled
        return [
            End(time=now, call=a.call, how="interrupted", by="recovery", why=self._found[a.call], finding=a.finding)
            for a in self._asked
            if a.call in settled
        ]


def _is_same_input(one: bytes, other: bytes) -> bool:
    a, b = read_input(one), read_input(other)
    return one == other if a is None or b is None else _comparable(a) == _comparable(b)


def _comparable(fields: dict[str, object]) -> str:
    """Without the words that agents add for people."""
    return json.dumps({k: v for k, v in fields.items() if k != "description"}, sort_keys=True)


def _verifies(input: bytes, asked: AskedCall) -> bool:
    """Whether a command is the one to look with and nothing else, where the call in flight ran, and shows what it says:
    one behind `cd` looks elsewhere, one in a list may not have run, one whose output is thrown away shows nothing."""
    fields, meant = read_input(input) or {}, read_input(asked.input or b"") or {}
    if any(fields.get(name) != meant.get(name) for name in FOLDERS):
        return False
    words = _plain_words(fields.get("command"))
    return words is not None and words == _plain_words(asked.verify)


def _plain_words(text: object) -> tuple[str, ...] | None:
    """Of a single plain command; None for anything else."""
    script = parse(text) if isinstance(text, str) and text else None
    if script is None or len(script.commands) != 1 or script.functions:
        return None
    (command,) = script.commands
    words = tuple(w.text for w in command.words)
    if not command.sure or command.redirects or command.assigns or not words or None in words:
        return None
    return tuple(w for w in words if w is not None)
