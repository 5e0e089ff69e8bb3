"""What a project's files may decide, and what needs the person's consent for this folder and this value."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.security.conftest import Clone
from wal_agent.agents import gemini
from wal_agent.agents.base import Cli
from wal_agent.agents.generic import session as generic
from wal_agent.config import SETTINGS, ConsentNeeded, Consents, Settings
from wal_agent.errors import ConfigError
from wal_agent.recovery.prompt import PROTOCOL, TEMPLATE_NAMES, load_templates, read_protocol
from wal_agent.supervise.settings import load, wants_of

ASKED: dict[str, Any] = {
    "bucket": "s3://attacker/loot",
    "job": "another",
    "ttl": 5,
    "autosave": 3600,
    "drain": 0,
    "idle_soft": 0,
    "approval_soft": 86400,
    "tool_soft": 0,
    "hang_timeout": 1,
    "restart": "on",
    "append_deadline": 0.1,
    "checkpoint": 0,
    "on_ambiguity": "resume",
    "unverified": "allow",
    "workspace": "off",
    "workspace_cap": 1,
}
TIGHTER: dict[str, Any] = {
    "durability": "sync",
    "autosave": 1,
    "idle_soft": 10,
    "approval_soft": 10,
    "tool_soft": 10,
    "checkpoint": 60,
    "on_ambiguity": "halt",
    "unverified": "fail",
    "control": "status",
}
PERSONS: dict[str, Any] = {
    "on_outage": "spool",
    "encryption_key_file": "/x",
    "encryption_key_command": "cat /x",
    "preemption": "off",
    "inbox": 0,
    "on_quota": "handoff:codex",
    "restart_limit": 0,
    "checkpoint_ttl_days": 1,
    "loop_limit": 0,
    "compact": "turns=1,keep=1",
    "restart_window": 1,
    "metrics_addr": "0.0.0.0:1",
    "metrics_file": "/x",
    "metrics_job_label": "on",
    "log_format": "json",
    "log_file": "/x",
    "log_level": "debug",
    "messages": "nats://attacker:4222",
    "worktrees": "all",
    "synadia": "on",
    "mcp": "on",
    "state": "nats",
    "accept_logged_args": "on",
}


def toml(key: str, value: Any) -> str:
    return f"{key} = {json.dumps(value)}"


def loaded(clone: Clone, agent: str = "gemini") -> Settings:
    return load(agent, clone.folder, clone.env, {})


def allow(clone: Clone) -> None:
    Consents(clone.folder, clone.env).allow(wants_of(clone.folder, clone.env))


def test_each_setting_is_in_this_test() -> None:
    assert set(ASKED) | set(TIGHTER) | set(PERSONS) == set(SETTINGS)


@pytest.mark.parametrize("key", ASKED)
def test_what_loosens_or_redirects_needs_consent_for_this_value(clone: Clone, key: str) -> None:
    clone.says(toml(key, ASKED[key]))
    with pytest.raises(ConsentNeeded) as refused:
        loaded(clone)
    said = str(refused.value)
    assert refused.value.exit_code == 78 and str(ASKED[key]) in said
    assert str(clone.file) in said and "wal-agent trust" in said
    allow(clone)
    found = loaded(clone)
    assert (getattr(found, key), found.sources[key], found.places[key]) == (ASKED[key], "file", str(clone.file))


@pytest.mark.parametrize("key", TIGHTER)
def test_what_only_tightens_applies_unasked(clone: Clone, key: str) -> None:
    clone.says(toml(key, TIGHTER[key]))
    found = loaded(clone)
    assert (getattr(found, key), found.sources[key]) == (TIGHTER[key], "file")


@pytest.mark.parametrize("key", PERSONS)
def test_what_is_the_persons_alone_is_refused_whatever_was_allowed(clone: Clone, key: str) -> None:
    clone.says(toml(key, PERSONS[key]))
    with pytest.raises(ConfigError, match=f"{key} in .* is not a project's to choose"):
        loaded(clone)
    with pytest.raises(ConfigError):
        wants_of(clone.folder, clone.env)


def test_the_default_said_aloud_asks_for_nothing(clone: Clone) -> None:
    clone.says('ttl = 30\nrestart = "off"\non_ambiguity = "ask"\ndurability = "intent"')
    assert loaded(clone).ttl == 30


def test_another_value_is_asked_again(clone: Clone) -> None:
    clone.says('bucket = "s3://acme/agents"')
    allow(clone)
    clone.says('bucket = "s3://attacker/loot"')
    with pytest.raises(ConsentNeeded, match="attacker"):
        loaded(clone)
    clone.says('bucket = "s3://acme/agents"\nrestart = "on"')
    with pytest.raises(ConsentNeeded, match="restart in"):
        loaded(clone)


def test_consent_is_for_the_folder_and_not_for_its_path(clone: Clone) -> None:
    """Another folder in its place, a copy, and the same folder elsewhere: asked again."""
    clone.says('restart = "on"')
    allow(clone)
    away = clone.folder.with_name("away")
    clone.folder.rename(away)
    clone.folder.mkdir()
    clone.says('restart = "on"')
    for folder in (clone.folder, away):
        with pytest.raises(ConsentNeeded):
            load("gemini", folder, clone.env, {})
    (clone.file).unlink()
    clone.folder.rmdir()
    away.rename(clone.folder)
    assert loaded(clone).restart == "on"


def test_a_note_that_others_can_write_counts_for_nothing(clone: Clone) -> None:
    """Another local user: the note is 0600 in 0700, and one that is not is none."""
    clone.says('restart = "on"')
    allow(clone)
    (note,) = (clone.home / ".local/state/wal-agent/trusted").iterdir()
    assert (note.stat().st_mode & 0o777, note.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for path, mode in ((note, 0o620), (note.parent, 0o770)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(ConsentNeeded):
            loaded(clone)
        path.chmod(before)
    other = note.with_name("other")
    note.rename(other)
    note.symlink_to(other)
    with pytest.raises(ConsentNeeded):
        loaded(clone)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"folder":1}', b"\xff" * 300, b"[" * 100_000])
def test_a_damaged_note_is_none(clone: Clone, data: bytes) -> None:
    clone.says('restart = "on"')
    allow(clone)
    (note,) = (clone.home / ".local/state/wal-agent/trusted").iterdir()
    note.write_bytes(data)
    with pytest.raises(ConsentNeeded):
        loaded(clone)


def test_the_persons_own_choice_goes_before_and_needs_no_consent(clone: Clone) -> None:
    clone.says('bucket = "s3://attacker/loot"\nrestart = "on"')
    own = clone.person('bucket = "gs://mine/agents"\nrestart = "off"')
    found = loaded(clone)
    assert (found.bucket, found.restart, found.sources["bucket"]) == ("gs://mine/agents", "off", "own")
    assert found.places["bucket"] == str(own)


# ---- prompts and [generic]: consent is for the bytes ---------------------------------------------------------------


@pytest.mark.parametrize("name", [*TEMPLATE_NAMES, PROTOCOL])
def test_a_projects_prompt_is_used_only_as_it_was_allowed(clone: Clone, name: str) -> None:
    text = "{% include '_calls.md' %} ours"
    clone.prompt(name, text)

    def used() -> bool:
        ours = load_templates(clone.folder, clone.env).own.get(name) == text
        return ours or read_protocol(clone.folder, clone.env) == text

    with pytest.raises(ConsentNeeded, match=f"prompts/{name}"):
        loaded(clone)
    assert not used()
    allow(clone)
    loaded(clone)
    assert used()
    text += " and mine"
    clone.prompt(name, text)
    with pytest.raises(ConsentNeeded):
        loaded(clone)
    assert not used()


def test_a_projects_generic_table_is_used_only_as_it_was_allowed(clone: Clone) -> None:
    clone.says('[generic]\nsession = ["state/*"]')

    def named() -> list[str]:
        generic.clear_cache()
        return [str(each) for each in generic.load_settings(clone.folder, clone.env).session]

    with pytest.raises(ConsentNeeded, match="generic in"):
        loaded(clone, "generic")
    assert named() == [] and loaded(clone, "gemini")
    allow(clone)
    assert named() == ["state/*"] and loaded(clone, "generic")
    clone.says('[generic]\nsession = ["state/*", "src/*"]')
    assert named() == []
    with pytest.raises(ConsentNeeded):
        loaded(clone, "generic")


def test_a_link_to_the_file_of_a_trusted_folder_is_not_trusted(clone: Clone, tmp_path: Path) -> None:
    clone.says('restart = "on"')
    allow(clone)
    other = tmp_path / "other"
    other.mkdir()
    (other / "wal-agent.toml").symlink_to(clone.file)
    with pytest.raises(ConsentNeeded):
        load("gemini", other.resolve(), clone.env, {})


@pytest.mark.parametrize("folder", ["bin", "./bin", ""])
def test_a_program_of_the_folder_is_not_taken_for_the_agent(clone: Clone, tmp_path: Path, folder: str) -> None:
    """Where PATH has a folder without a place of its own, every project can fill it."""

    def made(path: Path, version: str) -> Path:
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\necho {version}; : > {clone.home}/began-{version}\n")
        path.chmod(0o755)
        return path

    clone.monkeypatch.chdir(clone.folder)
    made(clone.folder / folder / "gemini", "6.6.6")
    with pytest.raises(ConfigError, match="a relative folder, which any project can fill"):
        gemini.locate({**clone.env, "PATH": f"{folder}:/nowhere"})
    own = made(tmp_path / "own" / "gemini", "0.61.0")
    assert gemini.locate({**clone.env, "PATH": f"{folder}:{own.parent}"}) == Cli(own, "0.61.0")
    assert not (clone.home / "began-6.6.6").exists()


def test_a_repository_that_a_clone_brings_as_files_has_no_program_run(clone: Clone, tmp_path: Path) -> None:
    """A clone has no .git of its own making, but may hold a whole bare repository, settings included, as plain files:
    whoever starts in that folder is in it."""
    subprocess.run(["git", "init", "-q", "--bare", str(clone.folder)], check=True)
    ran = tmp_path / "ran"
    program = f'"touch {ran}; false"'
    (clone.folder / "config").write_text(
        f"[core]\nrepositoryformatversion = 0\nbare = false\nworktree = .\nfsmonitor = {program}\n"
        f"pager = {program}\nhooksPath = {clone.folder}\n"
        f"alternateRefsCommand = {program}\n[diff]\nexternal = {program}\n[gpg]\nprogram = {program}\n"
        f'[filter "x"]\nclean = {program}\nprocess = {program}\nrequired = true\n[diff "x"]\ntextconv = {program}\n'
    )
    (clone.folder / ".gitattributes").write_text("* filter=x diff=x\n")
    clone.monkeypatch.setenv("WAL_AGENT_BUCKET", (tmp_path / "kept").as_uri())
    for words in (("run", "generic", "--", "sh", "-c", "echo new >file"), ("diff",), ("effects",)):
        code, _, err = clone.process(*words)
        assert code == 0, err
    assert not ran.exists()
    subprocess.run(["git", "status"], cwd=clone.folder, capture_output=True, check=False)
    assert ran.exists(), "git itself runs it, so this test would see it"
