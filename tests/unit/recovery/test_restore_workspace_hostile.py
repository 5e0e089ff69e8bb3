"""Restore working trees out of hostile captures, and any tree over any other."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import unicodedata
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.tiers import examples
from tests.unit.recovery.lab import Lab, files, git, raw, repository, write
from wal_agent.budget import Budget
from wal_agent.capture.shadow import MAX_STATE, GitState
from wal_agent.errors import ConfigError, Damaged, Exhausted
from wal_agent.records import Pack, Repository, Workspace
from wal_agent.recovery import restore_tree
from wal_agent.recovery.rebuild_git import _URL, _is_progress_file
from wal_agent.recovery.restore_target import Keep


class Forge:
    """Makes captures by hand, of objects that git itself would not make."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.repo = lab, lab.root / "forge"
        self.repo.mkdir()
        git(self.repo, "init", "-q", "--bare")

    def object(self, kind: str, data: bytes) -> str:
        words = ["git", "hash-object", "-t", kind, "--literally", "-w", "--stdin"]
        return subprocess.run(words, cwd=self.repo, input=data, capture_output=True, check=True).stdout.decode().strip()

    def tree(self, *entries: tuple[str, str, str]) -> str:
        """Entries of mode, name, id; written as they are, in this order."""
        data = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(id) for mode, name, id in entries)
        return self.object("tree", data)

    def capture(self, work: str, state: GitState | None = None) -> Workspace:
        entries = [("40000", "work", work)]
        if state is not None:
            entries.insert(0, ("100644", "state", self.object("blob", msgspec.json.encode(state))))
        top = self.tree(*entries)
        commit = self.object("commit", f"tree {top}\nauthor x <x> 0 +0000\ncommitter x <x> 0 +0000\n\nx\n".encode())
        listed = git(self.repo, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)").encode()
        words = ["git", "pack-objects", "-q", "--stdout"]
        data = subprocess.run(words, cwd=self.repo, input=listed, capture_output=True, check=True).stdout
        pack = Pack(len(data), hashlib.sha256(data).hexdigest(), (self.lab.blobs.put_payload(data),))
        lost = Repository(head="", branch="refs/heads/main") if state else None
        return Workspace(time=1.0, holds=0, commit=commit, packs=(pack,), whole=True, files=9, repository=lost)


def nothing_changes(lab: Lab, captured: Workspace, kind: type[Exception] = Damaged) -> Exception:
    machine = lab.machine("b")
    write(machine.work, mine="mine\n", a="mine\n")
    before = raw(lab.root / "b" / "work")
    lab.state = msgspec.structs.replace(lab.state, workspace=captured)
    with pytest.raises(kind) as caught:
        machine.restore()
    assert raw(machine.work) == before
    assert {p.name for p in lab.root.iterdir()} <= {"b", "forge", "outside"}
    return caught.value


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    (tmp_path / "outside").mkdir()
    return Lab(tmp_path)


@pytest.mark.parametrize("name", ["..", ".", ".git", ".GIT", ".Git", "", "a/b", "git~1", ".git "])
@pytest.mark.parametrize("inside", [True, False])
def test_names_that_lead_elsewhere(lab: Lab, name: str, inside: bool) -> None:
    forge = Forge(lab)
    blob = forge.object("blob", b"[core]\n\tfsmonitor = touch /tmp/owned\n")
    bad = forge.tree(("100644", "config", blob)) if inside else blob
    work = forge.tree(("100644", "a", blob), ("40000" if inside else "100644", name, bad))
    # The last ones are other spellings of .git, which only git knows: it refuses before it writes.
    ours = name in ("..", ".", "", "a/b") or name.lower() == ".git"
    nothing_changes(lab, forge.capture(work), Damaged if ours else ConfigError)


def test_a_link_and_files_behind_it(lab: Lab) -> None:
    forge = Forge(lab)
    outside = lab.root / "outside"
    link, blob = forge.object("blob", os.fsencode(outside)), forge.object("blob", b"owned\n")
    sub = forge.tree(("100644", "owned", blob))
    nothing_changes(lab, forge.capture(forge.tree(("120000", "d", link), ("40000", "d", sub))))
    assert not list(outside.iterdir())


def test_one_name_twice(lab: Lab) -> None:
    forge = Forge(lab)
    one, two = forge.object("blob", b"1\n"), forge.object("blob", b"2\n")
    nothing_changes(lab, forge.capture(forge.tree(("100644", "a", one), ("100644", "a", two))))


def test_a_link_that_stands_here_is_not_followed(lab: Lab) -> None:
    forge = Forge(lab)
    blob = forge.object("blob", b"new\n")
    captured = forge.capture(forge.tree(("40000", "d", forge.tree(("100644", "f", blob)))))
    machine = lab.machine("b")
    machine.work.mkdir(parents=True)
    (machine.work / "d").symlink_to(lab.root / "outside")
    lab.state = msgspec.structs.replace(lab.state, workspace=captured)
    machine.restore()
    assert files(machine.work) == {"d/f": ("f", b"new\n")}
    assert not list((lab.root / "outside").iterdir())


@pytest.mark.parametrize("what", ["missing blob", "missing tree", "no commit", "no work", "huge state"])
def test_what_is_no_working_tree(lab: Lab, what: str) -> None:
    forge = Forge(lab)
    blob = forge.object("blob", b"x\n")
    match what:
        case "missing blob":
            captured = forge.capture(forge.tree(("100644", "a", "1" * 40)))
        case "missing tree":
            captured = forge.capture("2" * 40)
        case "no commit":
            captured = msgspec.structs.replace(forge.capture(forge.tree(("100644", "a", blob))), commit=blob)
        case "no work":
            captured = forge.capture(blob)
        case _:
            state = GitState(files={"MERGE_MSG": b"x" * MAX_STATE})
            captured = forge.capture(forge.tree(("100644", "a", blob)), state)
    error = nothing_changes(lab, captured, (Damaged, ConfigError))  # type: ignore[arg-type]
    if isinstance(error, Damaged):
        assert "into a new folder" in error.hint and "--job NAME" in error.hint


@pytest.mark.parametrize("what", ["hash", "bytes", "size", "not an id", "too big", "no part"])
def test_packs_that_do_not_hold(lab: Lab, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forge = Forge(lab)
    good = forge.capture(forge.tree(("100644", "a", forge.object("blob", b"x\n"))))
    pack, replace = good.packs[0], msgspec.structs.replace
    match what:
        case "hash":
            bad = replace(good, packs=(replace(pack, sha256="0" * 64),))
        case "bytes":
            data = b"PACK" + b"\xff" * 200
            payload = lab.blobs.put_payload(data)
            bad = replace(good, packs=(Pack(len(data), hashlib.sha256(data).hexdigest(), (payload,)),))
        case "size":
            bad = replace(good, packs=(replace(pack, size=pack.size + 1),))
        case "not an id":
            bad = replace(good, commit="--upload-pack=touch x")
        case "too big":
            monkeypatch.setattr(restore_tree, "FOREIGN", Budget(packs=10))
            bad = good
        case _:
            bad = replace(good, packs=())
    nothing_changes(lab, bad)


def test_a_full_disk_is_seen_before_it_is_full(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    forge = Forge(lab)
    good = forge.capture(forge.tree(("100644", "a", forge.object("blob", b"x\n"))))
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((0, 0)) and type("Disk", (), {"free": 10}))
    assert "are free" in str(nothing_changes(lab, good, Exhausted))


def test_state_writes_only_what_git_keeps_progress_in(lab: Lab) -> None:
    forge = Forge(lab)
    work = forge.tree(("100644", "a", forge.object("blob", b"x\n")))
    state = GitState(
        branch="refs/heads/../../../outside/x",
        refs={"refs/heads/../../config": "3" * 40, "refs/stash": "4" * 40, "HEAD": "5" * 40},
        files={
            **dict.fromkeys(
                ["config", "hooks/post-checkout", "../outside", "rebase-merge/../config", "index"], b"owned"
            ),
            **dict.fromkeys(["/outside", "rebase-merge/a/b", "MERGE_HEAD/x", "info/attributes", "rebase-merge/"], b"o"),
            "MERGE_MSG": b"fine",
        },
        shallow=("6" * 40,),
    )
    captured = forge.capture(work, state)
    lost = Repository(head="", branch="", identity=("origin:ext::sh -c touch% x", "origin:--upload-pack=x"))
    lab.state = msgspec.structs.replace(lab.state, workspace=msgspec.structs.replace(captured, repository=lost))
    machine = lab.machine("b")
    machine.restore()
    made = {name for name in raw(machine.work / ".git") if not name.startswith("objects/")}
    assert made == {"HEAD", "config", "MERGE_MSG", "index"} or made == {"HEAD", "config", "MERGE_MSG"}
    assert "owned" not in (machine.work / ".git/config").read_text()
    assert git(machine.work, "remote") == "" and not list((lab.root / "outside").iterdir())


@pytest.mark.parametrize("name", ["MERGE_HEAD", "rebase-merge/git-rebase-todo", "sequencer/todo", "rebase-apply/0001"])
def test_known_files_of_state(name: str) -> None:
    assert _is_progress_file(name)


@pytest.mark.parametrize(
    ("url", "fine"),
    [
        ("https://example.org/a.git", True),
        ("git@example.org:a/b.git", True),
        ("/srv/git/a", True),
        ("file:///srv/git/a", True),
        ("ext::sh -c touch", False),
        ("-oProxyCommand=x", False),
        ("https://example.org/\n[alias]", False),
    ],
)
def test_origins(url: str, fine: bool) -> None:
    assert bool(_URL.fullmatch(url)) is fine


def test_a_repository_is_not_rebuilt_below_another(lab: Lab) -> None:
    """Captured in a folder of a repository: on an empty machine its files come back, and no repository of their own."""
    first = lab.machine("a", lab.root / "a" / "repo" / "sub")
    repository(lab.root / "a" / "repo")
    first.capture()
    second = lab.machine("b")
    done = second.restore()
    assert files(second.work) == {"c": ("f", b"three\n")} and not (second.work / ".git").exists()
    assert done.offers and done.kept is not None


NAMES = ("a", "b", "A", "sub", "x y", "-n", "é", "tab\t", "nl\n", "*", ":(top)a", '"q"', "c.log", ".hidden", "\udce9")
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from([b"", b"one\n", b"two\r\n", b"\x00\xff", b"$Id$\n"])
KINDS = st.sampled_from(["file", "program", "link"])
Planted = list[tuple[str, str, bytes]]
TREES = st.lists(st.tuples(PATHS, KINDS, CONTENTS), max_size=8)
COLLISIONS: dict[str, Callable[[str], str]] = {
    "other kind": lambda path: path,
    "folder over file": lambda path: f"{path}/a",
    "file over folder": lambda path: path.rpartition("/")[0] or path,
    "other case": str.swapcase,
    "other normal form": lambda path: unicodedata.normalize("NFD", path),
    "ignored here": lambda path: f"sub/{path}",
    "ignored folder over file": lambda path: f"{path}/c.log",
}


@st.composite
def two_trees(draw: st.DrawFn) -> tuple[Planted, Planted]:
    """Two trees that meet: most paths of the second one collide with the first one's, in one of the ways above."""
    theirs = draw(TREES)
    ours: Planted = []
    for path, kind, _ in theirs:
        how = draw(st.sampled_from(["apart", *COLLISIONS]))
        event(how)
        other = {"file": "link", "link": "program", "program": "file"}[kind]
        if how != "apart":
            ours.append((COLLISIONS[how](path), other if how == "other kind" else "file", draw(CONTENTS)))
    return theirs, [*ours, *draw(st.lists(st.tuples(PATHS, KINDS, CONTENTS), max_size=4))]


def plant(folder: Path, tree: Planted) -> None:
    """What cannot be beside what is there already is left out."""
    for name, kind, data in tree:
        path = folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "link":
                path.symlink_to(os.fsdecode(data.replace(b"\0", b"")) or "sub")
            elif not path.is_symlink():
                path.write_bytes(data)
                path.chmod(0o755 if kind == "program" else 0o644)
        except OSError:
            continue


def beneath(aside: tuple[str, ...], folder: Path) -> dict[str, tuple[str, object]]:
    """What was moved aside, under its old name."""
    found = {}
    for name, what in files(folder).items():
        for moved in aside:
            if name == moved or name.startswith(f"{moved}/"):
                found[moved.rpartition(".wal-agent-aside-")[0] + name[len(moved) :]] = what
    return found


@settings(max_examples=examples(15), deadline=None)
@given(two_trees(), st.booleans(), st.booleans(), st.booleans())
@example(([("sub", "file", b"")], [("sub/a", "file", b"")]), False, True, True)
def test_any_tree_over_any_other(
    trees: tuple[Planted, Planted], first_git: bool, second_git: bool, ignoring: bool
) -> None:
    """I7, also where both trees want one place."""
    theirs, ours = trees
    root = Path(tempfile.mkdtemp(prefix="wa-any-"))
    try:
        lab = Lab(root)
        first, second = lab.machine("a"), lab.machine("b")
        for machine, tree, within in ((first, theirs, first_git), (second, ours, second_git)):
            machine.work.mkdir(parents=True)
            if within:
                repository(machine.work)
            plant(machine.work, tree)
        if second_git and ignoring:
            (second.work / ".git" / "info").mkdir(exist_ok=True)
            (second.work / ".git" / "info" / "exclude").write_text("*.log\nsub\n")
        assert first.capture() is not None
        wanted, had = files(first.work), files(second.work)
        git_had = raw(second.work / ".git") if second_git else {}
        committed = files_of(second.work) if second_git else {}
        if second.decide() == Keep("newest"):
            return
        done = second.restore()
        after = files(second.work)
        aside = beneath(done.aside, second.work)
        moved = {n for n in after if any(n == m or n.startswith(f"{m}/") for m in done.aside)}
        assert {n: w for n, w in after.items() if n in wanted} == wanted
        extra = {n: w for n, w in after.items() if n not in wanted and n not in moved}
        assert all(had.get(n) == w for n, w in extra.items()), "only what was there and is ignored"
        assert not second_git or raw(second.work / ".git") == git_had
        kept: dict[str, tuple[str, object]] = {}
        if done.files_kept and done.kept is not None:
            (root / "out").mkdir()
            os.system(f"cd {root}/out && {done.kept.get_files}")
            kept = files(root / "out" / "before")
        everywhere = [after, aside, kept, committed]
        for name, what in had.items():
            assert any(place.get(name) == what for place in everywhere), f"{name!r} is lost"
    finally:
        shutil.rmtree(root)


def files_of(folder: Path) -> dict[str, tuple[str, object]]:
    """What HEAD has."""
    out = Path(tempfile.mkdtemp(prefix="wa-head-"))
    try:
        git(
            folder, f"--work-tree={out}", "checkout", "-q", "HEAD", "--", ".", GIT_INDEX_FILE=str(out.with_suffix(".i"))
        )
        return files(out)
    finally:
        shutil.rmtree(out)
        out.with_suffix(".i").unlink(missing_ok=True)
