"""Evidence for commands whose whole effect is the content of a file: file tools, redirected output, tee, `sed -i`.

The fields of file tools are data (63-files.toml). Output with content that is not known shows only whether its command
began: the shell opens the file before it runs the command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from wal_agent.calls.argv import parse_argv, parse_options
from wal_agent.calls.quote import inline
from wal_agent.calls.rules.table import load_rules
from wal_agent.evidence.file_state import (
    ABSENT,
    Entry,
    PathFacts,
    PathState,
    assess_append,
    assess_as_before,
    assess_paths,
    assess_replacement,
    assess_unchanged,
    assess_write,
    compare_paths,
    content_fact,
    entry_fact,
    is_untouched,
    line_end_variants,
    parent,
    path_facts,
    read_facts,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import (
    Budget,
    Context,
    FileChange,
    Kind,
    Outcome,
    Reach,
    Step,
    output_redirects,
    resolve_path,
    resolve_paths,
)
from wal_agent.records import Fact
from wal_agent.wording import findings

_MAX_CHANGES = 16
# A patch of new files only. Programs differ in what they make of anything else: blanks around it, other lines, "\r".
_ADDED = re.compile(r"\*\*\* Add File: (?P<path>[^\n]+)\n(?P<lines>(?:\+[^\n\r]*\n)*)")
_ENDS = ("*** Begin Patch\n", "*** End Patch")
_PLACE = r"(?:[0-9]+|\$|/(?:\\[^\n]|[^/\\\n])*/)"
_TEE = parse_options("-a|--append")

# One address or two, and a substitution or deletion. No flag or command that writes elsewhere or executes (w, e, r).
_SCRIPT = re.compile(
    rf"(?:(?P<one>{_PLACE})(?:,(?P<two>{_PLACE}))?)?(?:(?P<delete>d)|s(?P<by>[/|#,@:])"
    r"(?P<old>(?:\\[^\n]|(?!(?P=by))[^\\\n])*)(?P=by)(?P<new>(?:\\[^\n]|(?!(?P=by))[^\\\n])*)(?P=by)"
    r"(?P<flags>[gIi0-9]*));?"
)

_SED = parse_options("-i -E|-r", "-e")


def read_changes(tool: str, fields: Mapping[str, object], sure: bool) -> tuple[FileChange, ...] | None:
    """What a call of a file tool is to do, in its order; None where that is not known from its fields, or for any other
    tool. `sure`: the folder that it works in is known."""
    known = next((f for f in load_rules().files.get(tool, ()) if f.fits(fields)), None)
    if known is None:
        return None
    path, content, old, new = (str(fields.get(f, "")) for f in (known.path, known.content, known.old, known.new))
    if known.kind == "patch":
        return _added(content, sure)
    if known.kind == "write":
        return (FileChange(path, content, keeps=known.keeps, sure=sure),)
    return (FileChange(path, None, old, new, creates=known.creates, sure=sure),)


def _added(patch: str, sure: bool) -> tuple[FileChange, ...] | None:
    begin, end = _ENDS
    text = patch.removesuffix("\n")
    if not text.startswith(begin) or not text.endswith(end):
        return None
    rest = text[len(begin) : -len(end)]
    found: list[FileChange] = []
    while rest and len(found) < _MAX_CHANGES:
        added = _ADDED.match(rest)
        if added is None:
            return None
        content = "".join(f"{line[1:]}\n" for line in added["lines"].split("\n")[:-1])
        found.append(FileChange(added["path"], content, keeps=True, sure=sure))
        rest = rest[added.end() :]
    return tuple(found) if found and not rest else None


def target_file(step: Step) -> str | None:
    """The one file that a file tool changes; None for a path that an agent may read in another way (percent escapes, a
    leading @ or ~, file: URLs, blanks at the ends, other blanks than spaces)."""
    named = step.file.path if step.file is not None else ""
    if not named or named != named.strip() or "%" in named or any(c.isspace() and c != " " for c in named):
        return None
    if named.startswith(("@", "file:", "~")) or named.endswith("/"):
        return None
    return resolve_path(step, named)


class FileTools(Kind[FileChange]):
    def parse(self, step: Step) -> FileChange | None:
        return step.file

    def reach(self, step: Step, how: FileChange) -> Reach | None:
        path = target_file(step)
        return None if path is None else Reach((path,))

    def facts_before(self, step: Step, how: FileChange, budget: Budget) -> tuple[Fact, ...]:
        path = target_file(step)
        fact = None if path is None else content_fact(path, budget)
        return () if fact is None else (fact,)

    def assess_step(
        self, step: Step, how: FileChange, facts: Sequence[Fact], around: Context, budget: Budget
    ) -> Outcome:
        path = target_file(step)
        if path is None:
            return Outcome("unknown")
        before = next((f for f in facts if (f.what, f.where) == ("file", path)), None)
        absolute = how.sure or how.path.startswith("/")
        now = read_file(path, budget)
        if how.content is not None:
            wanted = line_end_variants(how.content)[: 1 if how.keeps else None]
        elif how.old == "" and how.new and how.creates and before is not None and before.value == ABSENT:
            wanted = line_end_variants(how.new)
        elif how.old in ("", how.new):
            return Outcome("unknown")
        else:
            return assess_replacement(how.old, how.new, before, now, absolute, around)
        return assess_write(wanted, before, now, absolute, around)


class _Output(msgspec.Struct, frozen=True):
    paths: tuple[str, ...]
    content: bytes


class Outputs(Kind["_Output"]):
    """Commands all of whose effect is the file that they write: what they print is known, or they only read."""

    def parse(self, step: Step) -> _Output | None:
        paths, content = output_files(step), _written_bytes(step)
        return _Output(paths, content) if paths and content is not None else None

    def reach(self, step: Step, how: _Output) -> Reach | None:
        return Reach(how.paths)

    def facts_before(self, step: Step, how: _Output, budget: Budget) -> tuple[Fact, ...]:
        return path_facts(how.paths, budget, content=True)

    def assess_step(self, step: Step, how: _Output, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        path = how.paths[0]
        was = read_facts(facts, path)
        if len(how.paths) > 1 or was is None or was.entry.kind not in ("file", "absent"):
            return Outcome("unknown")
        now = read_file(path, budget)
        if was.content is None:
            return Outcome("unknown", findings.FILE_NOT_KNOWN.format(inline(path)))
        if _appends(step):
            return assess_append(how.content, was.content, was.entry.size, now, around)
        return assess_write((how.content,), was.content, now, True, around)


def output_files(step: Step) -> tuple[str, ...]:
    """The files that a step's redirections write, and tee's; empty where one of them is not known."""
    redirects = output_redirects(step)
    words = tuple(r.to.text or "" for r in redirects if r.to is not None and r.op not in ("<>", ">&"))
    if len(words) != len(redirects):
        return ()
    if step.program == "tee":
        how = parse_argv(step.words[1:], _TEE)
        if how is None or words:
            return ()
        words = how.operands
    return (not any(w.endswith("/") for w in words) and resolve_paths(step, words)) or ()


def assess_opening(step: Step, facts: Sequence[Fact], around: Context, only_reads: bool) -> Outcome:
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
            return Outcome("unknown", findings.OUTPUT_CHANGED.format(inline(path)))
        if only_reads and (now.absent or was.unmoved(now)):
            continue
        if now.absent:
            was, now = read_facts(facts, parent(path)), stat_entry(parent(path))
        elif now.size == 0 or any(">>" in r.op for r in output_redirects(step)):
            return Outcome("unknown")  # opening it may leave no mark
        if was is None or now is None or not was.unmoved(now):
            return Outcome("unknown")
    if only_reads:
        return assess_unchanged(inline(paths[0]), True, around)
    return assess_as_before(findings.OUTPUT_NOT_OPENED.format(inline(paths[0])), True, replace(around, alone=True))


def output_facts(step: Step, budget: Budget) -> tuple[Fact, ...]:
    """What `assess_opening` needs."""
    found = path_facts(output_files(step), budget)
    above = (entry_fact(parent(f.where), budget) for f in found if f.value == ABSENT)
    return tuple(dict.fromkeys((*found, *(f for f in above if f is not None))))


def _appends(step: Step) -> bool:
    if step.program == "tee":
        how = parse_argv(step.words[1:], _TEE)
        return how is not None and how.has("append")
    return any(">>" in r.op for r in output_redirects(step))


def _written_bytes(step: Step) -> bytes | None:
    """The bytes that a step writes to its one output; None where they are not known."""
    redirects = output_redirects(step)
    if step.program != "tee" and (len(redirects) != 1 or redirects[0].fd not in (None, 1)):
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
            odd = any("\\" in w for w in words) or words[:1] in (["-e"], ["-E"], ["-n"]) or _is_flags(words)
            return None if odd else " ".join(words) + end
        case ("cat",) | ("tee", *_):
            return step.input if [r.op for r in ins] in (["<<"], ["<<-"]) else None
    return None


def _is_flags(words: Sequence[str]) -> bool:
    return bool(words) and len(words[0]) > 1 and words[0][0] == "-" and set(words[0][1:]) <= set("neE")


class SedEdits(Kind[tuple[str, ...]]):
    """`sed -i` puts a new file in the place of the old one. What it makes of the text is not worked out: another file
    there may be anybody's."""

    def parse(self, step: Step) -> tuple[str, ...] | None:
        return _edited_by_sed(step)

    def reach(self, step: Step, how: tuple[str, ...]) -> Reach | None:
        return Reach(how)

    def facts_before(self, step: Step, how: tuple[str, ...], budget: Budget) -> tuple[Fact, ...]:
        return path_facts(how, budget, content=True)

    def assess_step(
        self, step: Step, how: tuple[str, ...], facts: Sequence[Fact], around: Context, budget: Budget
    ) -> Outcome:
        def state(was: PathFacts, now: Entry) -> PathState:
            same = was.entry.kind == "file" and is_untouched(was, now, around, budget)
            return "untouched" if same else "unknown"

        return assess_paths(compare_paths(how, facts, state), around, "edited", "edited")


def _edited_by_sed(step: Step) -> tuple[str, ...] | None:
    """The files of `sed -i [-E|-r] (SCRIPT | -e SCRIPT...) FILE...`; None where a script may write elsewhere."""
    words = step.words[1:]
    if any(w[:1] == "-" != w[1:2] and "i" in w[1:-1] for w in words):  # a suffix: two files would change
        return None
    how = parse_argv(words, _SED)
    if how is None or not how.has("i"):
        return None
    given = how.every("e")
    scripts, files = (given, how.operands) if given else (how.operands[:1], how.operands[1:])
    return resolve_paths(step, files) if files and all(_SCRIPT.fullmatch(s) for s in scripts) else None
