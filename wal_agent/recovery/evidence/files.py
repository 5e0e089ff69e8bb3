"""The agents' own file tools: a whole file written, or text replaced in one."""

from __future__ import annotations

from collections.abc import Sequence

from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import look
from wal_agent.recovery.evidence.paths import place
from wal_agent.recovery.step import Around, Budget, Found, Reach, Step
from wal_agent.recovery.verdict import ABSENT, replace_verdict, spellings, write_verdict

FILE_TOOLS = ("write_file", "replace")


def target(step: Step) -> str | None:
    """The one file that a file tool changes; None for a path that the agent may read in another way (Gemini: percent
    escapes, a leading @, file: URLs, blanks at the ends)."""
    named = step.fields.get("file_path")
    if not isinstance(named, str) or not named or named != named.strip() or "%" in named:
        return None
    if named.startswith(("@", "file:", "~")) or named.endswith("/"):
        return None
    return place(step, named)


class Files:
    def reach(self, step: Step) -> Reach | None:
        path = target(step) if step.tool in FILE_TOOLS else None
        return None if path is None else Reach((path,))

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        if step.tool not in FILE_TOOLS:
            return None
        path = target(step)
        now = None if path is None else look(path, budget).value
        return () if path is None or now is None else (Fact(what="file", where=path, value=now),)

    def judge(self, step: Step, facts: Sequence[Fact], around: Around, budget: Budget) -> Found | None:
        if step.tool not in FILE_TOOLS:
            return None
        path = target(step)
        if path is None:
            return Found("unknown")
        before = next((f for f in facts if (f.what, f.where) == ("file", path)), None)
        absolute = str(step.fields["file_path"]).startswith("/")
        now = look(path, budget)
        if step.tool == "write_file":
            content = step.fields.get("content")
            if not isinstance(content, str):
                return Found("unknown")
            return write_verdict(spellings(content), before, now, absolute, around)
        old, new = step.fields.get("old_string"), step.fields.get("new_string")
        if not isinstance(old, str) or not isinstance(new, str) or old == new:
            return Found("unknown")
        if old == "":  # the agent then creates the file with the new text
            created = before is not None and before.value == ABSENT
            return write_verdict(spellings(new), before, now, absolute, around) if created else Found("unknown")
        return replace_verdict(old, new, before, now, absolute, around)


FILES = Files()
