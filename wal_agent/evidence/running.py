"""Find which calls still ran when the recovery began, by the command lines of the old run's processes; and what became
of a run that a call started (`wal-agent run`), by the log of its own job.

A nested run logs its tool calls itself, so its log says what this call did.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from wal_agent.evidence import messages
from wal_agent.evidence.model import Budget, Context, Kind, NestedRun, Outcome, Reach, Step, program_name
from wal_agent.records import Fact, Finding, Intent
from wal_agent.shell.classify import read_input
from wal_agent.shell.quote import inline
from wal_agent.shell.rules import load_rules
from wal_agent.wal.state import State

# An agent's shell around one command: `bash -c` and the text; Gemini CLI has it in a subshell with a trap,
# Claude Code as the word of an eval. `file` is another one for each call; the shell's forks have the same line. Without
# a file (Codex, OpenCode, Copilot CLI, pi, Qwen Code) nothing distinguishes two of them, and a single plain command has
# no shell around it any more: bash became it.
_GEMINI = re.compile(
    r"(?:\S*/)?bash -c (?:shopt -u [a-z ]+;\s+)?_bgpids_file=(?P<file>'[^']*'|[^\s']+)\s+"
    r"\(\s+trap 'jobs -p > \"\$_bgpids_file\"' EXIT\s(?P<command>.*)\s\)\s+__code=\$\?\s+exit \$__code\s*",
    re.DOTALL,
)
_CLAUDE = re.compile(
    r"(?:\S*/)?(?:ba|z)sh -c (?:-l )?source \S+/shell-snapshots/snapshot-\S+ 2>/dev/null \|\| true && [^'\"]*"
    r"eval (?P<word>'.*')(?: < /dev/null)? && pwd -P >\| (?P<file>\S+)",
    re.DOTALL,
)
_PLAIN = re.compile(r"(?:\S*/)?(?:ba|z)?sh(?: --norc --noprofile)? -l?c (?P<command>.*)", re.DOTALL)


def find_running_calls(agent: str, state: State, inputs: Mapping[int, bytes], running: Iterable[str]) -> frozenset[int]:
    """The shell calls whose shell is among the running processes, where that can mean only them: of identical calls as
    many must run, also of those that have ended but may have left theirs behind. A process that merely names the
    command, or was started by it, proves nothing."""
    shells = load_rules().shells
    open_calls = {o.intent.call: o.intent for o in state.open}
    texts = {n: _text(i, inputs) for n, i in open_calls.items()}
    ended = Counter(_text(e.intent, inputs) for e in state.unsettled)
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


def _text(call: Intent, inputs: Mapping[int, bytes]) -> str:
    """The command of a shell call; "" for any other, and where it cannot be read."""
    shell = load_rules().shells.get(call.tool)
    text = (read_input(inputs.get(call.call, b"")) or {}).get(shell.field) if shell is not None else None
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
        elif agent not in ("gemini", "claude") and (shell := _PLAIN.fullmatch(line)):
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

    def judge_step(self, step: Step, how: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        return judge_nested_run(around.inner(step), around.gone)


def starts_run(step: Step) -> bool:
    return program_name(step) == "wal-agent" and step.words[1:2] == ("run",)


_RUN_ENDS: dict[str, tuple[Finding, str]] = {
    "closed": ("completed", messages.RUN_CLOSED),
    "cut_off": ("partial", messages.RUN_CUT_OFF),
    "released": ("partial", messages.RUN_RELEASED),
    "held": ("unknown", messages.RUN_HELD),
}


def judge_nested_run(inner: NestedRun | None, gone: bool) -> Outcome:
    """`gone`: nothing that could still begin it runs any more."""
    if inner is None:
        return Outcome("unknown")
    job = inline(inner.job)
    if not inner.began:
        return Outcome("not_started" if gone else "unknown", messages.RUN_NOT_BEGUN.format(job))
    finding, why = _RUN_ENDS[inner.state]
    return Outcome(finding, why.format(job))
