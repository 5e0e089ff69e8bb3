"""Package installs. Only npm leaves a sound mark: it writes node_modules/.package-lock.json last (npm 7 and newer; its
own source, lib/arborist/reify.js, and a kill at many places agree), before scripts of the project itself.

Of the others (pip, uv, poetry, pnpm, yarn, cargo, go, bundle, composer) the verdict names the files that have changed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from wal_agent.calls.quote import inline
from wal_agent.evidence.file_state import (
    assess_as_before,
    entry_fact,
    hash_listing,
    parent,
    quote_paths,
    read_facts,
    read_file,
    stat_entry,
)
from wal_agent.evidence.model import Budget, Context, Kind, Outcome, Reach, Step, fact_value
from wal_agent.records import Fact, Finding
from wal_agent.wording import findings

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
# Files of other tools that are compared, by program and the words behind it.
_TOOLS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
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
PACKAGE_TOOLS = ("npm", *_TOOLS)


class _Install(msgspec.Struct, frozen=True):
    """`npm`: an npm install into this very folder. `paths`: the files that are compared."""

    npm: bool
    paths: tuple[str, ...]


class Packages(Kind[_Install]):
    def parse(self, step: Step) -> _Install | None:
        paths = _compared_files(step)
        return _Install(_installs_here(step), paths) if paths else None

    def reach(self, step: Step, how: _Install) -> Reach | None:
        if not how.npm:
            return None  # caches, virtual environments, build folders: no list of these is whole
        return Reach(tuple(f"{step.cwd}/{name}" for name in (*_PROJECT[:3], "node_modules")))

    def facts_before(self, step: Step, how: _Install, budget: Budget) -> tuple[Fact, ...]:
        found = tuple(f for path in how.paths if (f := entry_fact(path, budget)) is not None)
        folder = f"{step.cwd}/node_modules"
        if not how.npm or (tree := hash_listing(folder, budget)) is None:
            return found
        return (*found, Fact(what="tree", where=folder, value=tree))

    def assess_step(self, step: Step, how: _Install, facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
        if not around.same_place:
            return Outcome("unknown")
        return _assess_npm(step, how.paths, facts, around, budget) if how.npm else _assess_changes(how.paths, facts)


def _assess_npm(step: Step, paths: Sequence[str], facts: Sequence[Fact], around: Context, budget: Budget) -> Outcome:
    folder, mark = f"{step.cwd}/node_modules", f"{step.cwd}/{_MARK}"
    was, now, tree = read_facts(facts, mark), stat_entry(mark), read_facts(facts, folder)
    here = stat_entry(folder)
    if was is None or now is None or tree is None or here is None:
        return Outcome("unknown")
    shown, modules = inline(_MARK), inline("node_modules")
    begun: Finding = "partial" if around.gone and around.alone else "unknown"
    if now.kind == "file" and not was.fresh and (now.mtime, now.ctime) != (was.entry.mtime, was.entry.ctime):
        if not around.alone:
            return Outcome("unknown", findings.NPM_CONTESTED.format(shown))
        if not _is_json(mark, budget):
            return Outcome(begun, findings.NPM_WRITING.format(shown))
        if not _has_scripts(step, budget):
            return Outcome("completed", findings.NPM_DONE.format(shown))
        return Outcome("unknown", findings.NPM_SCRIPTS.format(shown))
    noted = {p: read_facts(facts, p) for p in paths}
    if all(n is not None and stat_entry(p) == n.entry for p, n in noted.items()):
        before = fact_value(facts, "tree", folder)
        if here.absent or (before is not None and before == hash_listing(folder, budget)):
            same = findings.NPM_UNCHANGED.format(inline("package.json"), modules)
            fresh = any(n is not None and n.fresh for n in noted.values())
            return Outcome("unknown", f"{same}.") if fresh else assess_as_before(same, True, around)
        if before is None:
            return Outcome("unknown", findings.NPM_TOO_BIG.format(shown, modules))
    return Outcome(begun, findings.NPM_BEGUN.format(modules, shown))


def _assess_changes(paths: Sequence[str], facts: Sequence[Fact]) -> Outcome:
    """Report what is known of tools that leave no sound mark."""
    known = [(p, n.entry == stat_entry(p)) for p in paths if (n := read_facts(facts, p)) is not None]
    if other := [p for p, same in known if not same]:
        return Outcome("unknown", findings.PACKAGES_BEGUN.format(quote_paths(other)))
    if known:
        return Outcome("unknown", findings.PACKAGES_UNCHANGED.format(quote_paths([p for p, _ in known])))
    return Outcome("unknown")


def _installs_here(step: Step) -> bool:
    """Whether it is an install into this very folder. npm goes up to a folder whose workspaces hold this one."""
    words = step.words
    if step.program != "npm" or any(w.startswith("-") and w not in _OPTIONS for w in words[2:]):
        return False
    here = stat_entry(f"{step.cwd}/package.json")
    above, links = parent(str(step.cwd)), stat_entry(f"{step.cwd}/node_modules")
    while above != "/":
        if (found := stat_entry(f"{above}/package.json")) is None or not found.absent:
            return False
        above = parent(above)
    return here is not None and here.kind == "file" and links is not None and links.kind in ("dir", "absent")


def _compared_files(step: Step) -> tuple[str, ...]:
    """Absolute paths of the files that are compared; empty for a step of another kind."""
    name, second = step.program, step.words[1] if len(step.words) > 1 else ""
    if name == "npm":
        return tuple(f"{step.cwd}/{f}" for f in _PROJECT) if second in _NPM else ()
    commands, files = _TOOLS.get(name, (frozenset[str](), ()))
    return tuple(f"{step.cwd}/{f}" for f in files) if second in commands else ()


def _is_json(path: str, budget: Budget) -> bool:
    try:
        return isinstance(json.loads(read_file(path, budget).data or b""), dict)
    except (ValueError, RecursionError):
        return False


def _has_scripts(step: Step, budget: Budget) -> bool:
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
