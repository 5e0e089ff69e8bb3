"""sed -i: told as not started where its files are as they were, and never as completed. Another file there may be
anybody's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.faults.evidence.stage import age, assessed, shell
from wal_agent.calls.call import ReadCall
from wal_agent.evidence.collector import changed_paths, read_parts


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("version = 1\nb\n")
    age(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    ["s/1/2/", "1d", "'/^b$/d'", "-E s,b,x,g", "-e 1d -e s/b/c/", "'s/[0-9]/2/'", r"'s/\(b\)/\1\1/'", "'/a/,/b/d'"],
)
def test_what_sed_left_is_no_proof(words: str, shop: Path) -> None:
    call = shell(f"sed -i {words} a")
    facts = call.facts(shop)
    assert changed_paths(read_parts(ReadCall(call.tool, call.input), shop)) == (str(shop / "a"),)
    assert assessed(shop, (call, facts))[0].finding == "not_started"
    subprocess.run(["bash", "-c", f"sed -i {words} a"], cwd=shop, check=True)
    assert assessed(shop, (call, facts))[0].finding == "unknown"


@pytest.mark.parametrize("words", ["-ie s/a/b/", "-iE s/a/b/", "-i.bak 1d", "-i 's/a/b/w out'", "-i -f script", "-i"])
def test_what_may_change_other_files_too_is_not_read(words: str, shop: Path) -> None:
    call = shell(f"sed {words} a")
    assert changed_paths(read_parts(ReadCall(call.tool, call.input), shop)) is None
    assert assessed(shop, (call, call.facts(shop)))[0].finding == "unknown"
