"""sed -i is told completed by what the file holds, never by its being another file than before."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.evidence.stage import Unhurried, age, assessed, shell
from tests.tiers import examples
from wal_agent.evidence.files import MAX_TEXT, apply_sed
from wal_agent.evidence.model import Budget


def sed(*words: str, text: bytes) -> bytes:
    """What the real one makes of a text."""
    return subprocess.run(
        ["sed", *words],
        input=text,
        env={"LC_ALL": "C.UTF-8", "PATH": os.environ["PATH"]},
        capture_output=True,
        check=True,
    ).stdout


def ours(*scripts: str, text: bytes, extended: bool = False) -> bytes | None:
    return apply_sed(scripts, extended, text, Budget(Unhurried(), 1.0))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("version = 1\nb\n")
    age(tmp_path)
    return tmp_path


@pytest.mark.parametrize("script", ["s/1/2/", "s/^version = .*/version = 2/", "1d", "/^b$/d"])
def test_a_file_that_somebody_replaced_is_no_proof(script: str, shop: Path) -> None:
    call = shell(f"sed -i '{script}' a")
    facts = call.facts(shop)
    (shop / "new").write_text("version = 3\nb\n")
    (shop / "new").rename(shop / "a")
    assert assessed(shop, (call, facts))[0].finding == "unknown"


@pytest.mark.parametrize("script", ["s/1/2/", "s/^version = .*/version = 2/", "1d", "/^b$/d", "$d", "s,b,&/&,g"])
def test_what_sed_itself_left_is_proof(script: str, shop: Path) -> None:
    call = shell(f"sed -i '{script}' a")
    facts = call.facts(shop)
    assert assessed(shop, (call, facts))[0].finding == "not_started"
    subprocess.run(["sed", "-i", script, "a"], cwd=shop, check=True)
    assert assessed(shop, (call, facts))[0].finding == "completed"


@pytest.mark.parametrize("script", [r"s/\(b\)/\1\1/", "s/[0-9]/2/", "s/a*b*/c/", r"s/b/\n/", "s/b/c/2", "/a/,/b/d"])
def test_of_other_scripts_it_is_not_told(script: str, shop: Path) -> None:
    call = shell(f"sed -i '{script}' a")
    facts = call.facts(shop)
    assert assessed(shop, (call, facts))[0].finding == "not_started"
    subprocess.run(["sed", "-i", script, "a"], cwd=shop, check=True)
    assert assessed(shop, (call, facts))[0].finding == "unknown"


def test_a_long_text_or_line_is_left(shop: Path) -> None:
    assert ours("s/a/b/", text=b"a\n" * (MAX_TEXT // 2)) is not None
    assert ours("s/a/b/", text=b"a\n" * (MAX_TEXT // 2 + 1)) is None
    assert ours("s/a*b/c/", text=b"a" * 100_000) is None


PIECES = ["a", "b", ".", "ab", "a*", ".*", r"\.", "+", "^", "$", r"\/", r"\*", "(", "é"]
PLACES = st.sampled_from(["", "1", "2", "$", "1,2", "2,$", "2,1", "/a/", "/^b/"])
OLD = st.lists(st.sampled_from(PIECES), min_size=1, max_size=4).map("".join)
NEW = st.lists(st.sampled_from(["x", "&", r"\&", "a", r"\/", ""]), max_size=3).map("".join)
SCRIPTS = st.one_of(
    st.builds("{}d".format, PLACES),
    st.builds("{}s/{}/{}/{}".format, PLACES, OLD, NEW, st.sampled_from(["", "g", "I", "gi"])),
)
TEXT = st.lists(
    st.sampled_from([b"a", b"b", b"A", b"ab", b".", b"*", b"+", b"\n", b"/", b"\xc3\xa9", b"("]), max_size=12
)


@settings(max_examples=examples(150))
@given(st.lists(SCRIPTS, min_size=1, max_size=2), st.booleans(), TEXT.map(b"".join))
def test_what_is_said_is_what_sed_makes(scripts: list[str], extended: bool, text: bytes) -> None:
    said = ours(*scripts, text=text, extended=extended)
    if said is not None:
        words = [w for s in scripts for w in ("-e", s)]
        assert said == sed(*(["-E"] if extended else []), *words, text=text)
