"""The agents' own file tools: a whole file written, or text replaced in one. Their fields are data (63-files.toml)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from wal_agent.evidence.file_state import ABSENT, judge_replacement, judge_write, line_end_variants, read_file
from wal_agent.evidence.model import Budget, Context, FileChange, Outcome, Reach, Step, resolve_path
from wal_agent.records import Fact
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


class Files:
    def reach(self, step: Step) -> Reach | None:
        path = target_file(step) if step.file is not None else None
        return None if path is None else Reach((path,))

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        if step.file is None:
            return None
        path = target_file(step)
        now = None if path is None else read_file(path, budget).value
        return () if path is None or now is None else (Fact(what="file", where=path, value=now),)

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        if step.file is None:
            return None
        path, change = target_file(step), step.file
        if path is None:
            return Outcome("unknown")
        before = next((f for f in facts if (f.what, f.where) == ("file", path)), None)
        absolute = change.sure or change.path.startswith("/")
        now = read_file(path, budget)
        if change.content is not None:
            wanted = line_end_variants(change.content)[: 1 if change.keeps else None]
            return judge_write(wanted, before, now, absolute, around)
        if change.old == change.new:
            return Outcome("unknown")
        if change.old == "":
            created = change.creates and before is not None and before.value == ABSENT
            return (
                judge_write(line_end_variants(change.new), before, now, absolute, around)
                if created
                else Outcome("unknown")
            )
        return judge_replacement(change.old, change.new, before, now, absolute, around)


FILES = Files()
