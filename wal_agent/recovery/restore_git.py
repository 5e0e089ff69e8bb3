"""Bring back into an existing repository what git keeps beside the files: staged changes, stashes, branches, and the
commits of a merge or rebase in progress.

Written into the user's `.git` is only what changes nothing that is there: new objects, a stash entry on top of the
others, and staged changes where HEAD is the saved one and nothing is staged. The rest is offered: the backup has it
under `refs/saved/`, and `git fetch` gets it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice

import msgspec
from msgspec.structs import replace

from wal_agent.capture.git import GitDirs, GitFailed
from wal_agent.capture.repository import Location, operation_in_progress, progress_heads
from wal_agent.capture.shadow import Contents, Shadow
from wal_agent.recovery.restore_target import SavedHere

STASH = "refs/stash"
MAX_OFFERED = 100  # branches and the like
_BRANCHES = "refs/heads/"
_WHO = "wal-agent <wal-agent@localhost> 0 +0000"


class GitPutBack(msgspec.Struct, frozen=True):
    """What of the saved repository is here now beside its files: staged changes, and how many stashes; and `offered`:
    commits of what is not, by their names below `refs/saved/`."""

    staged: bool = False
    stashes: int = 0
    offered: Mapping[str, str] = {}

    def then(self, later: GitPutBack) -> GitPutBack:
        """Both, where the second one found the first one's work."""
        return GitPutBack(self.staged or later.staged, self.stashes + later.stashes, later.offered)


def saved_stashes(contents: Contents) -> list[str]:
    """The newest first."""
    return [*filter(None, [contents.state.refs.get(STASH)]), *contents.state.stashes]


def put_back_git(
    shadow: Shadow, place: Location, here: SavedHere, saved: Contents, known: frozenset[str]
) -> GitPutBack:
    """Put back what changes nothing that is here. `known`: commits of the capture that the shadow has. Under its lock;
    GitFailed where the repository here cannot be asked."""
    if place.git_dir is None or place.common is None:
        return GitPutBack()
    offered: dict[str, str] = {}
    stashes = [id for id in saved_stashes(saved) if id in known and id not in saved_stashes(here.contents)]
    if stashes and not _give_stashes(shadow, place, stashes):
        offered |= {f"stash-{n}": id for n, id in enumerate(stashes)}
    base = _tree_of(shadow, place, saved.state.head)
    wants_index = bool(saved.index) and saved.index not in (base, here.contents.index)
    staged = wants_index and _may_stage(shadow, place, here, saved) and _stage(shadow, place, saved.index)
    if wants_index and not staged and (commit := _commit_of(shadow, saved, known)):
        offered["staged"] = commit
    others = {name: id for name, id in islice(_others(saved), MAX_OFFERED) if id in known}
    lacks = _lacks(shadow, place, others.values())
    offered |= {name: id for name, id in others.items() if id in lacks}
    return GitPutBack(staged, len(stashes) * ("stash-0" not in offered), offered)


def _others(saved: Contents) -> Iterator[tuple[str, str]]:
    """Branches, and what a merge, rebase or the like in progress names."""
    for name, id in saved.state.refs.items():
        if name.startswith(_BRANCHES) and name != saved.state.branch:
            yield f"heads/{name.removeprefix(_BRANCHES)}", id
    for n, id in enumerate(progress_heads(saved.state.files)):
        yield f"in-progress-{n}", id


def _lacks(shadow: Shadow, place: Location, commits: Collection[str]) -> frozenset[str]:
    """Those of the commits that the repository here does not have."""
    if not commits or place.git_dir is None:
        return frozenset()
    asked = "".join(f"{id}\n" for id in commits).encode()
    said = shadow.git.run("cat-file", "--batch-check", at=GitDirs(place.git_dir), input=asked).decode()
    return frozenset(line.split()[0] for line in said.splitlines() if line.endswith(" missing"))


def _tree_of(shadow: Shadow, place: Location, commit: str) -> str:
    if not commit:
        return ""
    words = ("rev-parse", "-q", "--verify", f"{commit}^{{tree}}")
    return shadow.git.text(*words, at=shadow.at(*place.alternates), ok=(0, 1, 128))


def _may_stage(shadow: Shadow, place: Location, here: SavedHere, saved: Contents) -> bool:
    """Whether the index here has nothing of its own, on the commit that the saved one stood on."""
    at, then = here.contents.state, saved.state
    busy = operation_in_progress(at.files) or operation_in_progress(then.files)
    special = busy or at.unmerged or then.unmerged or at.sparse or then.sparse or at.left_out
    same = at.head == then.head and bool(at.head) and not place.prefix
    return same and not special and here.contents.index == _tree_of(shadow, place, at.head)


def _stage(shadow: Shadow, place: Location, tree: str) -> bool:
    try:
        give_objects(shadow, place, [tree])
        shadow.git.run("read-tree", "-m", tree, at=place.at)
        shadow.git.run("update-index", "-q", "--refresh", at=place.at, ok=(0, 1))
    except GitFailed:
        return False
    return True


def _give_stashes(shadow: Shadow, place: Location, ids: Sequence[str]) -> bool:
    try:
        give_objects(shadow, place, ids)
        for id in reversed(ids):
            write_stash(shadow, place.at, id)
    except GitFailed:
        return False
    return True


def write_stash(shadow: Shadow, at: GitDirs, id: str) -> None:
    """Put a stash on top of the others. GitFailed. A stash is listed only out of its log."""
    said = shadow.git.text("log", "-1", "--format=%s", id, at=at)[:200] or "WIP"
    shadow.git.run("update-ref", "--create-reflog", "-m", said, STASH, id, at=at)


def give_objects(shadow: Shadow, place: Location, ids: Sequence[str]) -> None:
    """Write into the repository here the objects that it lacks of these. GitFailed where that is not all of them."""
    assert place.common is not None
    theirs = shadow.git.text("for-each-ref", "--format=%(objectname)", at=place.at).split()
    asked = "".join(f"{line}\n" for line in (*ids, *(f"^{id}" for id in theirs))).encode()
    both = shadow.at(*place.alternates)
    shadow.git.run("rev-list", "--objects", "--count", "--ignore-missing", "--stdin", at=both, input=asked)
    objects = place.common / "objects"
    at = replace(shadow.at(shadow.objects), objects=objects)  # git renames the pack in the folder that it writes to
    words = ("pack-objects", "-q", "--revs", "--delta-base-offset", str(objects / "pack" / "pack"))
    shadow.git.run(*words, at=at, input=asked)


def _commit_of(shadow: Shadow, saved: Contents, known: frozenset[str]) -> str:
    """A commit of the saved index."""
    parent = f"parent {saved.state.head}\n" if saved.state.head in known else ""
    text = f"tree {saved.index}\n{parent}author {_WHO}\ncommitter {_WHO}\n\nstaged\n"
    words = ("hash-object", "-t", "commit", "-w", "--stdin")
    return shadow.git.run(*words, at=shadow.at(), input=os.fsencode(text)).decode().strip()
