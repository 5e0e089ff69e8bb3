"""Report calls in flight with class, finding and next step, carry earlier findings over, and resolve them (I8). Pure.

- Identical calls are reported as one counter. The next step names the command that verifies the call.
- Evidence fades: on another machine, or behind later calls, a push that landed cannot be distinguished from one that
  did not. What was proven of a call whose run is gone has not changed since. A call that was half done then is
  asked about again: what is left of it may have been done since.
- A call that stays unknown is asked about until a turn that got the notice completes; the log keeps what the agent
  looked with and says (records.Answer), and the call stays open.
- A call is resolved when the agent verified it as asked, or ran the very call again. Only calls that the log saw count,
  never the agent's own words.
"""

from __future__ import annotations

import posixpath
import re
import shlex
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from wal_agent.calls.call import ReadCall
from wal_agent.calls.checks import Reading, Shown, beginning, shows_done
from wal_agent.calls.classify import FOLDERS, NO_RULE, classify, classify_command, worse_class
from wal_agent.calls.equality import would_repeat
from wal_agent.calls.quote import inline, safe
from wal_agent.calls.reading import Runs, find_runs, shell_commands
from wal_agent.calls.rules.table import AWAY, OURS, Classified, Rules, load_rules
from wal_agent.calls.shell.reader import MAX_TEXT
from wal_agent.calls.shell.syntax import split_names
from wal_agent.evidence.collector import sent_line
from wal_agent.evidence.model import call_folder, relocate
from wal_agent.records import CHANGING, PROVEN, Answer, CallState, Class, End, Fact, Finding, Intent, Recovery, Verdict
from wal_agent.wal.state import MAX_LOOKED, EndedCall, OpenCall
from wal_agent.wording import messages, next_steps

# Commands that only read and show nothing of the world, so running one verifies nothing.
_SHOWS_NOTHING = frozenset({"shell-builtin", "echo", "printf", "sleep", "yes"})  # names of rules


# What a sentence on how to verify begins with, where it stands for no command.
_SAYS = frozenset(("ask", "call", "check", "compare", "look", "open", "query", "read", "see", "verify"))
MAX_CHECK = 300  # characters of a check
SENT = "{sent}"  # in `done_if` of a rule for pushes
# What a call may name.
_NAME = re.compile(r"[\w.@:/+~-]{3,}")
_NO_NAMES = split_names("bash cat echo env grep head node python python3 sudo tail")

_SPAN = re.compile(r"`([^`]+)`")


class Advice(NamedTuple):
    """`next` is for the prompt. `verify`: the commands in it that resolve the call once the agent has run each. `look`:
    the first command in it to run here, quoted; "" for none. `unknown`: that command, if the built-in rules do not know
    that it only reads. `reads`: how to read what each of the checks prints, where that can be read of all of them."""

    next: str
    verify: tuple[str, ...]
    look: str = ""
    reads: tuple[Reading, ...] = ()
    unknown: str = ""


class _Verification(NamedTuple):
    """How to verify: `text` for the prompt; `commands` where running each of them resolves the call, else none.
    `look`, `reads`, `unknown`: as in Advice."""

    text: str = ""
    commands: tuple[str, ...] = ()
    look: str = ""
    reads: tuple[Reading, ...] = ()
    unknown: str = ""


def advise(
    cls: Class, finding: Finding, classified: Classified, rules: Rules, folder: str = "", sent: str = ""
) -> Advice:
    """Advise what to do next about a call. `classified`: the rules that its class is from. `folder`: where it ran, if
    not in the workspace; only there can it be verified. `sent`: what a remote lists once it has what a push sent.

    The project's text is quoted beside the built-in one and replaces none of it: it may know more, and it may be a
    stranger's."""
    text = next_steps.NEXT[cls][finding]
    builtin, project = _builtin_verification(classified, rules, folder, sent), classified.project
    if "{verify}" not in text:
        return Advice(text, ())
    theirs = (
        _project_verification(project, classified, builtin, rules, folder) if project is not None else _Verification()
    )
    how = theirs.text or builtin.text
    if builtin.look and theirs.text:
        how = next_steps.project_verifies(builtin.text, theirs.text)
    text = next_steps.fill_verify(text, how)
    for doubt in dict.fromkeys(part.ambiguous for part in (classified, *classified.also) if part.ambiguous):
        text = next_steps.with_doubt(text, doubt)
    if project is not None and project.ambiguous:
        text = next_steps.project_doubts(text, inline(project.ambiguous, 200))
    if project is not None and project.cls != classified.cls:  # milder
        rule, source = inline(project.rule, 60), inline(project.source, 80)
        text = next_steps.project_calls_it(text, rule, source, project.cls)
    commands, reads = builtin.commands or theirs.commands, builtin.reads or theirs.reads
    look, unknown = (builtin.look, "") if builtin.look else (theirs.look, theirs.unknown)
    return Advice(text, commands, look, reads, unknown)


def _builtin_verification(rule: Classified, rules: Rules, folder: str, sent: str) -> _Verification:
    """How to verify each of the commands that may have changed something."""
    ways = [_verify_one(part, rules, folder) for part in (rule, *rule.also)]
    texts = [way.text for way in ways if way.text]
    commands = tuple(command for way in ways for command in way.commands)
    text = messages.all_of(texts) if len(commands) > 1 else "; ".join(texts)
    whole = commands if all(way.commands for way in ways) else ()
    done = [part.done_if.replace(SENT, sent) if sent or SENT not in part.done_if else "" for part in (rule, *rule.also)]
    reads = tuple(map(Reading, whole, done)) if whole and all(done) else ()
    first = next((way.text for way in ways if way.commands), "")
    return _Verification(text, whole, first, reads=reads)


def _verify_one(rule: Classified, rules: Rules, folder: str) -> _Verification:
    """Name a command only where it plainly reads: what it is filled with comes from the call."""
    is_command = rule.verify.split(" ", 1)[0] in rules.begins  # else a sentence
    text, away, place = rule.verify_there.partition(AWAY)
    command = text if is_command else ""
    if command and not _reads(classify_command(command, rules.ours)):
        return _Verification()
    return _verification(text, f"{away}{place}", command, folder)


def _reads(rule: Classified) -> bool:
    """Whether it changes nothing, but by code of the folder that its program loads (`npm ls`); that one is logged like
    any call before it runs."""
    return rule.cls == "read_only" or rule.looks


def _project_verification(
    project: Classified, rule: Classified, builtin: _Verification, rules: Rules, folder: str
) -> _Verification:
    """Quote what the project's rule verifies with. Running it resolves the call only where the built-in rules name no
    command, find that this one plainly reads, and do not rate the call worse than the project does, and where nothing
    else in the call may have changed something. What it prints may resolve it also where it does not plainly read, if
    the built-in rules do not know the call (decision 063)."""
    text, away, place = project.verify.partition(AWAY)
    if not text:
        return _Verification()
    found = classify_command(text, rules.ours)
    verifies = _reads(found) and found.rule not in _SHOWS_NOTHING
    whole = not builtin.look and project.cls == rule.cls and not project.also
    way = _verification(text, f"{away}{place}", text if verifies and whole else "", folder, quoted=True)
    shows = verifies or (project.theirs and found.rule not in _SHOWS_NOTHING)
    if whole and shows and project.done_if and not place:
        spans = _SPAN.findall(text)
        typed = spans[0] if len(spans) == 1 else text
        way = way._replace(reads=(Reading(typed, project.done_if, project.source),))
    if not _is_command(text, rules):
        return way._replace(text=way.text if builtin.look else f"this project's rule says: {way.text}")
    return way if place else way._replace(look=way.text, unknown="" if verifies else text)


def _is_command(text: str, rules: Rules) -> bool:
    """Whether a project's text can be typed, as far as one can tell: it may be a sentence."""
    first = text.split(" ", 1)[0]
    return "`" not in text and (first in rules.begins or (first.islower() and first not in _SAYS))


def _verification(text: str, place: str, command: str, folder: str, quoted: bool = False) -> _Verification:
    """`place`: where else than here to run it, as the rest of a sentence."""
    shown = " ".join([inline(text, MAX_CHECK) if command or quoted else text, *safe(place, 100).split()])
    if folder and (command or quoted):
        shown += f", in {inline(folder, 200)}"
    return _Verification(shown, (command,) if command and not place else ())


def _check_behind_cd(advice: Advice, call: ReadCall, folder: str) -> str:
    """Return the check behind a `cd` to its folder, quoted, where a model that wrote the call before may write it again
    in its place: it begins as the call does (`school invite`, `school letters`), or differs within a word only
    (`credit`, `credited`). Else "" (decision 064)."""
    if not (advice.unknown and folder):
        return ""
    begun = [simple.words[0].text or "" for simple in shell_commands(call) if simple.words]
    typed = f"cd {shlex.quote(folder)} && {advice.unknown}"
    shown = typed == safe(typed, MAX_CHECK) and not {*'"\\\n'} & {*typed}
    alike = any(_alike(advice.unknown.split(" ", 1)[0], word) for word in begun)
    return f'"{typed}"' if alike and shown else ""


def _alike(one: str, other: str) -> bool:
    same = posixpath.commonprefix((one, other))
    within = any(word[len(same) :][:1].isalpha() for word in (one, other))
    return one == other or (within and len(same) > 2 and same[-3:].isalpha())


_GroupKey = tuple[str, bytes | int, str]  # tool, input (the number of a call without one), folder


class InFlight(msgspec.Struct, frozen=True):
    """Identical calls of which some have no end. `calls` are the numbers of those, of `issued` in all; where agents
    give no call id, which of them ended is not known. `input` None: not readable. `started`: seconds since 1970 (UTC).
    `folder`: where it ran, as the agent reported it, on this machine; "" for the workspace, or if not reported."""

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
    verify: tuple[str, ...] = ()
    folder: str = ""
    look: str = ""
    behind_cd: str = ""  # what `look` names, where a model may mistake it for the call
    reads: tuple[Reading, ...] = ()
    state: CallState = "open"  # "open" where they differ

    @property
    def asks(self) -> bool:
        """Whether the agent is to find out what became of it."""
        return self.finding == "unknown" and self.cls in CHANGING


class Unannounced(msgspec.Struct, frozen=True):
    """A call that ran before it was logged: no hook announced it."""

    tool: str
    input: bytes | None
    cls: Class
    how: str  # its ending


def group_calls(
    open: Iterable[OpenCall],
    finished: Iterable[EndedCall],
    calls: Mapping[int, ReadCall],
    verdicts: Iterable[Verdict],
    rules: Rules,
    moved: tuple[str, str] = ("", ""),
    cd: bool = True,
) -> tuple[InFlight, ...]:
    """Group identical open calls, in the order of their beginning. A call without a verdict is unknown.

    `calls`: open and finished ones by their numbers; a call that is missing there stands alone. `moved`: the
    workspace that the calls ran in, and the one here. `cd`: as Capabilities.passes_cd."""

    def key(intent: Intent) -> _GroupKey:
        input = calls[intent.call].input if intent.call in calls else intent.call
        return intent.tool, input, _folder_here(intent, *moved)

    found = {v.call: v for v in verdicts}
    ended = Counter(key(e.intent) for e in finished if e.intent.call in calls)
    groups: dict[_GroupKey, list[OpenCall]] = {}
    for o in open:
        groups.setdefault(key(o.intent), []).append(o)
    return tuple(
        _describe_group(
            group,
            calls.get(group[0].intent.call),
            ended[key],
            [found.get(n := o.intent.call) or Verdict(call=n, finding="unknown", why="") for o in group],
            rules,
            key[2],
            moved[1],
            cd,
        )
        for key, group in groups.items()
    )


def _folder_here(intent: Intent, there: str, here: str) -> str:
    """Read it from the fact only: Claude Code's shell stays where a `cd` went, and Codex's workdir is in no input."""
    folder = call_folder(intent.before)
    if folder is None:
        return ""
    now = relocate((Path(there), Path(here)) if there else None, str(folder))
    return "" if now == here else now


def _describe_group(
    group: list[OpenCall],
    call: ReadCall | None,
    ended: int,
    verdicts: list[Verdict],
    rules: Rules,
    folder: str,
    workspace: str,
    cd: bool,
) -> InFlight:
    first, states = group[0].intent, {o.state for o in group}
    rule = classify(call, rules) if call is not None else NO_RULE
    cls = worse_class(first.cls, rule.cls)  # rules may have changed since
    finding, because = verdicts[0].finding, verdicts[0].why
    if any(v.finding != finding for v in verdicts):
        finding, because = "unknown", messages.MIXED_FINDINGS
    sent = sent_line(call, first.before, workspace) if call is not None and SENT in rule.done_if else ""
    advice = advise(cls, finding, rule, rules, folder, sent)
    return InFlight(
        calls=tuple(o.intent.call for o in group),
        issued=len(group) + ended,
        tool=first.tool,
        input=call.input if call is not None else None,
        started=first.time,
        cls=cls,
        why=rule.why,
        finding=finding,
        because=because,
        next=advice.next,
        rule=rule.rule,
        source=rule.source,
        verify=advice.verify,
        folder=folder,
        look=advice.look,
        behind_cd=_check_behind_cd(advice, call, folder or workspace) if cd and call is not None else "",
        reads=advice.reads,
        state=states.pop() if len(states) == 1 else "open",
    )


def carry_over(now: Sequence[Verdict], earlier: Recovery | None, here: Callable[[int], bool]) -> tuple[Verdict, ...]:
    """Return the verdicts, unknown ones replaced by what an earlier recovery proved.

    `here(call)`: what the call has done to files is in this workspace, if it was done before that recovery; where it
    may not be, the earlier finding claims too much."""
    proven = {v.call: v for v in earlier.verdicts if v.finding in PROVEN} if earlier is not None else {}
    verdicts = []
    for v in now:
        if v.finding == "unknown" and v.call in proven and here(v.call):
            then = proven[v.call]
            why = f"{messages.EARLIER}{then.why.removeprefix(messages.EARLIER)}"
            v = Verdict(call=v.call, finding=then.finding, why=why, verify=v.verify)
        verdicts.append(v)
    return tuple(verdicts)


class AskedCall(msgspec.Struct, frozen=True, dict=True):
    """A call in flight in the agent's prompt, with the commands that verify it together and the finding given there.
    `folder`: where it ran, on this machine; "" for the workspace. `look`: what was named there to run first,
    `behind_cd`: as in InFlight. `reads`: how to read what the checks print."""

    call: int
    tool: str
    input: bytes | None
    verify: tuple[str, ...] = ()
    finding: Finding = "unknown"
    folder: str = ""
    look: str = ""
    behind_cd: str = ""
    reads: tuple[Reading, ...] = ()

    @cached_property
    def read(self) -> ReadCall:
        return ReadCall(self.tool, self.input or b"", self.folder)


def asked_calls(calls: Iterable[InFlight]) -> tuple[AskedCall, ...]:
    """Return the calls of a prompt one by one."""
    return tuple(
        AskedCall(
            call, each.tool, each.input, each.verify, each.finding, each.folder, each.look, each.behind_cd, each.reads
        )
        for each in calls
        for call in each.calls
    )


def asked_call(
    call: int,
    read: ReadCall,
    cls: Class,
    rules: Rules,
    before: Sequence[Fact] = (),
    workspace: str = "",
    cd: bool = True,
) -> AskedCall:
    """Return an open call as the agent would be asked about it, without evidence. `before`: the facts of its intent;
    `cd`: as Capabilities.passes_cd."""
    rule = classify(read, rules)
    sent = sent_line(read, before, workspace) if SENT in rule.done_if else ""
    advice = advise(worse_class(cls, rule.cls), "unknown", rule, rules, read.folder, sent)
    behind = _check_behind_cd(advice, read, read.folder or workspace) if cd else ""
    return AskedCall(
        call, read.tool, read.input, advice.verify, "unknown", read.folder, advice.look, behind, advice.reads
    )


Once = Callable[[AskedCall], bool]


class Resolver:
    """Find which asked calls later calls resolve. Threads may share it."""

    def __init__(self, asked: Iterable[AskedCall], workspace: str = "") -> None:
        self._asked = tuple(asked)
        self._workspace = workspace
        self._lock = threading.Lock()
        self._runs: dict[int, Runs] = {}  # by asked call, once that is needed
        self._given = frozenset(a.call for a in self._asked)  # in the prompt
        self._found: dict[int, str] = {}
        self._left = {a.call: {*a.verify} for a in self._asked if a.verify}  # what is left to verify each with
        self._looked: dict[int, list[int]] = {}
        self._touched: set[int] = set()  # calls of which a later one may have looked what became of them
        self._refused: set[int] = set()
        self._in_a_row: Counter[int] = Counter()  # refusals of a call in this turn since any other succeeded
        self._read_as_done: dict[int, dict[str, Shown]] = {}  # by asked call, its checks that showed that it happened
        self._shown: dict[int, Shown] = {}  # calls that all their checks show to have happened, until work goes on
        self.ended: set[int] = set()  # calls whose end was returned

    def ask(self, asked: AskedCall) -> None:
        """From now on the agent is asked about this one too."""
        with self._lock:
            self._asked = (*(a for a in self._asked if a.call != asked.call), asked)
            if asked.verify:
                self._left[asked.call] = {*asked.verify}

    @property
    def asked(self) -> tuple[int, ...]:
        """The numbers of the asked calls."""
        return tuple(a.call for a in self._asked)

    def read_check(self, number: int, call: ReadCall, well: bool, result: bytes, once: Once) -> bool:
        """Read what a command that ended by itself printed, if it is a check of an asked call: what shows that this one
        happened resolves it, and an equal call is refused. Whatever else it prints says nothing. Return whether it is
        one. `well`: it ended with 0; `once`: whether the call has no equal one that was done before, which the check
        may show instead."""
        found = False
        with self._lock:
            asked_about = [a for a in self._asked if a.reads and a.finding == "unknown"]
            meant = [(a, r) for a in asked_about for r in a.reads if self._verified(call, a, (r.command,))]
        for asked, reading in meant:
            found = True
            line = shows_done(reading, well, result)
            if line is not None and (len(meant) > 1 or (reading.source and not once(asked))):
                line = None  # it may be about another one
            with self._lock:
                done = self._read_as_done.setdefault(asked.call, {})
                done.pop(reading.command, None)
                self._shown.pop(asked.call, None)
                if line is None:
                    continue
                output = beginning(reading.command, result)
                done[reading.command] = shown = Shown(number, reading.command, line, output, reading.source)
                if all(r.command in done for r in asked.reads):
                    self._shown[asked.call] = shown
                    if asked.call not in self.ended:
                        self._found[asked.call] = messages.shown_done(shown)
        return found

    def shown(self, call: int) -> Shown | None:
        """The check that shows that an asked call happened."""
        with self._lock:
            return self._shown.get(call)

    def observe_call(self, number: int, call: ReadCall, changes: bool = False) -> None:
        """Note a later call that succeeded. One without a folder counts as of the workspace. A call that ran elsewhere
        is only resolved there, whatever the words are. `changes`: it may have changed something, and is no check."""
        named = named_things(call)
        with self._lock:
            touched = {a.call for a in self._asked if a.input is not None and named & named_things(a.read)}
            touched |= self._refused  # an agent may look with a script that names nothing
            self._refused.clear()
            self._touched |= touched
            for each in touched:
                self._looked.setdefault(each, []).append(number)
            if changes:
                self._shown.clear()
            self._in_a_row = Counter({each: n for each, n in self._in_a_row.items() if each in self._shown})
        with self._lock:
            for asked in (a for a in self._asked if a.call not in self._found):
                if left := self._left.get(asked.call):
                    left -= self._verified(call, asked, left)
                    if not left:
                        self._found[asked.call] = messages.looked(number)

    def refuse(self, call: ReadCall, open: Collection[int]) -> AskedCall | None:
        """Return the asked call that this one would repeat although nothing can have looked yet whether it happened, or
        a check has shown that it did (`shown`). `open`: the calls that nobody has settled or answered for."""
        with self._lock:
            left = [a for a in self._asked if a.call in open and a.input is not None and a.finding == "unknown"]
            left = [a for a in left if a.call not in self._found and a.call not in self._touched]
            left += [a for a in self._asked if a.call in self._shown and a.input is not None]
        if not left:
            return None  # and nothing is read for it
        again = find_runs(call, self._workspace, load_rules())
        with self._lock:
            left = [a for a in left if would_repeat(self._runs_of(a), again)]
            if not left:
                return None
            first = left[0].tool, left[0].input, left[0].folder
            self._refused |= {a.call for a in left if (a.tool, a.input, a.folder) == first}  # identical ones
            self._in_a_row[left[0].call] += 1
            return left[0]

    def equals(self, asked: AskedCall, call: ReadCall) -> bool:
        """Whether another call is an asked one again."""
        again = find_runs(call, self._workspace, load_rules())
        with self._lock:
            return would_repeat(self._runs_of(asked), again)

    def _runs_of(self, asked: AskedCall) -> Runs:
        if asked.call not in self._runs:
            self._runs[asked.call] = find_runs(asked.read, self._workspace, load_rules())
        return self._runs[asked.call]

    def refused(self, call: int) -> int:
        """How often an asked call was refused in this turn since any other succeeded."""
        with self._lock:
            return self._in_a_row[call]

    def begin_turn(self) -> None:
        """Count refusals anew: the agent was prompted. What a prompt asks for may be a repetition."""
        with self._lock:
            self._in_a_row.clear()
            self._shown.clear()

    def _verified(self, call: ReadCall, asked: AskedCall, commands: Iterable[str]) -> set[str]:
        """Those of `commands` that a call is, run where the call in flight ran, with its output shown: in a list it may
        not have run, except where that is what was asked for, or behind `cd` to that folder."""
        place = asked.folder or self._workspace
        if any(call.known.get(name) != asked.read.known.get(name) for name in FOLDERS):
            return set()
        typed = call.known.get("command")
        rest = _behind(typed, place) if isinstance(typed, str) else ""
        if not rest and (call.folder or self._workspace) != place:
            return set()
        words = _plain_words(typed, call, skipped=1 if rest else 0)
        texts = {" ".join(text.split()) for text in (typed, rest) if isinstance(text, str)}
        return {c for c in commands if c in texts or (words is not None and words == _plain_words(c, asked.read))}

    def unlooked(self, open: Collection[int]) -> list[AskedCall]:
        """Return the asked calls in `open` of which no evidence says whether all or nothing of them happened, and
        nothing has looked."""
        with self._lock:
            known = self._touched | self._found.keys()
            return [a for a in self._asked if a.call in open and a.call not in known and a.finding not in PROVEN]

    def answers(self, open: Iterable[int], now: float) -> list[Answer]:
        """Return an answer for each call in `open` that the prompt asked about or that something looked at. `now`:
        seconds since 1970."""
        with self._lock:
            still = {*open} - self.ended
            looked = {call: tuple(calls[-MAX_LOOKED:]) for call, calls in self._looked.items()}
        answered = (a.call for a in self._asked if a.call in still and (a.call in self._given or a.call in looked))
        return [Answer(time=now, call=call, looked=looked.get(call, ())) for call in answered]

    def take_ends(self, open: Iterable[int], now: float) -> list[End]:
        """Return the ends of resolved calls that are still open, each once. `now`: seconds since 1970."""
        with self._lock:
            resolved = {*open} & self._found.keys() - self.ended
            self.ended |= resolved
        return [
            End(
                time=now,
                call=a.call,
                how="verified",
                by="recovery",
                why=self._found[a.call],
                finding="completed" if a.call in self._shown else a.finding,
            )
            for a in self._asked
            if a.call in resolved
        ]


def named_things(call: ReadCall) -> frozenset[str]:
    """Return what the input of a call names: its words with the last part of paths, but for options and the programs
    that can be about anything. It marks what the agent looked at and resolves nothing, so it may be coarse."""
    text = " ".join(v for k, v in call.known.items() if isinstance(v, str) and k != "description")
    words = {w.strip(".:/") for w in _NAME.findall(text[:MAX_TEXT]) if not w.startswith("-")}
    words |= {w.rpartition("/")[2] for w in words}
    return frozenset(w for w in words if len(w) > 2) - _NO_NAMES


def _behind(typed: str, folder: str) -> str:
    """Return what a text runs behind a `cd` to this folder; "" where it does not begin so."""
    quoted = shlex.quote(folder)
    spelled = (quoted, f'"{folder}"', f"'{folder}'") if quoted == folder else (quoted,)
    return next((typed.removeprefix(b) for each in spelled if typed.startswith(b := f"cd {each} && ")), "")


def _plain_words(text: object, call: ReadCall, skipped: int = 0) -> tuple[str, ...] | None:
    """Return the words of a single plain command behind `skipped` ones; None for anything else."""
    script = call.parse(text) if isinstance(text, str) and text else None
    if script is None or len(script.commands) != skipped + 1 or script.functions:
        return None
    command = script.commands[skipped]
    words = tuple(w.text for w in command.words)
    if not command.sure or command.redirects or command.assigns or not words or None in words:
        return None
    return tuple(w for w in words if w is not None)
