"""Check how a call is taken apart into steps, and how their findings are combined."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.calls.call import ReadCall
from wal_agent.evidence.collector import NamedOutcome, combine_outcomes, split_call
from wal_agent.evidence.model import Outcome, Step, paths_overlap, relocate, resolve_path
from wal_agent.records import Finding

FOUND = st.builds(
    Outcome, st.sampled_from(["completed", "not_started", "partial", "unknown"]), st.sampled_from(["", "So it is."])
)
EITHER = st.just(Outcome("completed", "It was so before.", either=True))


def told(*findings: Finding | str) -> list[NamedOutcome]:
    found = {"either": Outcome("completed", "Was so.", either=True)}
    return [NamedOutcome(f"`{n}`", found.get(f) or Outcome(f, f"{f} {n}.")) for n, f in enumerate(findings)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "finding"),
    [
        (("completed", "completed"), "completed"),
        (("not_started", "not_started"), "not_started"),
        (("completed", "not_started"), "partial"),
        (("completed", "partial", "not_started"), "partial"),
        (("partial", "not_started"), "partial"),
        (("not_started", "completed"), "unknown"),  # the order of the steps says that this cannot be
        (("partial", "partial"), "unknown"),
        (("completed", "unknown"), "unknown"),
        (("not_started", "unknown"), "unknown"),
        (("unknown", "unknown"), "unknown"),
        (("either", "not_started"), "not_started"),
        (("either", "completed"), "completed"),
        (("either", "either"), "completed"),
        (("either", "unknown"), "unknown"),
        ((), "unknown"),
    ],
)
def test_steps_together(steps: tuple[str, ...], finding: str) -> None:
    assert combine_outcomes(told(*steps)).finding == finding


def test_what_is_known_is_named() -> None:
    assert combine_outcomes(told("completed", "unknown")).why == "`0` completed. The state of `1` is unknown."
    assert combine_outcomes(told("completed", "partial", "not_started", "not_started")).why == (
        "`0` completed; `2` and `3` have not begun; `1` was begun."
    )
    assert combine_outcomes(told("completed")).why == "completed 0."
    assert len(combine_outcomes(told(*["completed"] * 9, "not_started")).why) < 200


@given(st.lists(FOUND | EITHER, max_size=6))
def test_all_or_none(found: list[Outcome]) -> None:
    said = combine_outcomes([NamedOutcome(f"`{n}`", f) for n, f in enumerate(found)])
    findings = {f.finding for f in found if not f.either}
    if said.finding == "completed":
        assert found and findings <= {"completed"}
    if said.finding == "not_started":
        assert findings == {"not_started"}
    if said.finding == "partial":
        assert "unknown" not in findings and findings - {"not_started"} and findings != {"completed"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    for name in ("d/e", "other"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "a").write_text("a")
    (tmp_path / "link").symlink_to("d/e")
    return tmp_path


def steps(shop: Path, command: str, **more: object) -> list[tuple[str, str]] | None:
    found = split_call(ReadCall("run_shell_command", json.dumps({"command": command, **more}).encode()), shop)
    return None if found is None else [(" ".join(s.words), str(s.cwd.relative_to(shop))) for s in found]


def test_a_list_is_its_commands_in_their_folders(shop: Path) -> None:
    assert steps(shop, "rm a") == [("rm a", ".")]
    assert steps(shop, "touch a && cd d && rm x; cd e\nrm 'y z'") == [
        ("touch a", "."),
        ("rm x", "d"),
        ("rm y z", "d/e"),
    ]
    assert steps(shop, "cd link && rm x") == [("rm x", "link")]
    assert steps(shop, "rm a", dir_path="d", description="cleans up") == [("rm a", "d")]
    assert steps(shop, "sudo -n timeout 5 rm a") == [("rm a", ".")]


@pytest.mark.parametrize(
    "command",
    [
        *(
            "",
            "rm $X",
            "rm *",
            "rm ~/a",
            "rm {a,b}",
            "rm $(ls)",
            "rm a &",
            "rm a | cat",
            "(rm a)",
            "if x; then rm a; fi",
        ),
        *("rm a || rm b", "for i in 1; do rm a; done", "f() { rm a; }; f", "X=1 rm a", "cd nowhere; rm a", "cd; rm a"),
        *("cd -; rm a", "cd a; rm b", "cd d e; rm a", "cd link/..; rm a", "exit; rm a", "exec rm a", "eval 'rm a'"),
        *(
            "source x; rm a",
            "export A=1; rm a",
            "set -x +e; rm a",
            "trap 'rm a' EXIT",
            "umask 0; touch x",
            "rm 'a",
            "rm a\0",
        ),
        *(
            "ssh host rm a",
            "xargs rm a",
            "bash -c 'rm a' x & rm b",
            "env -C d rm a",
            "rm a > $X",
            "; ".join(["rm a"] * 17),
        ),
    ],
)
def test_what_is_open_gives_no_steps(shop: Path, command: str) -> None:
    found = split_call(ReadCall("run_shell_command", json.dumps({"command": command}).encode()), shop)
    assert found is None or all(s.words[0] not in ("rm", "touch") for s in found)


@pytest.mark.parametrize(
    "more", [{"is_background": True}, {"dir_path": 7}, {"dir_path": "link/.."}, {"command": 7}, {"what": "new"}]
)
def test_fields_that_may_change_what_is_done(shop: Path, more: dict[str, object]) -> None:
    assert split_call(ReadCall("run_shell_command", json.dumps({"command": "rm a", **more}).encode()), shop) is None


def test_cdpath_may_lead_elsewhere(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDPATH", "/")
    assert steps(shop, "cd d; rm a") is None


def at(shop: Path, named: str, way: tuple[Path, Path] | None = None) -> str | None:
    return resolve_path(Step("x", (), (), shop, way), named)


def test_places(shop: Path) -> None:
    assert at(shop, "./d//e/") == f"{shop}/d/e"
    assert at(shop, "d/../a") == f"{shop}/a"
    assert at(shop, "d/e/..") == f"{shop}/d"
    assert at(shop, "link/x") == f"{shop}/link/x"
    assert at(shop, "link/../a") is None and at(shop, "link/..") is None  # of d, not of the project
    assert [at(shop, n) for n in ("", "\0", "\ud800")] == [None] * 3
    assert at(shop, "/w/old/d/x", (Path("/w/old"), shop)) == f"{shop}/d/x"
    assert relocate((Path("/w/old"), Path("/w/new")), "/w/older/x") == "/w/older/x"


PATHS = st.lists(st.sampled_from(["a", "b", "A", "c"]), min_size=1, max_size=4).map(lambda p: "/" + "/".join(p))


@given(PATHS, PATHS)
def test_paths_that_may_be_one_meet(one: str, other: str) -> None:
    assert paths_overlap([one], [other]) == paths_overlap([other], [one])
    if one == other or one.startswith(f"{other}/") or one.rsplit("/")[-1].lower() == other.rsplit("/")[-1].lower():
        assert paths_overlap([one], [other])


def test_paths_that_are_apart() -> None:
    assert not paths_overlap(["/w/shop/a"], ["/w/shop/b", "/w/c"])
    assert not paths_overlap([], ["/a"])
    assert paths_overlap(["/"], ["/a"])
