"""Package installs. Only npm leaves a sound mark: it writes node_modules/.package-lock.json last (npm 7 and newer; its
own source, lib/arborist/reify.js, and a kill at many places agree), before scripts of the project itself.

Of the others (pip, uv, poetry, pnpm, yarn, cargo, go, bundle, composer) it is told which of their files have changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from wal_agent.evidence.file_state import (
    entry_fact,
    hash_listing,
    judge_as_before,
    parent,
    quote_paths,
    read_facts,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import Budget, Context, Outcome, Reach, Step, program_name
from wal_agent.records import Fact
from wal_agent.shell.quote import inline

_NPM = frozenset({"ci", "clean-install", "install", "i", "add"})
_OPTIONS = frozenset(
    {"-D", "-E", "-O", "-P", "-S", "-s", "--save", "--save-dev", "--save-exact", "--save-optional", "--save-prod"}
    | {"--silent", "--no-audit", "--no-fund", "--no-progress", "--prefer-offline", "--offline", "--legacy-peer-deps"}
    | {"--force", "-f", "--ignore-scripts", "--omit=dev", "--include=dev", "--production", "--quiet", "-q"}
)
# npm runs these of the project itself once the packages are in place.
_AFTER = frozenset(
    {"preinstall", "install", "postinstall", "prepublish", "preprepare", "prepare", "postprepare"}
    | {"predependencies", "dependencies", "postdependencies"}
)
_MARK = "node_modules/.package-lock.json"
_PROJECT = ("package.json", "package-lock.json", "npm-shrinkwrap.json", "node_modules", _MARK)
# Files of other tools that are told of, by program and the words behind it.
_FILES: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "pnpm": (frozenset({"install", "i", "add"}), ("package.json", "pnpm-lock.yaml", "node_modules/.modules.yaml")),
    "yarn": (frozenset({"", "install", "add"}), ("package.json", "yarn.lock", "node_modules/.yarn-integrity")),
    "uv": (frozenset({"sync", "add", "lock", "pip"}), ("pyproject.toml", "uv.lock", ".venv")),
    "pip": (frozenset({"install"}), (".venv",)),
    "pip3": (frozenset({"install"}), (".venv",)),
    "poetry": (frozenset({"install", "add", "lock"}), ("pyproject.toml", "poetry.lock", ".venv")),
    "cargo": (frozenset({"add", "fetch", "update"}), ("Cargo.toml", "Cargo.lock")),
    "go": (frozenset({"get", "mod"}), ("go.mod", "go.sum")),
    "bundle": (frozenset({"", "install", "add"}), ("Gemfile", "Gemfile.lock")),
    "composer": (
        frozenset({"install", "require"}),
        ("composer.json", "composer.lock", "vendor/composer/installed.json"),
    ),
}


class Packages:
    def reach(self, step: Step) -> Reach | None:
        if not _npm(step):
            return None  # caches, virtual environments, build folders: no list of these is whole
        return Reach(tuple(f"{step.cwd}/{name}" for name in (*_PROJECT[:3], "node_modules")))

    def before(self, step: Step, budget: Budget) -> tuple[Fact, ...] | None:
        paths = _files(step)
        if not paths:
            return None
        found = [f for path in paths if (f := entry_fact(path, budget)) is not None]
        if not _npm(step):
            return tuple(found)
        folder = f"{step.cwd}/node_modules"
        tree = hash_listing(folder, budget)
        return (*found, *(() if tree is None else (Fact(what="tree", where=folder, value=tree),)))

    def judge(self, step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome | None:
        paths = _files(step)
        if not paths:
            return None
        if around.same_place:
            return _npm_found(step, facts, around, budget) if _npm(step) else _changed(paths, facts)
        return Outcome("unknown")


def _npm_found(step: Step, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
    folder, mark = f"{step.cwd}/node_modules", f"{step.cwd}/{_MARK}"
    was, now, tree = read_facts(facts, mark), stat_entry(mark), read_facts(facts, folder)
    here = stat_entry(folder)
    if was is None or now is None or tree is None or here is None:
        return Outcome("unknown")
    shown = inline(_MARK)
    if now.kind == "file" and not was.fresh and (now.mtime, now.ctime) != (was.entry.mtime, was.entry.ctime):
        if not around.alone:
            return Outcome("unknown", f"npm has written {shown}, but that may have been for another call.")
        if not _is_json(mark, budget):
            return _begun(f"npm was writing {shown}, which it does last", around)
        if not _scripts(step, budget):
            return Outcome("completed", f"npm has written {shown}, which it does when all packages are in place.")
        return Outcome("unknown", f"npm has written {shown}, but scripts of the project run after that.")
    moved = [p for p in _files(step) if (n := read_facts(facts, p)) is None or stat_entry(p) != n.entry]
    if not moved:
        before = next((f.value for f in facts if (f.what, f.where) == ("tree", folder)), None)
        if here.absent or (before is not None and before == hash_listing(folder, budget)):
            same = (
                f"{inline('package.json')}, its lock file and {inline('node_modules')} are as they were before the call"
            )
            fresh = any(n is not None and n.fresh for n in (read_facts(facts, p) for p in _files(step)))
            return Outcome("unknown", f"{same}.") if fresh else judge_as_before(same, True, around)
        if before is None:
            return Outcome(
                "unknown",
                f"npm has not written {shown} since the call; {inline('node_modules')} is too big to compare.",
            )
    return _begun(f"{inline('node_modules')} or the lock file has changed, and npm has not written {shown}", around)


def _begun(why: str, around: Context) -> Outcome:
    return Outcome("partial" if around.gone and around.alone else "unknown", f"{why}.")


def _changed(paths: Sequence[str], facts: Sequence[Fact]) -> Outcome:
    """What can be told of tools that leave no sound mark."""
    known = [(p, n.entry == stat_entry(p)) for p in paths if (n := read_facts(facts, p)) is not None]
    other = [p for p, same in known if not same]
    if other:
        return Outcome(
            "unknown", f"{quote_paths(other)} changed since the call, so it began; whether it ended cannot be told."
        )
    if known:
        return Outcome(
            "unknown", f"{quote_paths([p for p, _ in known])} did not change since the call, but other files may have."
        )
    return Outcome("unknown")


def _npm(step: Step) -> bool:
    """Whether it is an install into this very folder. npm goes up to a folder whose workspaces hold this one."""
    words = step.words
    if program_name(step) != "npm" or len(words) < 2 or words[1] not in _NPM:
        return False
    if any(w.startswith("-") and w not in _OPTIONS for w in words[2:]):
        return False
    here = stat_entry(f"{step.cwd}/package.json")
    above, links = parent(str(step.cwd)), stat_entry(f"{step.cwd}/node_modules")
    while above != "/":
        if (found := stat_entry(f"{above}/package.json")) is None or not found.absent:
            return False
        above = parent(above)
    return here is not None and here.kind == "file" and links is not None and links.kind in ("dir", "absent")


def _files(step: Step) -> tuple[str, ...]:
    """Absolute paths of the files that are told of; empty for a step of another kind."""
    name, second = program_name(step), step.words[1] if len(step.words) > 1 else ""
    if name == "npm":
        return tuple(f"{step.cwd}/{f}" for f in _PROJECT) if second in _NPM else ()
    commands, files = _FILES.get(name, (frozenset[str](), ()))
    return tuple(f"{step.cwd}/{f}" for f in files) if second in commands else ()


def _is_json(path: str, budget: Budget) -> bool:
    try:
        return isinstance(json.loads(read_file(path, budget).data or b""), dict)
    except (ValueError, RecursionError):
        return False


def _scripts(step: Step, budget: Budget) -> bool:
    """Whether the project has scripts of its own that npm may run at the end."""
    if "--ignore-scripts" in step.words:
        return False
    native = stat_entry(f"{step.cwd}/binding.gyp")
    try:
        project = json.loads(read_file(f"{step.cwd}/package.json", budget).data or b"")
    except (ValueError, RecursionError):
        return True
    scripts = project.get("scripts", {}) if isinstance(project, dict) else None
    return not isinstance(scripts, dict) or bool(_AFTER & scripts.keys()) or native is None or not native.absent


PACKAGES = Packages()
