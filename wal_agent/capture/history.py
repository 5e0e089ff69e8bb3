"""The history of the user's repository: which commits only this machine has, and which project it is."""

from __future__ import annotations

import os
from contextlib import suppress
from urllib.parse import urlsplit, urlunsplit

from wal_agent.capture.git import GitFailed
from wal_agent.capture.location import Location
from wal_agent.capture.objects import list_reachable, object_sizes, trees_of
from wal_agent.capture.shadow import Shadow, is_object_id
from wal_agent.plainfile import read_plain

MOST_COMMITS = 500  # of the user's own, whose files go into the packs
MOST_HISTORY = 256 << 20  # bytes, as git stores them, of the files of all these commits
ROOT_TIME = 20.0  # seconds for the first commit of a history


class History:
    """Remembers what was weighed and who the project is. Used under the shadow's lock."""

    def __init__(self, shadow: Shadow) -> None:
        self._shadow = shadow
        self._git = shadow.git
        self._identity: tuple[object, tuple[str, ...]] | None = None
        self._weighed: dict[str, None] = {}  # commits, the newest last
        self.weight = 0  # bytes of what they hold

    def commits(
        self, place: Location, head: str, roots: tuple[str, ...], remotes: tuple[str, ...]
    ) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
        """The commits that the packs are to hold, those of them with parents that they do not, and whether a remote has
        HEAD. Bounded: where no remote has anything, the newest of the history."""
        if not head and not roots:
            return (), (), False
        own = self._own(place, [head] if head else [], remotes)
        remote = bool(head) and bool(remotes) and head not in own
        others = self._own(place, [id for id in roots if id != head], remotes) if len(own) < MOST_COMMITS else {}
        chosen = self._affordable(place, dict(list({**own, **others}.items())[:MOST_COMMITS]))
        if head and head not in chosen:
            parents = self._own(place, [head], (), most=1)
            chosen = {**chosen, **(parents or {head: ()})}
        listed = read_plain(place.common / "shallow", 1 << 20) if place.common else None
        cut = set((listed or b"").decode("ascii", "replace").split())
        shallow = [id for id, parents in chosen.items() if id in cut or any(p not in chosen for p in parents)]
        return tuple(chosen), tuple(shallow), remote

    def _affordable(self, place: Location, chosen: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """None where the files of all of them would be too much. What was weighed once is not weighed again."""
        at = self._shadow.at(*place.alternates)
        new = [id for id in chosen if id not in self._weighed]
        known = trees_of(list(self._weighed)[-1:])
        try:
            listed = [
                line.split(b" ", 1)[0].decode() for line in list_reachable(self._git, at, trees_of(new), known, False)
            ]
            self.weight += sum(object_sizes(self._git, at, listed, "objectsize:disk"))
        except GitFailed:
            return {}
        self._weighed.update(dict.fromkeys(reversed(new)))
        return chosen if self.weight <= MOST_HISTORY else {}

    def _own(
        self, place: Location, roots: list[str], remotes: tuple[str, ...], most: int = MOST_COMMITS
    ) -> dict[str, tuple[str, ...]]:
        """Commits that `roots` reach and `remotes` do not, newest first, each with its parents; what is broken in the
        history hides what is behind it."""
        if not roots:
            return {}
        words = ("rev-list", "--parents", f"--max-count={most}", "--ignore-missing", "--topo-order", "--stdin")
        asked = "".join(f"{id}\n" for id in (*roots, *(f"^{id}" for id in remotes)))
        try:
            said = self._git.run(*words, at=place.at, input=asked.encode()).decode()
        except GitFailed:
            return {}
        return {line.split()[0]: tuple(line.split()[1:]) for line in said.splitlines()}

    def who(self, place: Location, head: str) -> tuple[str, ...]:
        """What clones of this project share. The first commit is looked for once, and not in a shallow clone, which
        does not have it."""
        url = self._git.text("config", "--get", "remote.origin.url", at=place.at, ok=(0, 1))
        key = (place, url, bool(head))
        if self._identity is None or self._identity[0] != key:
            known = (f"origin:{strip_credentials(url)}",) if url else ()
            self._identity = (key, (*known, *(f"root:{id}" for id in self._first(place, head))))
        return self._identity[1]

    def _first(self, place: Location, head: str) -> tuple[str, ...]:
        assert place.common is not None
        if not head or (place.common / "shallow").exists():
            return ()
        kept = self._shadow.folder / "roots"
        name = os.fsencode(place.common)
        with suppress(OSError):
            found, _, of = kept.read_bytes().partition(b" ")
            if of == name and is_object_id(found.decode("ascii", "replace")):
                return (found.decode(),)
        words = ("rev-list", "--max-parents=0", "--first-parent", head)
        try:
            said = self._git.run(*words, at=place.at, timeout=ROOT_TIME).decode().split()
        except GitFailed:
            return ()
        if said:
            kept.write_bytes(said[-1].encode() + b" " + name)
        return tuple(said[-1:])


def strip_credentials(url: str) -> str:
    """An origin as it may be told: no user, password, query or fragment."""
    if "://" not in url:
        return url
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return ""
    return urlunsplit((parts.scheme, host, parts.path, "", ""))
