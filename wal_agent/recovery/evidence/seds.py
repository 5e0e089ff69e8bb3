"""sed -i: it writes a new file beside the old one and renames it over that. Another file there may be anybody's: proof
is one that holds what the script makes of the text that was there before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal_agent.evidence.file_state import sha256
from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step
from wal_agent.evidence.sed import SCRIPT, apply_sed
from wal_agent.records import Fact
from wal_agent.recovery.evidence.look import Entry, read_file
from wal_agent.recovery.evidence.notes import PathFacts, PathState, compare_paths, is_untouched, judge_paths, path_facts
from wal_agent.recovery.evidence.paths import resolve_path
from wal_agent.recovery.evidence.words import program_name


@dataclass(frozen=True, slots=True)
class _Sed:
    paths: tuple[str, ...]
    scripts: tuple[str, ...]
    extended: bool


class Seds:
    def reach(self, step: Step) -> Reach | None:
        how = _parse_sed(step)
        return None if how is None else Reach(how.paths)

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        how = _parse_sed(step)
        if how is None:
            return None
        found = path_facts(how.paths, budget)
        for path in how.paths if found else ():
            was = read_file(path, budget)
            if was.value is not None:
                found += (Fact(what="file", where=path, value=was.value),)
            after = None if was.data is None else apply_sed(how.scripts, how.extended, was.data, budget)
            if after is not None:
                found += (Fact(what="sed", where=path, value=sha256(after)),)
        return found

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        how = _parse_sed(step)
        if how is None:
            return None

        def state(was: PathFacts, now: Entry) -> PathState:
            if was.entry.kind != "file":
                return "unknown"
            if is_untouched(was, now, around, budget):
                return "untouched"
            if not around.same_place or not around.alone or now.kind != "file":
                return "unknown"
            wanted = next((f.value for f in facts if (f.what, f.where) == ("sed", was.path)), None)
            other = now.inode != was.entry.inode and now.device == was.entry.device and now.mtime >= was.entry.mtime
            return "done" if other and wanted is not None and read_file(was.path, budget).value == wanted else "unknown"

        holds = "holds" if len(how.paths) == 1 else "hold"
        return judge_paths(
            compare_paths(how.paths, facts, state), around, f"{holds} what sed makes of the text before", "edited"
        )


def _parse_sed(step: Step) -> _Sed | None:
    """`sed -i [-E|-r] (SCRIPT | -e SCRIPT...) FILE...`."""
    if program_name(step) != "sed":
        return None
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
    paths = [resolve_path(step, f) for f in files]
    if None in paths or len(set(paths)) != len(paths):
        return None
    return _Sed(tuple(p for p in paths if p is not None), tuple(scripts), extended)


SEDS = Seds()
