"""The list of skipped tools in somebody's wal-agent.toml: in, changed, out again; nothing else moves."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal_agent.cli.configure_hooks import with_skip, without_skip

TOOLS = st.lists(st.sampled_from(["read_file", "glob", "grep_search", 'odd "name"', "x\\y"]), min_size=1, unique=True)
LINES = st.sampled_from(["# a comment", "", "ttl = 5 # why", "  ", "[hooks]", "[other.table]", "x = [1,\n 2]"])
NEWLINE = st.sampled_from(["\n", "\r\n"])


@st.composite
def documents(draw: st.DrawFn) -> str:
    lines, newline = draw(st.lists(LINES, max_size=5, unique=True)), draw(NEWLINE)
    text = newline.join(lines) + draw(st.sampled_from(["", newline]))
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return ""
    return text


def skip(text: str) -> Any:
    return tomllib.loads(text).get("hooks", {}).get("gemini", {}).get("skip")


@settings(deadline=None)
@given(documents(), st.lists(TOOLS, min_size=1, max_size=3))
def test_what_goes_in_comes_out_again(text: str, changes: list[list[str]]) -> None:
    now = text
    for tools in changes:
        now = with_skip(now, "gemini", tools)
        assert skip(now) == tools
        document = tomllib.loads(now)
        document["hooks"].pop("gemini")
        old = tomllib.loads(text)
        assert {"hooks": {}, **document} == {"hooks": {}, **old}
    assert without_skip(now, "gemini") == text


def test_a_file_that_was_not_there_goes_again() -> None:
    text = with_skip(None, "gemini", ["read_file"])
    assert skip(text) == ["read_file"]
    assert without_skip(with_skip(text, "gemini", ["glob"]), "gemini") is None
    assert without_skip("ttl = 5\n" + text, "gemini") is not None


def test_an_empty_file_stays() -> None:
    assert without_skip(with_skip("", "gemini", ["x"]), "gemini") == ""


USERS = '# mine\n[hooks.gemini] # here\nskip = [\n  "a", # why a\n  "b",\n]\n\n[z]\ny = 1\n'


def test_a_list_of_the_users_keeps_its_form_and_comments() -> None:
    assert with_skip(USERS, "gemini", ["a", "b", "c"]) == USERS.replace('  "b",\n', '  "b",\n  "c",\n')
    assert with_skip(USERS, "gemini", ["a"]) == USERS.replace('  "b",\n', "")
    assert without_skip(USERS, "gemini") == "# mine\n[hooks.gemini] # here\n\n[z]\ny = 1\n"


@pytest.mark.parametrize(
    "text",
    [
        "hooks = {}\n",
        "hooks = { gemini = {} }\n",
        "hooks.gemini = {}\n",
        "[hooks]\ngemini = {}\n",
        "[hooks.gemini]\n",
        "[hooks.gemini]\n# nothing yet\n[other]\n",
        'hooks.gemini.skip = ["b"]\n',
        '[hooks]\ngemini.skip = ["b"] # x\n',
    ],
)
def test_other_forms_of_the_table_are_edited_where_they_stand(text: str) -> None:
    new = with_skip(text, "gemini", ["a"])
    assert skip(new) == ["a"]
    assert skip(without_skip(new, "gemini") or "") is None


@pytest.mark.parametrize("text", ["hooks = 1", "[hooks]\ngemini = 1", "a = ["])
def test_what_cannot_be_edited_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        with_skip(text, "gemini", ["a"])
