"""Collect facts before a call, and decide a verdict for every call in flight at a recovery (RECOVERY.md), from a call's
steps, what each kind of evidence finds for them, and whether its processes still run. Changes nothing, and stays within
a budget (I9).

`collect_facts` runs before every call that may change something, so it takes what it can get in 50 ms of work and
otherwise returns nothing. On a loaded machine the 2 ms that it mostly needs may take 60 ms of waiting, so waiting has a
limit of its own. The verdicts share 2 s in all.

A run that the call started (`wal-agent run`, `wal-agent task`) logs its own tool calls, so the log of that job says
what the call did.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import FOLDERS, classify, classify_words
from wal_agent.calls.quote import inline
from wal_agent.calls.rules.table import load_rules
from wal_agent.calls.shell.syntax import Simple, Word
from wal_agent.calls.shell.wrappers import literal_commands
from wal_agent.clock import Clock, SystemClock
from wal_agent.evidence.file_commands import Copies, Makes, Moves, Removes
from wal_agent.evidence.file_state import have_other_names, share_a_file
from wal_agent.evidence.files import (
    FileTools,
    Outputs,
    SedEdits,
    assess_opening,
    output_facts,
    output_files,
    read_changes,
)
from wal_agent.evidence.git import GitKind, sent_by_push
from wal_agent.evidence.model import (
    Budget,
    Context,
    Kind,
    NestedRun,
    Outcome,
    Reach,
    Step,
    call_folder,
    folder_fact,
    output_redirects,
    paths_overlap,
    relocate,
    resolve_path,
    resolve_reach,
)
from wal_agent.evidence.packages import PACKAGE_TOOLS, Packages
from wal_agent.records import Fact, Finding, Host, Intent, Opening, RunsOn, Verdict
from wal_agent.wal.state import OpenCall, State
from wal_agent.wording import findings

# An agent's shell around one command: `bash -c` and the text; Gemini CLI has it in a subshell with a trap,
# Claude Code as the word of an eval. `file` is another one for each call; the shell's forks have the same line. Without
# a file (Codex, OpenCode, Copilot CLI, pi, Qwen Code, Kimi Code behind a cd) nothing distinguishes two of them, and a
# single plain command has no shell around it any more: bash became it.
_GEMINI = re.compile(
    r"(?:\S*/)?bash -c (?:shopt -u [a-z ]+;\s+)?_bgpids_file=(?P<file>'[^']*'|[^\s']+)\s+"
    r"\(\s+trap 'jobs -p > \"\$_bgpids_file\"' EXIT\s(?P<command>.*)\s\)\s+__code=\$\?\s+exit \$__code\s*",
    re.DOTALL,
)
_CLAUDE = re.compile(
    r"(?:\S*/)?(?:ba|z)sh -c (?:-l )?source \S+/shell-snapshots/snapshot-\S+ 2>/dev/null \|\| true && "
    r"(?:[^'\"]|'[\w.+-]*')*?eval (?P<word>'.*'|[\w@%+=:,./-]+)(?: < /dev/null)? && pwd -P >\| (?P<file>\S+)",
    re.DOTALL,
)
_KIMI = re.compile(r"(?:\S*/)?(?:ba|z)?sh -c cd (?:'[^']*'|[^\s']+) && (?P<command>.*)", re.DOTALL)
_PLAIN = re.compile(r"(?:\S*/)?(?:ba|z)?sh(?: --norc --noprofile)? -l?c (?P<command>.*)", re.DOTALL)
_MAX_STEPS = 16
MAX_FACTS = 40  # of one call: an intent stays small
MAX_VALUE = 400  # characters of one fact
BEFORE_WORK = 0.05  # seconds of this thread's work
BEFORE_WAIT = 1.0  # seconds in all, with what the thread waits for its turn or a slow disk
NOW_BUDGET = 2.0  # seconds, for all calls of a recovery
_NOWHERE = Path("/")  # for the first `cd` of a command whose folder is not known
_ELSEWHERE = frozenset(FOLDERS)
# These change what later words of the same shell mean, or whether they are reached.
_BUILTINS = re.compile(
    "alias|bg|break|builtin|command|continue|declare|disown|dirs|enable|eval|exec|exit|export|fg|getopts|hash|jobs|let|"
    "local|logout|mapfile|popd|pushd|read|readarray|readonly|return|select|set|shift|shopt|source|[.]|suspend|trap|"
    "typeset|ulimit|umask|unalias|unset|wait"
)
_SYSTEM = SystemClock()

_RUN_ENDS: dict[str, tuple[Finding, str]] = {
    "closed": ("completed", findings.RUN_CLOSED),
    "cut_off": ("partial", findings.RUN_CUT_OFF),
    "released": ("partial", findings.RUN_RELEASED),
    "held": ("unknown", findings.RUN_HELD),
}

_WORDS = {  # of one, of several
    "completed": ("completed", "completed"),
    "not_started": ("has not begun", "have not begun"),
    "partial": ("was begun", "were begun"),
}

# By program. What is no program here has no evidence but that of its output file.
_KINDS: Mapping[str, Kind[Any]] = {
    "git": GitKind(),
    "mv": Moves(),
    "cp": Copies(),
    "sed": SedEdits(),
    **dict.fromkeys(("rm", "rmdir", "unlink"), Removes()),
    **dict.fromkeys(("mkdir", "touch", "truncate", "ln"), Makes()),
    **dict.fromkeys(PACKAGE_TOOLS, Packages()),
}

_UNLOGGED = Outcome("unknown", findings.UNLOGGED)


def find_running_calls(
    agent: str, state: State, calls: Mapping[int, ReadCall], running: Iterable[str]
) -> frozenset[int]:
    """The shell calls whose shell is among the running processes, where that can mean only them: of identical calls as
    many must run, also of those that have ended but may have left theirs behind. A process that merely names the
    command, or was started by it, proves nothing."""
    shells = load_rules().shells
    open_calls = {o.intent.call: o.intent for o in state.open}
    texts = {n: _text(calls.get(n)) for n in open_calls}
    ended = Counter(_text(calls.get(e.intent.call)) for e in state.unsettled)
    found = _shells(agent, running)
    sure: set[int] = set()
    for text in {t for t in texts.values() if t}:
        same = [n for n, t in texts.items() if t == text]
        files = found.get(text, set())
        if "" in files:  # it may be a fork, or the work of any other call that runs programs
            others = [i for n, i in open_calls.items() if n not in same and i.tool not in load_rules().files]
            if len(same) == 1 and not ended[text] and not any(i.cls != "read_only" or i.tool in shells for i in others):
                sure.update(same)
        elif len(files) >= len(same) + ended[text]:
            sure.update(same)
    return frozenset(sure)


def _text(call: ReadCall | None) -> str:
    """The command of a shell call; "" for any other, and where it cannot be read."""
    shell = load_rules().shells.get(call.tool) if call is not None else None
    text = call.known.get(shell.field) if call is not None and shell is not None else None
    return text.strip() if isinstance(text, str) else ""


def _shells(agent: str, running: Iterable[str]) -> dict[str, set[str]]:
    """By command the files that distinguish the shells around it; "" for one that has none."""
    found: dict[str, set[str]] = {}
    for line in running:
        if agent == "gemini" and (shell := _GEMINI.fullmatch(line)):
            found.setdefault(shell["command"].strip(), set()).add(shell["file"])
        elif agent == "claude" and (shell := _CLAUDE.fullmatch(line)):
            if (command := _unquoted(shell["word"])) is not None:
                found.setdefault(command.strip(), set()).add(shell["file"])
        elif agent not in ("gemini", "claude") and (shell := (_KIMI if agent == "kimi" else _PLAIN).fullmatch(line)):
            found.setdefault(shell["command"].strip(), set()).add("")
    return found


def _unquoted(word: str) -> str | None:
    try:
        words = shlex.split(word)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


class Runs(Kind[Step]):
    def parse(self, step: Step) -> Step | None:
        return step if starts_run(step) else None

    def reach(self, step: Step, how: Step) -> Reach | None:
        return None

    def facts_before(self, step: Step, how: Step, budget: Budget) -> tuple[Fact, ...]:
        return ()

    def assess_step(self, step: Step, how: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        return assess_nested_run(around.inner(step), around.gone)


def starts_run(step: Step) -> bool:
    return step.program == "wal-agent" and step.words[1:2] in (("run",), ("task",))


def assess_nested_run(inner: NestedRun | None, gone: bool) -> Outcome:
    """`gone`: nothing that could still begin it runs any more."""
    if inner is None:
        return Outcome("unknown")
    job = inline(inner.job)
    if not inner.began:
        return Outcome("not_started" if gone else "unknown", findings.RUN_NOT_BEGUN.format(job))
    finding, why = _RUN_ENDS[inner.state]
    return Outcome(finding, why.format(job))


class NamedOutcome(msgspec.Struct, frozen=True):
    """A step's finding; `name` is the step in a few words, safe to show."""

    name: str
    found: Outcome


def combine_outcomes(steps: Sequence[NamedOutcome]) -> Outcome:
    """One finding for a call whose changing steps are all here, in their order.

    Steps whose `completed` holds either way fit to whatever the others say. Steps run one after the other, so what has
    begun must come before what has not; anything else is unknown.
    """
    if not steps:
        return Outcome("unknown")
    if len(steps) == 1:
        return steps[0].found
    counted = [s for s in steps if not s.found.either] or list(steps)
    order = [s.found.finding for s in counted]
    if len(set(order)) == 1 and order[0] in ("completed", "not_started"):
        whys = list(dict.fromkeys(s.found.why for s in counted if s.found.why))
        return Outcome(order[0], " ".join(whys[:3]), either=all(s.found.either for s in counted))
    if "unknown" not in order and _in_order(order):
        return Outcome("partial", _said(counted))
    known = [s for s in counted if s.found.finding != "unknown"]
    if not known:
        return Outcome("unknown", next((s.found.why for s in counted if s.found.why), ""))
    dark = [s.name for s in counted if s.found.finding == "unknown"]
    return Outcome("unknown", f"{_said(known)}{findings.OF_OTHERS_UNKNOWN.format(_join(dark)) if dark else ''}")


def _in_order(order: Sequence[str]) -> bool:
    """completed, then at most one partial, then not_started."""
    rank = {"completed": 0, "partial": 1, "not_started": 2}
    ranks = [rank[f] for f in order]
    return ranks == sorted(ranks) and ranks.count(1) <= 1


def _said(steps: Sequence[NamedOutcome]) -> str:
    parts = []
    for finding, words in _WORDS.items():
        if names := [s.name for s in steps if s.found.finding == finding]:
            parts.append(f"{_join(names)} {words[len(names) > 1]}")
    return "; ".join(parts) + "."


def _join(names: Sequence[str]) -> str:
    shown = [*names[:4], *([f"{len(names) - 4} more"] if len(names) > 4 else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def split_call(
    call: ReadCall, workspace: Path, moved: tuple[Path, Path] | None = None, cwd: Path | None = None
) -> tuple[Step, ...] | None:
    """What a call does, step by step; None where its words do not show that. `cwd`: where the agent reports that it
    runs, absolute, on this machine.

    A `cd` is no step: it moves what follows, and its folder must be there."""
    fields = call.fields
    if fields is None:
        return None
    step = Step(call.tool, (), (), cwd or workspace, moved)
    shell = load_rules().shells.get(call.tool)
    if shell is None:
        changes = read_changes(call.tool, fields, sure=cwd is not None)
        return None if changes is None else tuple(replace(step, file=c) for c in changes)
    text = fields.get(shell.field)
    at = next((v for name in shell.folder if (v := fields.get(name))), ".")
    strange = shell.strange({k: v for k, v in fields.items() if v != ""}) or fields.keys() & _ELSEWHERE - {
        *shell.folder
    }
    if not isinstance(text, str) or not isinstance(at, str) or strange or "CDPATH" in os.environ:
        return None
    commands = literal_commands(call.parse(text))
    here = None if at.startswith("~") else resolve_path(step, at)
    if not commands or len(commands) > _MAX_STEPS or here is None:
        return None
    step = replace(step, cwd=Path(here))
    if cwd is None and shell.wanders:
        first = [w.text or "" for w in commands[0].words]
        if len(first) != 2 or first[0] != "cd" or not first[1].startswith("/"):
            return None
        step = replace(step, cwd=_NOWHERE)
    steps: list[Step] = []
    for one in commands:
        words = tuple(w.text for w in one.words if w.text is not None)
        if (
            len(words) != len(one.words)
            or one.assigns
            or any(r.to is not None and r.to.text is None for r in one.redirects)
        ):
            return None
        name = words[0] if words else ""
        if name == "cd":
            folder = resolve_path(step, words[1]) if len(words) == 2 and words[1][:1] not in ("-", "~") else None
            if folder is None or one.redirects or not Path(folder).is_dir():
                return None
            step = replace(step, cwd=Path(folder))
            continue
        if _BUILTINS.fullmatch(name):
            return None
        steps.append(replace(step, words=words, redirects=one.redirects, input=one.input))
    return tuple(steps)


_OUTPUTS, _TOOLS, _RUNS = Outputs(), FileTools(), Runs()


class Part(msgspec.Struct, frozen=True):
    """A changing step, the kind of evidence that knows it with what that made of its words, and what it reaches; None
    where that is not known. `outputs`: it has files for its output, beside what it does."""

    step: Step
    kind: Kind[Any] | None = None
    how: Any = None
    reach: Reach | None = None
    outputs: bool = False

    @property
    def only_reads(self) -> bool:
        """Apart from its output."""
        return self.outputs and self.kind is None and self.reach is not None


def read_parts(
    call: ReadCall, workspace: Path, moved: tuple[Path, Path] | None = None, cwd: Path | None = None
) -> tuple[Part, ...]:
    """The steps of a call that may change anything; empty where the call cannot be read. `cwd`: as in `split_call`."""
    parts = (_read_part(step, call) for step in split_call(call, workspace, moved, cwd) or ())
    return tuple(part for part in parts if part is not None)


def _read_part(step: Step, call: ReadCall) -> Part | None:
    """None for a step that only reads."""
    if step.file is not None:
        return _part_of_kind(step, _TOOLS)
    redirected = bool(output_redirects(step))
    reads = _reads(step, call)
    if reads and not redirected:
        return None
    name = step.program
    if name == "wal-agent" and starts_run(step):  # its own log records it, whatever file takes its output
        return Part(step, _RUNS, step, outputs=redirected)
    if (redirected or name == "tee") and (how := _OUTPUTS.parse(step)) is not None:
        return Part(step, _OUTPUTS, how, _OUTPUTS.reach(step, how))
    part = _part_of_kind(step, _KINDS.get(name))
    if not redirected:
        return part
    reach = part.reach
    if reach is None and reads:
        part, reach = Part(step), Reach(())
    paths = output_files(step)
    if reach is None or not paths or _touch((*reach.changes, *reach.reads), paths):  # `rm x > x`
        return Part(step, outputs=True)
    return replace(part, reach=Reach((*reach.changes, *paths), reach.reads), outputs=True)


def _part_of_kind(step: Step, kind: Kind[Any] | None) -> Part:
    how = None if kind is None else kind.parse(step)
    return Part(step) if kind is None or how is None else Part(step, kind, how, kind.reach(step, how))


def _reads(step: Step, call: ReadCall) -> bool:
    """Whether the command itself changes nothing, whatever its redirections do."""
    words = tuple(Word(word, word) for word in step.words)
    return not words or classify_words(Simple(words), call, load_rules()).cls == "read_only"


def are_entangled(parts: Sequence[Part]) -> bool:
    """Whether a step works on what an earlier one changes, so that the state before the call proves nothing for
    it. A folder that was made is no such thing for what is made in it."""
    for n, later in enumerate(parts):
        for earlier in parts[:n]:
            if earlier.reach is None or later.reach is None:
                continue
            changes = later.reach.changes
            if earlier.step.words[:1] == ("mkdir",):
                changes = tuple(c for c in changes if not any(c.startswith(f"{e}/") for e in earlier.reach.changes))
            if _touch(earlier.reach.changes, (*changes, *later.reach.reads)):
                return True
    return False


def _touch(one: Sequence[str], other: Sequence[str]) -> bool:
    return any(a == b or a.startswith(f"{b}/") or b.startswith(f"{a}/") for a in one for b in other)


def facts_before(parts: Sequence[Part], budget: Budget) -> tuple[Fact, ...]:
    """What is true before the call. All or nothing for each step; nothing where steps work on one thing."""
    found: dict[Fact, None] = {}
    if are_entangled(parts):
        return ()
    for part in parts:
        if budget.over:
            break
        facts = () if part.kind is None else part.kind.facts_before(part.step, part.how, budget)
        if part.outputs:
            facts = (*facts, *output_facts(part.step, budget))
        if any(len(f.value) > MAX_VALUE for f in facts) or len(found) + len(facts) > MAX_FACTS:
            continue
        found |= dict.fromkeys(facts)
    return tuple(found)


def assess_call(
    parts: Sequence[Part], facts: Sequence[Fact], around: Context, covers: Callable[[str], bool], budget: Budget
) -> Outcome:
    """What became of a call. `covers`: whether a path is in the working tree here that was put back from a capture."""
    if around.running:
        return Outcome("partial", findings.STILL_RAN)
    if are_entangled(parts):
        return Outcome("unknown", findings.ENTANGLED)
    outcomes = []
    for part in parts:
        paths = part.reach.changes if part.reach is not None else output_files(part.step)
        back = [covers(p) for p in paths]
        # What was put back is not what the call worked on, even where it is the same machine.
        here = replace(around, same_place=around.same_place and not any(back))
        if part.reach is not None and back and all(back):
            here = replace(here, restored=True)
        outcomes.append(NamedOutcome(describe_step(part.step), _assess_part(part, facts, here, budget)))
    return combine_outcomes(outcomes)


def _assess_part(part: Part, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
    out = assess_opening(part.step, facts, around, part.only_reads) if part.outputs else Outcome("unknown")
    if out.finding == "not_started":
        return out
    kind = part.kind
    found = Outcome("unknown") if kind is None else kind.assess_step(part.step, part.how, facts, around, budget)
    if part.outputs and found.finding == "not_started":
        return Outcome("unknown", out.why or findings.OUTPUT_MAYBE_OPENED.format(found.why[:-1]))
    return found if found.finding != "unknown" or found.why else out


def describe_step(step: Step) -> str:
    """A step in a few words, safe to show."""
    if not step.words:
        return inline("a redirection" if step.file is None else step.tool)
    return inline(shlex.join(step.words), 60)


def changed_paths(parts: Sequence[Part]) -> tuple[str, ...] | None:
    """All that a call may change, links followed; None where that is not known."""
    if not parts or any(p.reach is None for p in parts):
        return None
    return tuple(path for p in parts if p.reach is not None for path in resolve_reach(p.reach))


def change_apart(mine: Sequence[str] | None, other: Sequence[str] | None) -> bool:
    """Whether two calls are known to change different things."""
    return mine is not None and other is not None and not paths_overlap(mine, other)


def collect_facts(
    call: ReadCall, workspace: Path, clock: Clock = _SYSTEM, work: Callable[[], float] = time.thread_time
) -> tuple[Fact, ...]:
    """What is true before a call of what it may change: small facts, empty where nothing safe is known in time. The
    folder where the agent says that it runs is a fact itself. `work`: seconds that this thread has worked."""
    load_rules()  # reading them the first time takes longer than all the rest may
    budget = Budget(clock, clock.boot() + BEFORE_WAIT, work=work, most_work=work() + BEFORE_WORK)
    folder = folder_fact(call.folder)
    return (*folder, *facts_before(read_parts(call, workspace, cwd=call_folder(folder)), budget))


def sent_line(call: ReadCall, before: Sequence[Fact], workspace: str) -> str:
    """What `git ls-remote` lists once a remote has the commit that a push of one branch was to send, by what was true
    before it; "" where that is not known."""
    parts = read_parts(call, Path(workspace or "/"), cwd=call_folder(before))
    return sent_by_push(parts[0].how, before) if len(parts) == 1 else ""


LookUp = Callable[[Step, str, float], NestedRun | None]
"""A run that a step starts, by the id of the run that made the call, and when it did."""


class Remains(msgspec.Struct, frozen=True):
    """What is left of the old run. `gone`: nothing of it is running any more; for a run on another machine, that its
    last hook deadline is over. `running`: whole command lines of its processes that were still running here and are
    ended by this recovery; `calls`: those of which processes are known to be among them."""

    gone: bool
    running: Sequence[str] = ()
    calls: Collection[int] = ()


def decide_verdicts(
    state: State,
    calls: Mapping[int, ReadCall],
    here: Host,
    workspace: Path,
    remains: Remains,
    clock: Clock = _SYSTEM,
    covers: Callable[[str], bool] = lambda path: False,
    inner: LookUp = lambda step, run, since: None,
) -> tuple[Verdict, ...]:
    """A verdict for every open call of `state` (the log before our opening).

    `calls`: by their numbers, as far as they can be read. `covers`: whether an absolute path is of the working tree
    here that was put back from a capture, and is something that a capture holds (not ignored). `inner`: looks up the
    run that a step starts."""
    gone = remains.gone
    runs = {o.opening.epoch: o.opening for o in state.openings}
    agent = state.openings[-1].opening.agent if state.openings else ""
    ended_now = find_running_calls(agent, state, calls, remains.running) | {*remains.calls}
    until = clock.boot() + NOW_BUDGET
    overlap = CallOverlap(state, calls, workspace, Budget(clock, until - NOW_BUDGET / 2))
    found: list[Verdict] = []
    for n, o in enumerate(state.open):
        call, run = calls.get(o.intent.call), runs.get(o.epoch)
        now = clock.boot()
        share = Budget(clock, now + max(0.0, until - now) / (len(state.open) - n))
        outcome = Outcome("unknown")
        if call is not None and now < until:
            same = run is not None and run.workspace == str(workspace)
            way = None if run is None or same else (Path(run.workspace), workspace)
            around = Context(
                same_place=same and run is not None and (run.host.boot, run.host.pidns) == (here.boot, here.pidns),
                gone=gone,
                alone=overlap.ran_alone(o),
                contested=overlap.is_contested(o),
                running=o.intent.call in ended_now,
                inner=partial(_find_inner_run, inner, run, o.intent.time),
            )
            facts = [Fact(what=f.what, where=relocate(way, f.where), value=f.value) for f in o.intent.before]
            parts = read_parts(call, workspace, way, call_folder(facts))
            outcome = assess_call(parts, facts, around, covers, share)
            if outcome == Outcome("unknown") and isinstance(o.held, RunsOn):
                said = findings.RAN_ON_HERE if gone else findings.RAN_ON
                outcome = Outcome("unknown", said if around.same_place else findings.RAN_ON_AWAY)
            elif outcome == Outcome("unknown") and around.same_place and gone and o.intent.tool in load_rules().shells:
                outcome = Outcome("unknown", findings.ENDING_NOT_KEPT)
        elif o.intent.call in ended_now:
            outcome = assess_call((), (), Context(running=True), covers, share)
        if o.intent.unlogged and outcome.finding != "completed":
            outcome = _UNLOGGED
        found.append(Verdict(call=o.intent.call, finding=outcome.finding, why=outcome.why))
    return tuple(found)


def leaves_as_written(call: ReadCall, workspace: Path, moved: tuple[Path, Path] | None, budget: Budget) -> bool:
    """Whether each file that a call wrote as a whole holds just that here. False for a call that does anything else.
    `moved`: as in `split_call`."""
    parts = read_parts(call, workspace, moved)
    whole = bool(parts) and all(part.step.file is not None and part.step.file.content is not None for part in parts)
    return whole and assess_call(parts, (), Context(), lambda path: False, budget).finding == "completed"


class CallOverlap:
    """Tells which calls may have changed what others change. What a call changes is read once. `budget`: what is not
    read in its time may change anything."""

    def __init__(
        self, state: State, calls: Mapping[int, ReadCall], workspace: Path, budget: Budget | None = None
    ) -> None:
        self._state, self._calls, self._workspace, self._budget = state, calls, workspace, budget
        self._known: dict[int, tuple[str, ...] | None] = {}
        kept = {x.intent.call for x in state.open} | {e.intent.call for e in state.unsettled}
        # A call that has ended and is no longer in the state may have done anything.
        self._forgotten = state.next_call - 1
        while self._forgotten in kept:
            self._forgotten -= 1

    def ran_alone(self, o: OpenCall) -> bool:
        """Whether no other call can have touched what this one changes since it began: every call that was open with
        it, ended after it began or began later only reads, or is known to change other things."""
        mine = self._changes(o.intent)
        if mine is None or self._forgotten > o.intent.call:
            return False
        others = [its for its in self._others(o) if its != ()]
        if others and have_other_names(mine, o.intent.before):
            return False  # any of them may change it by its other name
        return all(change_apart(mine, its) for its in others)

    def is_contested(self, o: OpenCall) -> bool:
        """Whether another call since this one began is known to change what it changes."""
        mine = self._changes(o.intent)
        if mine is None:
            return True
        known = [its for its in self._others(o) if its is not None]
        return any(not change_apart(mine, its) or share_a_file(mine, its) for its in known)

    def _others(self, o: OpenCall) -> Iterator[tuple[str, ...] | None]:
        """What each other call changes that may have been beside this one. Also those that ended before it was logged:
        what was true before it was looked at earlier than that, and clocks step back, so no times are compared."""
        others = [x.intent for x in self._state.open if x.intent.call != o.intent.call]
        others += [e.intent for e in self._state.unsettled]
        return (self._changes(x) for x in others)

    def _changes(self, intent: Intent) -> tuple[str, ...] | None:
        if intent.call not in self._known:
            call = self._calls.get(intent.call)
            late = self._budget is not None and self._budget.over
            if call is None or late:
                self._known[intent.call] = None
            # Where a rule of the project made it read-only, that proves nothing.
            elif intent.cls == "read_only" and classify(call, load_rules(), explain=False).cls == "read_only":
                self._known[intent.call] = ()
            else:
                parts = read_parts(call, self._workspace, cwd=call_folder(intent.before))
                self._known[intent.call] = changed_paths(parts)
        return self._known[intent.call]


def _find_inner_run(look_up: LookUp, run: Opening | None, since: float, step: Step) -> NestedRun | None:
    return None if run is None else look_up(step, run.run, since)
