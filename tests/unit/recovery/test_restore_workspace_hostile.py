"""A bucket that lies about the working tree: nothing is written outside of the folder, and nothing is changed in it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from tests.unit.recovery.lab import Lab, files, git, raw, repository, write
from wal_agent.capture.shadow import MOST_STATE, GitState
from wal_agent.errors import ConfigError, Damaged
from wal_agent.records import Pack, Repository, Workspace
from wal_agent.recovery import packs
from wal_agent.recovery.rebuild import _URL, _is_progress_file


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
            state = GitState(files={"MERGE_MSG": b"x" * MOST_STATE})
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
            monkeypatch.setattr(packs, "MAX_PACK_BYTES", 10)
            bad = good
        case _:
            bad = replace(good, packs=())
    nothing_changes(lab, bad)


def test_a_full_disk_is_seen_before_it_is_full(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    forge = Forge(lab)
    good = forge.capture(forge.tree(("100644", "a", forge.object("blob", b"x\n"))))
    monkeypatch.setattr("shutil.disk_usage", lambda path: os.terminal_size((0, 0)) and type("Disk", (), {"free": 10}))
    assert "are free" in str(nothing_changes(lab, good, ConfigError))


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
