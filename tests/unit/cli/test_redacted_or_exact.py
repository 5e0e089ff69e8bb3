"""A job whose agent has seen secrets: what resumes it is byte for byte as it was, what is shown of it has none."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.shelf import KEYS, SECRET, Run
from tests.unit.cli.test_restore import MAIN, Story
from wal_agent.records import Intent
from wal_agent.wal.reader import iter_segments

LOGIN = "postgres://shop:hunter2hunter2@db/shop"
SAID = f"api_key = {SECRET}\n{LOGIN}\n-----BEGIN PRIVATE KEY-----\nTUlJRXZRSUJBREFO\n-----END PRIVATE KEY-----\n"
SECRETS = (SECRET, "hunter2hunter2", "TUlJRXZRSUJBREFO")


def test_the_copy_is_exact_and_what_is_shown_is_redacted(tmp_path: Path, run: Run) -> None:
    story = Story(tmp_path, ttl=0.001)
    story.step("plain")
    (story.work / "secrets.env").write_text(SAID)
    story.main.write_text(SAID)
    command = f"curl {LOGIN} -H 'Authorization: Bearer {SECRET}'"
    story.call(command)

    code, _, err = run("restore", *story.where, "--to", "back")
    assert code == 0, err
    assert (Path("back/session") / MAIN).read_bytes() == story.main.read_bytes()
    assert Path("back/workspace/secrets.env").read_text() == SAID
    logged = [record for _, segment in iter_segments(story.shelf.bucket, KEYS) for record in segment.records]
    inputs = [record.input.data for record in logged if isinstance(record, Intent)]
    assert json.dumps({"command": command}).encode() in inputs

    code, out, _ = run("restore", *story.where, "--to", f"to-{SECRET}", "--json")
    assert code == 0 and SECRET not in out and Path(f"to-{SECRET}").is_dir()
    ways = (["log"], ["log", "--json"], ["status"], ["status", "--json"], ["recover", "--dry-run"],
            ["recover", "--dry-run", "--json"])  # fmt: skip
    for way in ways:
        code, out, err = run(*way, *story.where)
        assert code == 0 and "[redacted]" in out + err, way
        assert not [secret for secret in SECRETS if secret in out + err], way
