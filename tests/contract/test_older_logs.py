"""Logs of each kind, written before the packages were reorganized (f4d5374): a later version reads the same (I3).

`older_logs/` holds buckets of the demo's story on each agent: `killed` in its first change, `ended` after three
recoveries (gemini's with snapshots), one of a generic command, one encrypted with KEY. The JSON beside each archive is
what f4d5374 printed: records, status, restored files, open calls. A change of the format that fails here needs a reader
for the old bytes, not a new fixture.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wal_agent.cli.main import main
from wal_agent.redact import redact

LOGS = Path(__file__).parent / "older_logs"
KEY = bytes(range(32)).hex() + "\n"
# Of here or now:
NOT_OF_THE_LOG = {"bucket", "heartbeat_age", "owner_now", "phase_age", "left", "locked", "key", "advice"}
OF_A_CALL = ("calls", "tool", "input", "class", "rule", "finding")
LATER = {"answered", "looked", "because", "held", "state"}  # what `status` says of a call since
STATES_THEN = {"crashed": "cut_off"}  # other words of `status` since
ENDS_THEN = {"refused": "denied", "verified": "interrupted", "resolved": "acknowledged"}  # and of ends
Command = Callable[..., str]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """`wal-agent ARGS` in this process, in an empty folder and HOME: what it prints."""
    work = tmp_path / "shop"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    own = tmp_path / "home/.config/wal-agent/wal-agent.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[generic]\nsession = ["~/.toy", "state/*.json"]\n')

    def run(*args: str) -> str:
        monkeypatch.setattr(sys, "argv", ["wal-agent", *args])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert ended.value.code == 0, err
        return out

    return run


def printed(command: Command, folder: Path, name: str) -> dict[str, Any]:
    """What the commands print of the log in `folder`, as far as it does not depend on machine and time."""
    kind = name.partition("-")[0]
    agent = "gemini" if kind == "encrypted" else kind
    job = "job" if kind == "generic" else f"{agent}-shop"
    at = ["--agent", agent, "--job", job, "--bucket", f"file://{folder / 'bucket'}"]
    if kind == "encrypted":
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_text(KEY)
        at += ["--encryption-key-file", str(key)]
    status = json.loads(command("status", *at, "--json"))
    del status["schema"]
    assert status.pop("messages") == 0
    assert (status.pop("steps"), status.pop("unproven")) == ([], 0)  # what no older log has
    assert (status.pop("rewritten"), status.pop("name"), status.pop("mute")) == (None, "", False)
    status["state"] = STATES_THEN.get(status["state"], status["state"])
    status["unsettled"] = [{k: v for k, v in call.items() if k not in LATER} for call in status["unsettled"]]
    command("restore", *at, "--to", str(folder / "restored"))
    found: dict[str, Any] = {
        "records": [as_then(json.loads(line)) for line in command("log", *at, "-n", "1000", "--raw").splitlines()],
        "status": {name: value for name, value in status.items() if name not in NOT_OF_THE_LOG},
        "restored": {
            str(path.relative_to(folder / "restored")): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / "restored").rglob("*"))
            if path.is_file() and ".git" not in path.relative_to(folder).parts
        },
    }
    if name.endswith("-killed"):
        plan = json.loads(command("recover", *at, "--dry-run", "--json"))
        found["start"], found["tree"] = plan["start"], (plan["tree"] or {}).get("action")
        found["calls"] = [
            {field: call[field] for field in OF_A_CALL} for call in (plan["recovery"] or {"calls": []})["calls"]
        ]
    return found


def as_then(value: Any) -> Any:
    """A record of `log --raw` as `log --json` printed it in f4d5374: the bytes of files as redacted, shortened text."""
    if isinstance(value, list):
        return [as_then(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "base64" in value:
        text = redact(base64.b64decode(value["base64"]).decode("utf-8", "replace"))
        return {
            "size": value["size"],
            "data": text if len(text) <= 2000 else f"{text[:2000]}… ({len(text)} characters)",
        }
    return {
        name: ENDS_THEN.get(one, one) if name == "how" else as_then(one)
        for name, one in value.items()
        if name != "schema"
    }


@pytest.mark.parametrize("name", sorted(path.name.removesuffix(".tar.xz") for path in LOGS.glob("*.tar.xz")))
def test_an_older_log_reads_as_it_did(command: Command, tmp_path: Path, name: str) -> None:
    with tarfile.open(LOGS / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert printed(command, tmp_path, name) == json.loads((LOGS / f"{name}.json").read_text())
