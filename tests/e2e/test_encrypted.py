"""Encryption on the real CLI: a killed run goes on elsewhere with the key; without it nothing is read or changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.e2e.scene import Scene, commands_in, shell, told, until
from wal_agent.bucket.encryption import SEALED_MAGIC
from wal_agent.rehearsal.model import Turn

TASK = "please do the work with the word xylophone"
LEAK = "printenv WAL_AGENT_ENCRYPTION_KEY_FILE > leaked"
LONG = f"{LEAK}; echo begun xylophone >> side; touch started; sleep 600; echo ended >> side"


def objects(scene: Scene) -> dict[str, bytes]:
    """What lies in the folder bucket, by path, its locks left out."""
    folder = scene.root / "bucket"
    files = (p for p in folder.rglob("*=") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def hashes(scene: Scene) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in objects(scene).items()}


def key_file(scene: Scene, name: str, digits: str) -> Path:
    path = scene.root / name
    path.touch(mode=0o600)
    path.write_text(digits + "\n")
    return path


def test_an_encrypted_job_goes_on_elsewhere_with_its_key_and_only_with_it(scene: Scene) -> None:
    """I3, I4: killed in a call; another machine without the key, and with another one, is refused (77) and leaves the
    bucket byte for byte as it is; with the key the session is back. No word of it ever stands in the bucket."""
    right = key_file(scene, "right.key", bytes(range(32)).hex())
    wrong = key_file(scene, "wrong.key", bytes(range(1, 33)).hex())
    scene.script(
        Turn(text="First xylophone.", calls=[shell("seq 1 20000; echo xylophone")]),
        Turn(text="Now the long one.", calls=[shell(LONG)]),
    )
    first = scene.machine("vm-1")
    run = first.ask(TASK, WAL_AGENT_ENCRYPTION_KEY_FILE=str(right))
    until(lambda: (scene.workspace / "started").exists(), "the second call runs")
    run.kill()
    run.died()
    first.lost()
    assert (scene.workspace / "leaked").read_text() == "", "the agent is not told where the key is"

    stored = objects(scene)
    lease = stored.pop("job/lease.json=")
    assert len(stored) > 3 and all(
        data[66:].startswith(SEALED_MAGIC) for data in stored.values()
    )  # behind the file's frame
    assert not any(b"xylophone" in data for data in [lease, *stored.values()])

    before = hashes(scene)
    second = scene.machine("vm-2")
    for options, says in (
        ([], "and no key was given"),
        (["--encryption-key-command", f"cat {wrong}"], "the key that was given is"),
    ):
        refused = second.ask(TASK, options=["--wait", *options], wait=True)
        assert refused.process.returncode == 77 and says in refused.stderr(), refused.stderr()
        assert second.cli("log", *options).returncode == 77
        assert second.cli("recover", "--dry-run", *options).returncode == 77
        assert json.loads(second.cli("status", "--json", *options).stdout)["locked"]
    assert hashes(scene) == before
    assert not second.kept()

    scene.script(Turn(text="I verified: it began. I stop here."))
    seen = len(scene.model.requests)
    again = second.ask(TASK, options=["--wait"], wait=True, WAL_AGENT_ENCRYPTION_KEY_COMMAND=f"cat {right}")
    assert again.process.returncode == 0, again.stderr()
    request = scene.model.requests[seen]
    assert commands_in(request) == ["seq 1 20000; echo xylophone", LONG]
    assert "[wal-agent recovery]" in told(request)
    assert scene.side() == ["begun xylophone"]
    log = second.cli("log", "--json", "-n", "0", "--encryption-key-file", str(right))
    assert [r["epoch"] for r in map(json.loads, log.stdout.splitlines()) if r["type"] == "opening"] == [1, 2]
    assert not any(b"xylophone" in data for data in objects(scene).values())
