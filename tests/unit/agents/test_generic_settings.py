"""Which files a command's session is: what a project may say of it, and what only the person may."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.agents.generic import session
from wal_agent.agents.generic.session import Named
from wal_agent.config import Consents
from wal_agent.errors import ConfigError
from wal_agent.supervise import settings as config


class Desk:
    def __init__(self, base: Path) -> None:
        self.home, self.work = base / "home", base / "shop"
        self.own = self.home / ".config/wal-agent/wal-agent.toml"
        self.own.parent.mkdir(parents=True)
        self.work.mkdir()
        self.env = {"HOME": str(self.home)}

    def person(self, text: str) -> None:
        self.own.write_text(f"[generic]\n{text}\n")
        session.clear_cache()

    def project(self, text: str, allowed: bool = True) -> None:
        """`allowed`: the person lets the project say this, where it may be said at all."""
        (self.work / "wal-agent.toml").write_text(f"[generic]\n{text}\n")
        if allowed:
            with suppress(ConfigError):
                Consents(self.work, self.env).allow(config.wants_of(self.work, self.env))
        session.clear_cache()

    def named(self) -> list[str]:
        return [str(each) for each in session.load_settings(self.work, self.env).session]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path.resolve())


def test_nothing_is_named(desk: Desk) -> None:
    assert session.load_settings(desk.work, desk.env) == session.GenericSettings()
    assert session.load_settings(desk.work, {"HOME": "/nonexistent"}) == session.GenericSettings()


def test_both_files_count_and_each_entry_once(desk: Desk) -> None:
    desk.person('session = ["~/.toy.md", "state/*.json"]\nresume = ["--go-on", "{prompt}"]')
    desk.project('session = ["notes/a.md"]', allowed=False)
    assert desk.named() == ["~/.toy.md", "state/*.json"]
    desk.project('session = ["state/*.json", "./notes//a.md"]')
    assert desk.named() == ["~/.toy.md", "state/*.json", "notes/a.md"]
    assert session.load_settings(desk.work, desk.env).resume == ("--go-on", "{prompt}")


def test_an_absolute_path_of_the_persons_is_one_under_home(desk: Desk) -> None:
    desk.person(f'session = ["{desk.home}/.toy/x.md"]')
    assert desk.named() == ["~/.toy/x.md"]


def test_the_persons_file_moves_with_xdg(desk: Desk, tmp_path: Path) -> None:
    other = tmp_path / "xdg/wal-agent/wal-agent.toml"
    other.parent.mkdir(parents=True)
    other.write_text('[generic]\nsession = ["~/.toy.md"]\n')
    found = session.load_settings(desk.work, {**desk.env, "XDG_CONFIG_HOME": str(tmp_path / "xdg")})
    assert [str(each) for each in found.session] == ["~/.toy.md"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('resume = ["--run", "rm -rf ~"]', "generic.resume in {file} is not a project's to choose: its words would be"),
        ("resume = []", "not a project's to choose"),
        ('session = ["~/.toy.md"]', "names '~/.toy.md', which is not inside the workspace"),
        ('session = ["/etc/passwd"]', "names '/etc/passwd', which is not inside the workspace"),
        ('session = ["~root/x"]', "which is not inside the workspace"),
        ('session = ["../other/x"]', "which leads out of its folder"),
        ('session = ["a/../../x"]', "which leads out of its folder"),
        ('session = [".git/hooks/*"]', "which may hold credentials, or is no session's"),
        ('session = ["sub/.GIT/config"]', "which may hold credentials, or is no session's"),
        ('session = [".env"]', "which may hold credentials"),
        ('session = ["wal-agent.toml"]', "or is no session's"),
        ('session = [".wal-agent/prompts/recovery.md"]', "or is no session's"),
        ('session = ["**"]', "which is too wide"),
        ('session = ["*/x"]', "which is too wide"),
        ('session = ["."]', "which is no file"),
        ('session = [""]', "is not a list of at most 100 texts"),
        ("session = [1]", "is not a list of at most 100 texts"),
        ('session = "a"', "is not a list of at most 100 texts"),
        ('sessions = ["a"]', "generic.sessions is not a setting. Did you mean generic.session?"),
    ],
)
def test_what_a_project_may_not_say(desk: Desk, text: str, says: str) -> None:
    """At the start of every agent, not only of generic; the error names the file and where it may stand."""
    desk.project(text)
    for load in (
        lambda: session.load_settings(desk.work, desk.env),
        lambda: config.load("gemini", desk.work, desk.env, {}),
    ):
        with pytest.raises(ConfigError) as refused:
            load()
        assert says.format(file=desk.work / "wal-agent.toml") in str(refused.value)
        if "not a project's" in says or "not inside" in says:
            assert str(desk.own) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('session = ["/etc/passwd"]', "which is not under your home folder"),
        ('session = ["~other/x"]', "which is not under your home folder"),
        ('session = ["~/../x"]', "which leads out of its folder"),
        ('session = ["~/*"]', "which is too wide"),
        ('session = ["~/.*"]', "which is too wide"),
        ('session = ["~/"]', "which is not under your home folder"),
        ('session = ["~/.ssh/id_ed25519"]', "which may hold credentials"),
        ('session = ["~/.SSH/x"]', "which may hold credentials"),
        ('session = ["~/.claude/projects/*"]', "which may hold credentials"),
        ('session = ["~/.tool/oauth_creds.json"]', "which may hold credentials"),
        ('session = ["~/.tool/auth.json"]', "which may hold credentials"),
        ('session = ["~/.local/state/wal-agent/x"]', "or is no session's"),
        ('session = ["~/.config/wal-agent/wal-agent.toml"]', "or is no session's"),
        ('resume = "x"', "is not a list"),
        ('job = "x"', "generic.job is not a setting"),
    ],
)
def test_what_the_person_may_not_say(desk: Desk, text: str, says: str) -> None:
    desk.person(text)
    with pytest.raises(ConfigError) as refused:
        session.load_settings(desk.work, desk.env)
    assert says in str(refused.value) and str(desk.own) in str(refused.value)


def test_a_persons_file_that_is_wrong(desk: Desk) -> None:
    desk.own.write_text('buket = "gs://x"\n')
    with pytest.raises(ConfigError, match="buket is not a setting"):
        session.load_settings(desk.work, desk.env)
    desk.own.write_text("[generic\n")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        session.load_settings(desk.work, desk.env)
    desk.own.unlink()
    desk.own.mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        session.load_settings(desk.work, desk.env)


def test_what_the_command_writes_there_changes_nothing_of_its_own_run(desk: Desk) -> None:
    desk.project('session = ["a"]')
    assert desk.named() == ["a"]
    (desk.work / "wal-agent.toml").write_text("[generic]\nresume = []\n")
    assert desk.named() == ["a"]


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("a/b.md", ["a/b.md", "a/b.md/c"], ["a", "b.md", "a/c.md"]),
        ("a/*.json", ["a/x.json"], ["a/.x.json", "a/b/x.json", "a/x.jsonl"]),
        ("a/.x*", ["a/.x1"], ["a/x1"]),
        ("a/**/x", ["a/x", "a/b/x", "a/b/c/x"], ["a/b", "x", "a/.b/x"]),
        ("a/**", ["a/b", "a/b/c"], ["b"]),
        ("a/[0-9]?.md", ["a/1x.md"], ["a/x1.md", "a/1.md"]),
    ],
)
def test_what_a_pattern_means(pattern: str, yes: list[str], no: list[str]) -> None:
    named = Named("workspace", tuple(pattern.split("/")))
    assert [p for p in (*yes, *no) if named.covers(p.split("/"))] == yes


@given(
    st.lists(st.sampled_from(("a", "b", "*", "**", ".x", "?")), max_size=6), st.lists(st.sampled_from("ab"), max_size=6)
)
def test_matching_comes_to_an_end(pattern: list[str], parts: list[str]) -> None:
    covered = Named("workspace", tuple(pattern)).covers(parts)
    assert covered or not set(pattern) <= {"**"}
