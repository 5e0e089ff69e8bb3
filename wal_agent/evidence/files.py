"""Evidence for commands whose whole effect is the content of a file: file tools, redirected output, tee, `sed -i`.

The fields of file tools are data (63-files.toml). Output with content that is not known shows only whether its command
began: the shell opens the file before it runs the command. sed writes a new file beside the old one and renames it over
that. Another new file there may be anybody's, so only the content proves that a script of plain words has run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from wal_agent.evidence import model
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
    sha256,
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
    fact_value,
    output_redirects,
    resolve_path,
    resolve_paths,
)
from wal_agent.records import Fact
from wal_agent.shell.argv import parse_argv, parse_options
from wal_agent.shell.quote import inline
from wal_agent.shell.rules import load_rules

_MOST_CHANGES = 16
# A patch of new files only. Programs differ in what they make of anything else: blanks around it, other lines, "\r".
_ADDED = re.compile(r"\*\*\* Add File: (?P<path>[^\n]+)\n(?P<lines>(?:\+[^\n\r]*\n)*)")
_ENDS = ("*** Begin Patch\n", "*** End Patch")


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
    while rest and len(found) < _MOST_CHANGES:
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


_TEE = parse_options("-a|--append")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\"}


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
            return Outcome("unknown", model.FILE_NOT_KNOWN.format(inline(path)))
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
            return Outcome("unknown", model.OUTPUT_CHANGED.format(inline(path)))
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
    return assess_as_before(model.OUTPUT_NOT_OPENED.format(inline(paths[0])), True, replace(around, alone=True))


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
        case ("printf", form, *words) if not ins:
            return _apply_format(form, words)
        case ("cat",) | ("tee", *_):
            return step.input if [r.op for r in ins] in (["<<"], ["<<-"]) else None
    return None


def _is_flags(words: Sequence[str]) -> bool:
    return bool(words) and len(words[0]) > 1 and words[0][0] == "-" and set(words[0][1:]) <= set("neE")


def _apply_format(form: str, words: Sequence[str]) -> str | None:
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


MAX_TEXT = 256 << 10  # bytes: every line is looked at, on the way of a call
_MOST_LINE = 1000  # bytes: a pattern with a star takes the square of a line's length
_MOST_PATTERN = 200

_PLACE = r"(?:[0-9]+|\$|/(?:\\[^\n]|[^/\\\n])*/)"
# One address or two, and a substitution or deletion. No flag or command that writes elsewhere or executes (w, e, r).
SCRIPT = re.compile(
    rf"(?:(?P<one>{_PLACE})(?:,(?P<two>{_PLACE}))?)?(?:(?P<delete>d)|s(?P<by>[/|#,@:])"
    r"(?P<old>(?:\\[^\n]|(?!(?P=by))[^\\\n])*)(?P=by)(?P<new>(?:\\[^\n]|(?!(?P=by))[^\\\n])*)(?P=by)"
    r"(?P<flags>[gIi0-9]*));?"
)
# What a dot is in UTF-8, which no locale but C reads in another way.
_ANY = r"(?:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3})"
_ITSELF = frozenset(".*[]^$/\\")  # behind a backslash, in basic and extended expressions


class _Edit(msgspec.Struct, frozen=True):
    """One script. `at`: whether it is for a line, by number, whether it is the last one, and text. `change`: None for a
    deletion."""

    at: Callable[[int, bool, bytes], bool]
    change: Callable[[bytes], bytes] | None


def apply_sed(scripts: Sequence[str], extended: bool, text: bytes, budget: Budget) -> bytes | None:
    """What sed leaves of `text`; None where that is not known here, or not in time."""
    edits = [_edit(s, extended) for s in scripts]
    known = [e for e in edits if e is not None]
    if len(known) != len(edits) or len(text) > MAX_TEXT:
        return None
    lines = text.split(b"\n")
    ended = lines[-1] == b""
    lines = lines[:-1] if ended else lines
    out: list[bytes] = []
    for n, line in enumerate(lines, 1):
        last = n == len(lines)
        if budget.over or len(line) > _MOST_LINE:
            return None
        made = _line(known, n, last, line)
        if made is not None:
            out.append(made if last and not ended else made + b"\n")
    return b"".join(out)


def _line(edits: Sequence[_Edit], n: int, last: bool, line: bytes) -> bytes | None:
    for e in edits:
        if e.at(n, last, line):
            if e.change is None:
                return None
            line = e.change(line)
    return line


def _edit(script: str, extended: bool) -> _Edit | None:
    parts = SCRIPT.fullmatch(script)
    at = None if parts is None else _at(parts["one"], parts["two"], extended)
    if parts is None or at is None:
        return None
    if parts["delete"]:
        return _Edit(at, None)
    flags = parts["flags"]
    everywhere = "g" in flags
    old, new = _pattern(parts["old"], parts["by"], extended, "i" in flags.lower()), _new(parts["new"])
    if old is None or new is None or not set(flags) <= set("gIi") or (everywhere and old.match(b"")):
        return None
    pattern, parted = old, new

    def change(line: bytes) -> bytes:
        return pattern.sub(lambda m: m[0].join(parted), line, count=0 if everywhere else 1)

    return _Edit(at, change)


def _at(one: str | None, two: str | None, extended: bool) -> Callable[[int, bool, bytes], bool] | None:
    if one is None:
        return lambda n, last, line: True
    if two is not None:
        begin = int(one) if one.isdigit() else 0
        end = int(two) if two.isdigit() else begin if two == "$" else 0
        if not begin or not end:
            return None
        return lambda n, last, line: n == begin or (n > begin and (two == "$" or n <= end))
    if one == "$":
        return lambda n, last, line: last
    if one.isdigit():
        wanted = int(one)
        return (lambda n, last, line: n == wanted) if wanted else None
    pattern = _pattern(one[1:-1], "/", extended, False)
    return None if pattern is None else lambda n, last, line: pattern.search(line) is not None


def _pattern(text: str, by: str, extended: bool, any_case: bool) -> re.Pattern[bytes] | None:
    """Of the atoms at most one has a star, so the longest match is the greedy one, and a search stays short."""
    begins, ends = text.startswith("^"), text.endswith("$") and not text.endswith("\\$")
    rest = list(text[begins : len(text) - ends])
    if not text or len(text) > _MOST_PATTERN or not text.isascii():
        return None
    special = set("*[^$+?(){}|") if extended else set("*[^$")
    atoms: list[str] = []
    stars = 0
    while rest:
        c = rest.pop(0)
        if c == "\\":
            c = rest.pop(0) if rest else ""
            if not c or (c not in _ITSELF and (c != by or c == "|")):
                return None
            atoms.append(re.escape(c))
        elif c in special:
            return None
        else:
            atoms.append(_ANY if c == "." else re.escape(c))
        if rest[:1] == ["*"]:
            stars += 1
            atoms.append(rest.pop(0))
    if stars > 1:
        return None
    source = "".join((r"\A" * begins, *atoms, r"\Z" * ends))
    return re.compile(source.encode(), re.DOTALL | (re.IGNORECASE if any_case else 0))


def _new(text: str) -> list[bytes] | None:
    """The new text, split where it repeats the match."""
    parts, rest = [""], list(text)
    while rest:
        c = rest.pop(0)
        if c == "&":
            parts.append("")
            continue
        if c == "\\":
            c = rest.pop(0) if rest else "n"
            if c.isalnum():
                return None
        parts[-1] += c
    try:
        return [p.encode() for p in parts]
    except UnicodeEncodeError:
        return None


class _Sed(msgspec.Struct, frozen=True):
    paths: tuple[str, ...]
    scripts: tuple[str, ...]
    extended: bool


class SedEdits(Kind[_Sed]):
    def parse(self, step: Step) -> _Sed | None:
        return _parse_sed(step)

    def reach(self, step: Step, how: _Sed) -> Reach | None:
        return Reach(how.paths)

    def facts_before(self, step: Step, how: _Sed, budget: Budget) -> tuple[Fact, ...]:
        found = path_facts(how.paths, budget)
        for path in how.paths if found else ():
            was = read_file(path, budget)
            if was.value is not None:
                found += (Fact(what="file", where=path, value=was.value),)
            after = None if was.data is None else apply_sed(how.scripts, how.extended, was.data, budget)
            if after is not None:
                found += (Fact(what="sed", where=path, value=sha256(after)),)
        return found

    def assess_step(self, step: Step, how: _Sed, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        def state(was: PathFacts, now: Entry) -> PathState:
            if was.entry.kind != "file":
                return "unknown"
            if is_untouched(was, now, around, budget):
                return "untouched"
            if not around.same_place or not around.alone or now.kind != "file":
                return "unknown"
            wanted = fact_value(facts, "sed", was.path)
            other = now.inode != was.entry.inode and now.device == was.entry.device and now.mtime >= was.entry.mtime
            return "done" if other and wanted is not None and read_file(was.path, budget).value == wanted else "unknown"

        done = f"{'holds' if len(how.paths) == 1 else 'hold'} what sed makes of the text before"
        return assess_paths(compare_paths(how.paths, facts, state), around, done, "edited")


def _parse_sed(step: Step) -> _Sed | None:
    """`sed -i [-E|-r] (SCRIPT | -e SCRIPT...) FILE...`."""
    scripts: list[str] = []
    rest, files, inplace, extended = list(step.words[1:]), [], False, False
    while rest:
        word = rest.pop(0)
        if word in ("-i", "-E", "-r"):  # anything behind -i is a suffix: two files would change
            inplace, extended = inplace or word == "-i", extended or word != "-i"
        elif word == "-e" and rest:
            scripts.append(rest.pop(0))
        elif word.startswith("-"):
            return None
        else:
            files.append(word)
    if not scripts and files:
        scripts.append(files.pop(0))
    if not inplace or not files or not all(SCRIPT.fullmatch(s) for s in scripts):
        return None
    paths = resolve_paths(step, files)
    return None if paths is None else _Sed(paths, tuple(scripts), extended)
