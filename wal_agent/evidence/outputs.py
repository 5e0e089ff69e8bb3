"""Redirected output, and tee: a file with known content, or one that tells only whether its command began."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wal_agent.evidence.file_state import (
    ABSENT,
    entry_fact,
    judge_append,
    judge_as_before,
    judge_unchanged,
    judge_write,
    parent,
    path_facts,
    read_facts,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step, parse_argv, program_name, resolve_path
from wal_agent.evidence.steps import output_redirects
from wal_agent.records import Fact
from wal_agent.shell.quote import inline

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


class Outputs:
    """Commands all of whose effect is the file that they write: what they print is known, or they only read."""

    def reach(self, step: Step) -> Reach | None:
        paths = output_files(step)
        return Reach(paths) if paths and _writes(step) is not None else None

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        paths = output_files(step)
        if not paths or _writes(step) is None:
            return None
        return path_facts(paths, budget, content=True)

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        paths, content = output_files(step), _writes(step)
        if not paths or content is None:
            return None
        was = read_facts(facts, paths[0])
        if len(paths) > 1 or was is None or was.entry.kind not in ("file", "absent"):
            return Outcome("unknown")
        now = read_file(paths[0], budget)
        if was.content is None:
            return Outcome("unknown", f"Nothing is known of the file {inline(paths[0])} before the call.")
        if _appends(step):
            return judge_append(content, was.content, was.entry.size, now, around)
        return judge_write((content,), was.content, now, True, around)


def output_files(step: Step) -> tuple[str, ...]:
    """The files that a step's redirections write, and tee's; empty where one of them cannot be told."""
    words = [r.to.text if r.to is not None else None for r in output_redirects(step)]
    if any(w is None or r.op in ("<>", ">&") for w, r in zip(words, output_redirects(step), strict=True)):
        return ()
    if program_name(step) == "tee":
        how = parse_argv(step.words, "a", ("--append",))
        if how is None or words:
            return ()
        words = list(how.operands)
    paths = [resolve_path(step, w) for w in words if w is not None and not w.endswith("/")]
    if None in paths or len(set(paths)) != len(words):
        return ()
    return tuple(p for p in paths if p is not None)


def judge_opening(step: Step, facts: Sequence[Fact], around: Context, only_reads: bool) -> Outcome:
    """Of any command with output files: `not_started` where the shell has not opened them, which it does before it runs
    the command. That is seen by times, which no other call can put back: a file that was opened with > has other ones;
    one that was not there may have been removed again by its command, so its folder must be as it was, too. Where the
    command itself only reads, files that are as they were are enough."""
    paths = output_files(step)
    if not paths or not around.same_place:
        return Outcome("unknown")
    for path in paths:
        was, now = read_facts(facts, path), stat_entry(path)
        if was is None or now is None:
            return Outcome("unknown")
        if was.entry != now:
            return Outcome(
                "unknown", f"The file {inline(path)} has changed since the call, so the command may have begun."
            )
        if only_reads and (now.absent or was.unmoved(now)):
            continue
        if now.absent:
            was, now = read_facts(facts, parent(path)), stat_entry(parent(path))
        elif now.size == 0 or any(">>" in r.op for r in output_redirects(step)):
            return Outcome("unknown")  # opening it may leave no mark
        if was is None or now is None or not was.unmoved(now):
            return Outcome("unknown")
    if only_reads:
        return judge_unchanged(inline(paths[0]), True, around)
    same = f"The shell has not opened the file {inline(paths[0])}, which it does before the command runs"
    return judge_as_before(same, True, replace(around, alone=True))


def output_facts(step: Step, budget: Budget) -> tuple[Fact, ...]:
    """What `opened` needs."""
    found = path_facts(output_files(step), budget)
    above = (entry_fact(parent(f.where), budget) for f in found if f.value == ABSENT)
    return tuple(dict.fromkeys((*found, *(f for f in above if f is not None))))


def _appends(step: Step) -> bool:
    if program_name(step) == "tee":
        return any(w in ("-a", "--append") for w in step.words[1:])
    return any(">>" in r.op for r in output_redirects(step))


def _writes(step: Step) -> bytes | None:
    """The bytes that a step writes to its one output; None where they are not known."""
    redirects = output_redirects(step)
    if program_name(step) != "tee" and (len(redirects) != 1 or redirects[0].fd not in (None, 1)):
        return None
    text = _printed(step)
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        return None


def _printed(step: Step) -> str | None:
    ins = [r for r in step.redirects if r.op.startswith("<")]
    match step.words:
        case () | (":",) | ("true",):
            return "" if not ins else None
        case ("echo", *words) if not ins:
            end = "\n"
            if words[:1] == ["-n"]:
                words, end = words[1:], ""
            # Options further in, and backslashes where echo's xpg_echo is on, mean something else.
            odd = any("\\" in w for w in words) or words[:1] in (["-e"], ["-E"], ["-n"]) or _flags(words)
            return None if odd else " ".join(words) + end
        case ("printf", form, *words) if not ins:
            return _format(form, words)
        case ("cat",) | ("tee", *_):
            return step.input if [r.op for r in ins] in (["<<"], ["<<-"]) else None
    return None


def _flags(words: Sequence[str]) -> bool:
    return bool(words) and len(words[0]) > 1 and words[0][0] == "-" and set(words[0][1:]) <= set("neE")


def _format(form: str, words: Sequence[str]) -> str | None:
    r"""printf with plain text, \n, \t, \\ and, where words follow, each %s for one of them."""
    out, rest, at = [], list(words), 0
    if form.startswith("-") or (words and "%s" not in form):
        return None
    while at < len(form):
        two = form[at : at + 2]
        if form[at] == "\\":
            if two[1:] not in _ESCAPES:
                return None
            out.append(_ESCAPES[two[1:]])
            at += 2
        elif form[at] == "%":
            if two not in ("%s", "%%"):
                return None
            out.append("%" if two == "%%" else rest.pop(0) if rest else "")
            at += 2
        else:
            out.append(form[at])
            at += 1
        if at == len(form) and rest:
            at = 0
    return "".join(out)


OUTPUTS = Outputs()
