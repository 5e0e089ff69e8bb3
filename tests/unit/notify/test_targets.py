"""URLs and levels: whose word they are, and that they are never shown."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from wal_agent.agents.generic import session as generic
from wal_agent.errors import ConfigError, UsageError, WalAgentError
from wal_agent.notify.message import MAX_TARGETS, MAX_URL, REFUSED, VARIABLE, Target, load_targets, parse_targets
from wal_agent.supervise import settings as config

URL = "json://127.0.0.1:9/s3cret"


def env(tmp_path: Path, text: str | None = None, **more: str) -> dict[str, str]:
    own = tmp_path / "config/wal-agent/wal-agent.toml"
    if text is not None:
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(text)
    return {"HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path / "config"), **more}


def test_the_variable_has_urls_between_white_space_each_with_a_level_or_not() -> None:
    assert parse_targets(f"{URL}\n info={URL}/1?a=b person_needed={URL}/2\t{URL}") == (
        Target(URL, "recovery"),
        Target(f"{URL}/1?a=b", "info"),
        Target(f"{URL}/2", "person_needed"),
    )


def test_the_persons_own_file_has_tables(tmp_path: Path) -> None:
    text = f'[[notify]]\nurl = "{URL}"\n[[notify]]\nurl = "{URL}/2"\nlevel = "info"\n[generic]\nsession = []\n'
    found = env(tmp_path, text)
    assert load_targets(found) == (Target(URL), Target(f"{URL}/2", "info"))
    assert load_targets({**found, VARIABLE: f"info={URL}/3"}) == (Target(f"{URL}/3", "info"),), (
        "the variable stands in front"
    )
    assert load_targets({**found, VARIABLE: "off"}) == ()
    assert load_targets({**found, VARIABLE: " "}) == load_targets(found)
    generic.clear_cache()
    assert generic.load_settings(tmp_path / "w", found).session == (), "the other reader of the file knows the word"


def test_without_either_nobody_is_told(tmp_path: Path) -> None:
    assert load_targets(env(tmp_path)) == () and load_targets(env(tmp_path, "")) == ()


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("loud=json://s3cret", UsageError),
        ("s3cret", UsageError),
        ("info=s3cret", UsageError),
        ("json://s3cret" + "x" * MAX_URL, UsageError),
        (" ".join(f"json://s3cret/{n}" for n in range(MAX_TARGETS + 1)), UsageError),
        *[(f"{name}://s3cret", UsageError) for name in sorted(REFUSED)],
        ("MacOSX://s3cret", UsageError),
        ("[[notify]]\nurl = 's3cret'", ConfigError),
        ("[[notify]]\nurl = 'json://s3cret x'", ConfigError),
        ("[[notify]]\nurl = 'dbus://s3cret'", ConfigError),
        ("[[notify]]\nurl = ['json://s3cret']", ConfigError),
        ("[[notify]]\nurl = 'json://s3cret'\nlevel = 's3cret'", ConfigError),
        ("[[notify]]\nurl = 'json://s3cret'\ncommand = 'x'", ConfigError),
        ("[[notify]]\nlevel = 'info'", ConfigError),
        ("[notify]\nurl = 's3cret'", ConfigError),
        ("notify = 's3cret'", ConfigError),
        ("[[notify]]\nurl = s3cret", ConfigError),
        ("notifi = 1", ConfigError),
    ],
)
def test_what_cannot_be_meant_is_named_without_the_url(tmp_path: Path, text: str, kind: type[WalAgentError]) -> None:
    found = env(tmp_path, text) if kind is ConfigError else env(tmp_path, **{VARIABLE: text})
    with pytest.raises(kind) as refused:
        load_targets(found)
    assert "s3cret" not in str(refused.value)
    assert "Entry" in str(refused.value) or VARIABLE in str(refused.value) or "wal-agent.toml" in str(refused.value)


def test_a_projects_file_cannot_say_where_messages_go(tmp_path: Path) -> None:
    work = tmp_path / "w"
    work.mkdir()
    for text in (f'[[notify]]\nurl = "{URL}"', "notify = []", "[notify]"):
        (work / "wal-agent.toml").write_text(text)
        with pytest.raises(ConfigError, match="not a project's to choose") as refused:
            config.load("gemini", work, env(tmp_path), {})
        way_out = refused.value.hint
        assert str(tmp_path / "config/wal-agent/wal-agent.toml") in way_out and VARIABLE in way_out


def test_a_target_shows_its_scheme_and_nothing_else() -> None:
    assert f"{Target('tgram://123456:AAbbcc/789')!r}" == "Target(tgram, recovery)"
    assert "123456" not in Target("tgram://123456:AAbbcc/789").id


def test_a_fifo_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    import os

    found = env(tmp_path, "")
    own = tmp_path / "config/wal-agent/wal-agent.toml"
    own.unlink()
    os.mkfifo(own)
    assert stat.S_ISFIFO(own.stat().st_mode)
    with pytest.raises(ConfigError, match="is not a file"):
        load_targets(found)
