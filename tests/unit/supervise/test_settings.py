"""Settings: which source wins, and what is said when one cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal_agent.config import JOB, MAX_CRASHES, MAX_FILE, MAX_JOB, Consents, Settings
from wal_agent.errors import ConfigError, UsageError
from wal_agent.records import Owner
from wal_agent.supervise.identity import default_job, read_owner
from wal_agent.supervise.settings import load, refuse_skip, wants_of
from wal_agent.wal.state import MAX_ENDS

ENV = {"HOME": "/home/me"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "shop"
    folder.mkdir()
    return folder


def write(workspace: Path, text: str) -> Path:
    path = workspace / "wal-agent.toml"
    path.write_text(text)
    return path


def allow(workspace: Path, env: dict[str, str]) -> None:
    """The person lets the project decide what it asks for."""
    Consents(workspace, env).allow(wants_of(workspace, env))


def test_defaults(shop: Path) -> None:
    found = load("gemini", shop, ENV, {})
    assert (found.bucket, found.job) == (
        "file:///home/me/.local/state/wal-agent/bucket",
        default_job("gemini", shop, read_owner(shop, ENV)),
    )
    assert (found.ttl, found.autosave, found.drain, found.preemption) == (30, 10, 20, "auto")
    assert (found.durability, found.on_ambiguity, found.unverified, found.skip) == ("intent", "ask", "fail", ())
    assert set(found.sources.values()) == {"default"}


def test_the_state_folder_moves_with_xdg(shop: Path) -> None:
    assert load("gemini", shop, {"XDG_STATE_HOME": "/x"}, {}).bucket == "file:///x/wal-agent/bucket"


def test_a_flag_beats_the_environment_which_beats_the_own_file_which_beats_the_projects(
    shop: Path, tmp_path: Path
) -> None:
    ENV = {"HOME": str(tmp_path / "home")}
    own = tmp_path / "home/.config/wal-agent/wal-agent.toml"
    own.parent.mkdir(parents=True)
    own.write_text('ttl = 7\nautosave = 0.5\non_outage = "spool"\n[[notify]]\nurl = "json://127.0.0.1:9"\n')
    write(shop, 'job = "of-file"\nttl = 5\nautosave = 1.5\nworkspace = "off"\n')
    allow(shop, ENV)
    env = {**ENV, "WAL_AGENT_JOB": "of-env", "WAL_AGENT_TTL": "6"}
    found = load("gemini", shop, env, {"job": "of-flag", "ttl": None, "drain": 0})
    assert (found.job, found.ttl, found.autosave, found.drain) == ("of-flag", 6, 0.5, 0)
    assert (found.workspace, found.on_outage) == ("off", "spool")
    assert [found.sources[k] for k in ("job", "ttl", "autosave", "workspace", "bucket")] == [
        "flag",
        "environment",
        "own",
        "file",
        "default",
    ]
    assert found.places == {
        "job": "--job",
        "ttl": "WAL_AGENT_TTL",
        "drain": "--drain",
        "autosave": str(own),
        "on_outage": str(own),
        "workspace": str(shop / "wal-agent.toml"),
    }


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('job = "x"', "names a job, which would be that of every folder. Use --job"),
        ("ttl = 0", "ttl in {file} must be 1 to 3600 seconds (got 0)"),
        ("[hooks.gemini]", "hooks is not a setting"),
        ("s3cret = [", "is not valid TOML. Its URLs are secrets, so no more is shown."),
    ],
)
def test_what_the_own_file_may_not_say(shop: Path, tmp_path: Path, text: str, says: str) -> None:
    own = tmp_path / "home/.config/wal-agent/wal-agent.toml"
    own.parent.mkdir(parents=True)
    own.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load("gemini", shop, {"HOME": str(tmp_path / "home")}, {})
    said = str(refused.value)
    assert says.replace("{file}", str(own)) in said and str(own) in said and "s3cret" not in said


def test_as_many_crashes_can_be_counted_as_a_limit_may_ask_for(shop: Path) -> None:
    assert MAX_CRASHES == MAX_ENDS
    found = load("gemini", shop, {**ENV, "WAL_AGENT_RESTART_LIMIT": "16"}, {}).restart_limit
    assert found == 16 and isinstance(found, int)


def test_an_empty_variable_counts_as_not_set(shop: Path) -> None:
    assert load("gemini", shop, {**ENV, "WAL_AGENT_JOB": "", "WAL_AGENT_TTL": ""}, {}) == load("gemini", shop, ENV, {})


@pytest.mark.parametrize(
    ("flags", "env", "text", "kind", "says"),
    [
        ({"ttl": 0.5}, {}, "", UsageError, "--ttl must be 1 to 3600 seconds (got 0.5)."),
        (
            {"on_ambiguity": "no"},
            {},
            "",
            UsageError,
            "--on-ambiguity must be ask or",
        ),
        ({"bucket": "x/y"}, {}, "", ConfigError, "--bucket is 'x/y', which is not a bucket. Give gs://"),
        ({}, {"WAL_AGENT_TTL": "soon"}, "", UsageError, "WAL_AGENT_TTL must be 1 to 3600 seconds (got 'soon')."),
        ({}, {"WAL_AGENT_TTL": "nan"}, "", UsageError, "(got 'nan')."),
        (
            {},
            {"WAL_AGENT_JOB": "a/b"},
            "",
            UsageError,
            "WAL_AGENT_JOB must be letters, digits",
        ),
        ({}, {"WAL_AGENT_JOB": ".."}, "", UsageError, "(got '..')."),
        ({}, {"WAL_AGENT_JOB": "a" * 101}, "", UsageError, "at most 100"),
        ({"restart_limit": 17}, {}, "", UsageError, "--restart-limit must be a whole"),
        ({}, {"WAL_AGENT_RESTART_LIMIT": "2.5"}, "", UsageError, "must be a whole number from 0 to 16 (got '2.5')."),
        ({}, {"WAL_AGENT_RESTART_LIMIT": "inf"}, "", UsageError, "(got 'inf')."),
        ({}, {}, "ttl = true", ConfigError, "ttl in {file} must be 1 to 3600 seconds (got True)"),
        ({}, {}, "job = 3", ConfigError, "(got 3)."),
        ({}, {}, "tll = 3", ConfigError, "{file}: tll is not a setting. Did you mean ttl?"),
        ({}, {}, "zzz = 3", ConfigError, "{file}: zzz is not a setting. Known here: bucket, job, ttl,"),
        ({}, {}, "[hooks.gemni]", ConfigError, "{file}: hooks.gemni is not a setting. Did you mean hooks.gemini?"),
        (
            {},
            {},
            "[hooks.gemini]\nskp = []",
            ConfigError,
            "hooks.gemini.skp is not a setting. Did you mean hooks.gem",
        ),
        ({}, {}, "hooks = 1", ConfigError, "hooks in {file} must be a table, [hooks] (got 1)."),
        (
            {},
            {},
            '[hooks.gemini]\nskip = "x"',
            ConfigError,
            "(got 'x').",
        ),
        ({}, {}, "[hooks.gemini]\nskip = [1]", ConfigError, "must be a list of tool names (got [1])"),
        ({}, {}, "a = [", ConfigError, "{file} is not valid TOML"),
        (
            {},
            {},
            'on_outage = "spool"',
            ConfigError,
            "on_outage in {file} is not a project's to choose. Use the flag or the variable, or",
        ),
        ({}, {}, 'preemption = "off"', ConfigError, "preemption in {file} is not a project's to choose."),
        (
            {},
            {},
            'encryption_key_command = "cat /x"',
            ConfigError,
            "encryption_key_command in {file} is not a project's to choose.",
        ),
        (
            {"durability": "x"},
            {},
            "",
            UsageError,
            "--durability must be intent or sync (got 'x').",
        ),
    ],
)
def test_what_cannot_be_is_said_with_its_place_and_what_is_allowed(
    shop: Path,
    flags: dict[str, object],
    env: dict[str, str],
    text: str,
    kind: type[UsageError] | type[ConfigError],
    says: str,
) -> None:
    path = write(shop, text)
    with pytest.raises(kind) as caught:
        load("gemini", shop, {**ENV, **env}, flags)
    assert says.replace("{file}", str(path)) in str(caught.value)
    assert caught.value.exit_code == (64 if kind is UsageError else 78)


# ---- the file is hostile (tests/security has what it may do) ------------------------------------------------------


def test_a_person_may_choose_any_folder(shop: Path) -> None:
    assert load("gemini", shop, ENV, {"bucket": "file:///mnt/b"}).bucket == "file:///mnt/b"


def test_a_long_value_does_not_fill_the_screen(shop: Path) -> None:
    (shop / "wal-agent.toml").write_text(f'ttl = "{"y" * 10_000}"')
    with pytest.raises(ConfigError) as caught:
        load("gemini", shop, ENV, {})
    assert len(str(caught.value)) < 1000


def test_odd_files_are_refused_and_not_waited_for(shop: Path) -> None:
    path = shop / "wal-agent.toml"
    path.mkdir()
    with pytest.raises(ConfigError, match="not a file"):
        load("gemini", shop, ENV, {})
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="not a file"):
        load("gemini", shop, ENV, {})
    path.unlink()
    path.write_bytes(b"#" * (MAX_FILE + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load("gemini", shop, ENV, {})
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        load("gemini", shop, ENV, {})
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(ConfigError, match="not valid TOML"):
        load("gemini", shop, ENV, {})


def test_a_home_that_is_a_file_is_named_with_what_to_set(shop: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigError) as caught:
        load("gemini", shop, {"HOME": str(tmp_path / "home")}, {})
    assert str(tmp_path / "home") in caught.value.what and "HOME" in caught.value.hint


def test_the_hook_of_a_changing_tool_cannot_be_skipped(shop: Path) -> None:
    write(shop, '[hooks.gemini]\nskip = ["read_file", "run_shell_command"]')
    with pytest.raises(ConfigError, match=r"run_shell_command .* must be logged before it runs.*--unskip"):
        load("gemini", shop, ENV, {})


def test_the_hook_of_a_reading_tool_can(shop: Path) -> None:
    write(shop, '[hooks.gemini]\nskip = ["read_file", "glob", "read_file"]')
    found = load("gemini", shop, ENV, {})
    assert (found.skip, found.sources["skip"]) == (("read_file", "glob"), "file")


def test_who_knows_the_tools_can_be_handed_in(shop: Path) -> None:
    write(shop, '[hooks.gemini]\nskip = ["x"]')
    assert load("gemini", shop, ENV, {}, lambda tool: None).skip == ("x",)


@pytest.mark.parametrize("tool", ["write_file", "replace", "run_shell_command", "mcp__any", ""])
def test_every_tool_that_may_change_something_has_a_reason(tool: str) -> None:
    assert (refuse_skip(tool, "gemini") or "").endswith("so each call must be logged before it runs.")


@pytest.mark.parametrize(
    ("folder", "job"),
    [
        ("/w/shop", "gemini-shop-"),
        ("/w/My Project.v2", "gemini-My-Project.v2-"),
        ("/w/ünï/", "gemini-n-"),
        ("/w/...", "gemini-root-"),
        ("/", "gemini-root-"),
        ("/" + "x" * 300, "gemini-" + "x" * 88 + "-"),
    ],
)
def test_the_default_job_is_a_name_that_a_bucket_can_hold(folder: str, job: str) -> None:
    one, other = (default_job("gemini", Path(folder), Owner("me", "1" * 32, n * 32)) for n in "23")
    assert (one[: len(job)], len(one)) == (job, len(job) + 4)
    assert JOB.fullmatch(one) and len(one) <= MAX_JOB and one != other


def test_settings_are_data() -> None:
    with pytest.raises(AttributeError):
        Settings(bucket="", job="").ttl = 3  # type: ignore[misc]
