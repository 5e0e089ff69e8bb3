"""capture/scan.py: the rules by which files are ignored, and what becomes of files that git cannot take. What a scan
finds in real folders is in test_workspace.py."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal_agent.capture import scan
from wal_agent.capture.candidates import NESTED_EMPTY, UNREADABLE, Add, Caps, LeftOut
from wal_agent.capture.git import GitDirs, GitFailed, GitStopped
from wal_agent.capture.repository import Location
from wal_agent.capture.scan import (
    MAX_IGNORE_FILE,
    MAX_IGNORE_LINES,
    Scanner,
    escape_pattern,
    ignore_patterns,
    settings_stamp,
    users_excludes,
    write_excludes,
)

AT = GitDirs(Path("/shadow"))


class FakeGit:
    """Takes every path but `bad`; `names`: says which one it was."""

    def __init__(self, bad: Iterable[bytes] = (), names: bool = False, said: bytes = b"") -> None:
        self.bad, self.names, self.said = {*bad}, names, said
        self.asked: list[tuple[str, ...]] = []
        self.batches: list[list[bytes]] = []
        self.stopped = False

    def run(self, *words: str, at: GitDirs, input: bytes = b"", **_: object) -> bytes:
        self.asked.append(words)
        if "--add" in words:
            paths = input.split(b"\0")[:-1]
            self.batches.append(paths)
            if self.stopped:
                raise GitStopped
            for path in paths:
                if path in self.bad:
                    said = f"error: x\nfatal: Unable to process path {path.decode()}\n" if self.names else "fatal: x"
                    raise GitFailed(words, 128, said)
        return self.said

    def text(self, *words: str, **_: object) -> str:
        return self.run(*words, at=AT).decode()


def scanner(tmp_path: Path, git: FakeGit, private: Iterable[Path] = ()) -> Scanner:
    shadow: Any = SimpleNamespace(folder=tmp_path / "shadow", git=git)
    return Scanner(shadow, tmp_path, {}, private, Caps())


def adds(*sizes: int) -> list[Add]:
    return [Add(b"f%d" % n, size) for n, size in enumerate(sizes)]


# ---- rules


def test_the_patterns_are_the_files_own_lines_and_then_what_is_private(tmp_path: Path) -> None:
    lines = ["# words", "", "   ", "*.log\r", "!keep.log", "a/b", "/top", "nul\0", "#not", "folder/"]
    (tmp_path / ".wal-agentignore").write_text("\n".join(lines))
    found = ignore_patterns(tmp_path, Location(tmp_path), [b"state", b"a b*"])
    assert found == ["*.log", "!keep.log", "a/b", "/top", "folder/", "/state", r"/a\ b\*"]
    below = ignore_patterns(tmp_path, Location(tmp_path.parent, "sub [x]"), [])
    assert below == ["*.log", "!keep.log", r"/sub\ \[x\]/a/b", r"/sub\ \[x\]/top", "folder/"]


def test_a_pattern_with_a_sign_is_anchored_behind_it(tmp_path: Path) -> None:
    (tmp_path / ".wal-agentignore").write_text("!a/b\n!/c\n!d/ \n")
    assert ignore_patterns(tmp_path, Location(tmp_path.parent, "s"), []) == ["!/s/a/b", "!/s/c", "!d/ "]


def test_a_file_of_patterns_is_read_up_to_its_bounds(tmp_path: Path) -> None:
    (tmp_path / ".wal-agentignore").write_text("x\n" * (MAX_IGNORE_LINES + 1))
    assert len(ignore_patterns(tmp_path, Location(tmp_path), [])) == MAX_IGNORE_LINES
    (tmp_path / ".wal-agentignore").write_text("x" * (MAX_IGNORE_FILE + 1))
    assert ignore_patterns(tmp_path, Location(tmp_path), []) == []
    assert ignore_patterns(tmp_path / "none", Location(tmp_path), []) == []


@pytest.mark.parametrize("path", ["plain", "a b", "[x]", "!a", "#a", "a*?", "a\\b"])
def test_an_escaped_path_has_no_sign_with_a_meaning(path: str) -> None:
    escaped = escape_pattern(path)
    assert escaped.replace("\\\\", "\0").replace("\\", "").replace("\0", "\\") == path
    assert sum(c in r"*?[]!# " for c in path) == escaped.count("\\") - 2 * path.count("\\")


@pytest.mark.parametrize(
    ("env", "said", "expected"),
    [
        ({"HOME": "{}/home"}, b"", b"of git"),
        ({"HOME": "{}/home", "XDG_CONFIG_HOME": "{}/xdg"}, b"", b"of xdg"),
        ({"HOME": "{}/home"}, b"named", b"of config"),
        ({"HOME": ""}, b"", None),
        ({}, b"", None),
    ],
)
def test_the_users_own_rules_are_brought_together(
    tmp_path: Path, env: dict[str, str], said: bytes, expected: bytes | None
) -> None:
    for path, text in (("home/.config/git/ignore", "of git"), ("xdg/git/ignore", "of xdg"), ("named", "of config")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "common/info").mkdir(parents=True)
    (tmp_path / "common/info/exclude").write_text("local")
    git: Any = FakeGit(said=said)
    named = {name: value.format(tmp_path) for name, value in env.items()}
    place = Location(tmp_path, git_dir=tmp_path, common=tmp_path / "common")
    wrote = write_excludes(users_excludes(git, place, named), place, tmp_path / "target")
    assert wrote == (expected + b"\n" if expected else b"") + b"local" == (tmp_path / "target").read_bytes()
    alone = Location(tmp_path)
    outside = write_excludes(users_excludes(git, alone, named), alone, tmp_path / "target")
    assert outside == (expected or b"") == (tmp_path / "target").read_bytes()


def test_the_users_ignore_file_is_asked_for_again_when_a_settings_file_is_another_one(tmp_path: Path) -> None:
    env, place = {"HOME": str(tmp_path)}, Location(tmp_path, git_dir=tmp_path, common=tmp_path / "common")
    seen = {settings_stamp(place, env)}
    for name in (".gitconfig", ".config/git/config", "common/config"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("[core]")
        assert settings_stamp(place, env) == settings_stamp(place, env) not in seen, name
        seen.add(settings_stamp(place, env))


def test_rules_that_did_not_change_are_not_written_again(tmp_path: Path) -> None:
    write_excludes(None, Location(tmp_path), tmp_path / "target")
    os.utime(tmp_path / "target", ns=(5, 5))
    write_excludes(None, Location(tmp_path), tmp_path / "target")
    assert (tmp_path / "target").stat().st_mtime_ns == 5


def test_what_is_private_is_so_by_both_of_its_names(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    mine = scanner(tmp_path, FakeGit(), [tmp_path / "link", tmp_path, Path("/elsewhere")])
    assert {*mine._below(tmp_path)} == {b"link", b"real"}, "the workspace itself is not private"


# ---- what git cannot take


def test_files_are_hashed_in_batches_of_so_many_and_so_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "BATCH", 3)
    monkeypatch.setattr(scan, "BATCH_BYTES", 100)
    git = FakeGit()
    scanner(tmp_path, git)._add(AT, tmp_path, adds(1, 1, 1, 1, 100, 50, 50, 1, 1), LeftOut())
    assert [len(batch) for batch in git.batches] == [3, 2, 3, 1]
    git.batches.clear()
    scanner(tmp_path, git)._add(AT, tmp_path, adds(1, 1, 1), LeftOut())
    scanner(tmp_path, git)._add(AT, tmp_path, [], LeftOut())
    assert [len(batch) for batch in git.batches] == [3], "nothing is asked for nothing"


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("bad", [{b"f0"}, {b"f4"}, {b"f1", b"f2"}, {b"f0", b"f1", b"f2", b"f3", b"f4"}])
def test_a_file_that_went_wrong_takes_no_other_with_it(tmp_path: Path, bad: set[bytes], names: bool) -> None:
    git, out = FakeGit(bad, names), LeftOut()
    scanner(tmp_path, git)._add(AT, tmp_path, adds(1, 1, 1, 1, 1), out)
    assert out.why == dict.fromkeys(sorted(bad), UNREADABLE)
    took = {path for batch in git.batches if not {*batch} & bad for path in batch}
    assert took == {b"f%d" % n for n in range(5)} - bad
    if names:
        assert len(git.batches) <= len(bad) + 1, "without halves where git says which one it was"


def test_a_repository_inside_without_a_commit_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "f0/.git").mkdir(parents=True)
    git, out = FakeGit({b"f0"}), LeftOut()
    mine = scanner(tmp_path, git)
    mine._links = {b"f0", b"f9"}
    mine._add(AT, tmp_path, adds(0), out)
    assert out.why == {b"f0": NESTED_EMPTY} and mine._links == {b"f9"}


def test_a_stop_is_no_fault_of_a_file(tmp_path: Path) -> None:
    git, out = FakeGit(), LeftOut()
    git.stopped = True
    with pytest.raises(GitStopped):
        scanner(tmp_path, git)._add(AT, tmp_path, adds(1, 1), out)
    assert out.why == {} and len(git.batches) == 1


# ---- files that the user tracks


class Shadowed(FakeGit):
    """Says which index was asked."""

    def __init__(self) -> None:
        super().__init__(said=b"a\0b\0")
        self.indexes: list[str] = []

    def run(self, *words: str, at: GitDirs, input: bytes = b"", **_: object) -> bytes:
        self.indexes.append(at.index.name if at.index else "ours")
        return b"" if "-m" in words or "-x" in words else self.said


@pytest.mark.parametrize(("in_git", "copied"), [(True, True), (True, False), (False, True)])
def test_what_the_user_tracks_is_asked_of_a_copy_of_an_index_of_now(tmp_path: Path, in_git: bool, copied: bool) -> None:
    """A copy may be left of a repository that is none any more."""
    git = Shadowed()
    folder = tmp_path / "shadow"
    folder.mkdir()
    if copied:
        (folder / "user-index").touch()
    shadow: Any = SimpleNamespace(
        folder=folder, git=git, at=lambda *_, work_tree, index: GitDirs(folder, work_tree, index)
    )
    mine = Scanner(shadow, tmp_path, {}, (), Caps())
    place = Location(tmp_path, git_dir=tmp_path / ".git" if in_git else None)
    asks = in_git and copied
    assert mine._clean(place, []) == ({b"a", b"b"} if asks else set()) and mine._edited(place, []) == set()
    assert {*git.indexes} == ({"user-index"} if asks else set())
    mine._apply_rules(place, AT, ["-x", "rule"], [])
    assert mine._forced == ({b"a", b"b"} if asks else set()) and ("user-index" in git.indexes) == asks
    assert mine._ignored == [], "what is forced is not ignored"


def test_an_index_that_git_cannot_read_tracks_nothing(tmp_path: Path) -> None:
    class Broken(FakeGit):
        def run(self, *words: str, at: GitDirs, input: bytes = b"", **_: object) -> bytes:
            if at.index is not None:
                raise GitFailed(words, 128, "fatal: index file corrupt")
            return b"ignored\0" if "--directory" in words else b""

    folder = tmp_path / "shadow"
    folder.mkdir()
    (folder / "user-index").touch()
    shadow: Any = SimpleNamespace(
        folder=folder, git=Broken(), at=lambda *_, work_tree, index: GitDirs(folder, work_tree, index)
    )
    mine = Scanner(shadow, tmp_path, {}, (), Caps())
    place = Location(tmp_path, git_dir=tmp_path / ".git")
    assert mine._clean(place, []) == mine._edited(place, []) == set()
    mine._apply_rules(place, AT, [], [])
    assert mine._forced == set() and mine._ignored == [b"ignored"]


# ---- modes


def test_files_that_only_their_owner_may_open_are_looked_at_again_when_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (("mine", 0o600), ("open", 0o644), ("group", 0o640), ("later", 0o644)):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(mode)
    (tmp_path / "link").symlink_to("mine")
    git = FakeGit(said=b"mine\0open\0group\0later\0link\0gone\0")
    here = scanner(tmp_path, git)
    here._look_at_modes(AT, tmp_path, [], [], False)
    assert here._theirs == {b"mine"}
    monkeypatch.setattr(scan, "MAX_MODES", 6)
    (tmp_path / "later").chmod(0o600)
    here._look_at_modes(AT, tmp_path, [], [], False)
    assert here._theirs == {b"mine", b"later"}, "of a few files all are asked each time"
    monkeypatch.setattr(scan, "MAX_MODES", 5)
    (tmp_path / "later").chmod(0o644)
    (tmp_path / "open").chmod(0o600)
    here._look_at_modes(AT, tmp_path, [], [b"open"], False)
    assert here._theirs == {b"mine", b"later", b"open"}, "of many only those that changed"
    asked = len(git.asked)
    here._look_at_modes(AT, tmp_path, [], [], False)
    assert len(git.asked) == asked, "and none where nothing did"
    git.said = b"mine\0open\0group\0later\0link\0more\0"
    here._look_at_modes(AT, tmp_path, [], [], True)
    assert len(git.asked) == asked + 1 and here._theirs == {b"mine", b"later", b"open"}
    git.said = b"open\0a\0b\0c\0d\0e\0"
    here._look_at_modes(AT, tmp_path, [], [], True)
    assert here._theirs == {b"open"}, "what is in the tree no more is named no more"


def test_an_empty_folder_below_the_top_is_an_empty_tree(tmp_path: Path) -> None:
    class Empty(FakeGit):
        def run(self, *words: str, at: GitDirs, input: bytes = b"", **_: object) -> bytes:
            if words[0] == "write-tree":
                raise GitFailed(words, 128, "fatal: git-write-tree: prefix sub/ not found" if words[1:] else "fatal: x")
            return b"empty\n"

    mine = scanner(tmp_path, Empty())
    assert mine._tree(AT, Location(tmp_path, "sub")) == "empty"
    with pytest.raises(GitFailed):
        mine._tree(AT, Location(tmp_path))


def test_ignore_files_above_the_workspace_are_known_by_size_and_time(tmp_path: Path) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    mine, place = scanner(tmp_path, FakeGit()), Location(tmp_path, "a/b")
    seen = [mine._above(place)]
    for path in (".gitignore", "a/.gitignore"):
        (tmp_path / path).write_text("x")
        seen.append(mine._above(place))
    os.utime(tmp_path / "a/.gitignore", ns=(5, 5))
    seen.append(mine._above(place))
    (tmp_path / "a/b/.gitignore").write_text("git lists that one itself")
    assert mine._above(place) == seen[-1] and len({*seen}) == 4 and seen[0] == ((), ())


def test_a_folder_that_git_cannot_open_is_named(tmp_path: Path) -> None:
    class Closed(FakeGit):
        def run(self, *words: str, at: GitDirs, input: bytes = b"", **more: Any) -> bytes:
            if "-d" in words:
                more["warned"] += ["warning: could not open directory 'closed/': Permission denied", "warning: other"]
            return b""

    folder = tmp_path / "shadow"
    (folder / "info").mkdir(parents=True)
    shadow: Any = SimpleNamespace(folder=folder, git=Closed(), at=lambda *_, work_tree: GitDirs(folder, work_tree))
    found = Scanner(shadow, tmp_path, {}, (), Caps()).scan(Location(tmp_path), None, 0, 1 << 20)
    assert found.left_out.why == {b"closed": UNREADABLE}


def test_an_index_of_another_folder_is_none_of_this_one(tmp_path: Path) -> None:
    folder, index = tmp_path / "shadow", tmp_path / "shadow/index"
    folder.mkdir()
    shadow: Any = SimpleNamespace(folder=folder, git=FakeGit(), at=lambda *_, work_tree: GitDirs(folder, work_tree))
    here, below = Location(tmp_path), Location(tmp_path, "below")
    for place, kept in ((here, False), (here, True), (below, False), (below, True), (here, False)):
        index.touch()
        Scanner(shadow, tmp_path, {}, (), Caps())._begin(place)
        assert index.exists() == kept
