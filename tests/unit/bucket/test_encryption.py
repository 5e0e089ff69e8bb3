"""bucket/encryption.py: where a key comes from, and what is no key."""

from __future__ import annotations

import base64
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.processes import gone
from wal_agent.bucket import encryption
from wal_agent.bucket.encryption import FEWEST_DISTINCT, MAX_KEY_TEXT, Key, key_id, load_key, parse_key, wrong_key_error
from wal_agent.errors import ConfigError, Denied, UsageError, WalAgentError

SECRET = bytes(range(100, 132))
ENV = {"PATH": os.environ["PATH"]}


def secret_in(text: str) -> bool:
    """Whether a message shows the key, in any spelling of it."""
    spellings = (SECRET.hex(), SECRET.hex().upper(), base64.b64encode(SECRET).decode(), repr(SECRET), str([*SECRET]))
    return any(spelling[4:-4] in text for spelling in spellings)


def key_file(folder: Path, data: bytes, mode: int = 0o600) -> str:
    path = folder / "my key"
    path.write_bytes(data)
    path.chmod(mode)
    return str(path)


# ---- what is a key


def test_the_id_is_fixed_and_does_not_give_the_key_away() -> None:
    """The id stands in stored bytes: another one for the same key would lock its jobs."""
    assert Key(bytes(range(32))).id == "b0e5db3a222301ae"
    assert key_id(Key(SECRET)) == Key(SECRET).id != Key(SECRET[::-1]).id
    assert key_id(None) == ""
    assert not secret_in(repr(Key(SECRET))) and not secret_in(f"{Key(SECRET)!s}")


@pytest.mark.parametrize("size", [0, 16, 31, 33, 64])
def test_only_32_bytes_are_a_key(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Key(bytes(size))


SPELLINGS = [
    SECRET,
    SECRET.hex().encode(),
    SECRET.hex().upper().encode() + b"\n",
    b"  " + SECRET.hex().encode() + b" \r\n",
    base64.b64encode(SECRET),
    base64.b64encode(SECRET) + b"\n",
]


@pytest.mark.parametrize("text", SPELLINGS, ids=range(len(SPELLINGS)))
def test_raw_hex_and_base64_are_the_same_key(text: bytes, tmp_path: Path) -> None:
    assert parse_key(text, "it") == Key(SECRET)
    assert load_key(key_file(tmp_path, text), "", ENV) == Key(SECRET)


@given(st.integers(0, 2**64))
def test_any_random_bytes_are_a_key_also_with_white_space_at_their_ends(seed: int) -> None:
    rng = random.Random(seed)
    secret = rng.randbytes(31) + rng.choice(b"\n \t\r").to_bytes()
    assert parse_key(secret, "it").secret == secret
    assert parse_key(secret.hex().encode(), "it").secret == parse_key(base64.b64encode(secret), "it").secret == secret


NO_KEYS = [
    b"",
    b"\n",
    SECRET[:-1],
    SECRET + b"\n",  # raw bytes with an editor's newline: which of them are the key cannot be told
    SECRET.hex().encode()[:-2],
    SECRET.hex().encode() + b"00",
    SECRET.hex().encode()[:-1] + b"g",
    SECRET[:16].hex().encode() + b"\n",
    base64.b64encode(SECRET)[:-1],
    base64.b64encode(SECRET[:-1]),
    b"-----BEGIN PRIVATE KEY-----\n" + base64.b64encode(SECRET),
    b"\xff" * MAX_KEY_TEXT,
]


@pytest.mark.parametrize("text", NO_KEYS, ids=range(len(NO_KEYS)))
def test_what_is_no_key_is_refused_and_not_shown(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"no key in the safe: .*64 hex digits.*openssl rand") as caught:
        parse_key(text, "the safe")
    assert not secret_in(str(caught.value))


WEAK = [
    SECRET[:16].hex().encode(),  # 32 characters: a key of 16 bytes, in hex, without a newline
    b"correct horse battery staple oh!",
    base64.b64encode(b"correct horse battery staple oh!"),
    bytes(32),
    b"00" * 32,
    bytes(FEWEST_DISTINCT - 1) + bytes(range(FEWEST_DISTINCT - 1)) + b"\0\0",
]


@pytest.mark.parametrize("text", WEAK, ids=range(len(WEAK)))
def test_what_could_be_guessed_is_refused(text: bytes) -> None:
    with pytest.raises(ConfigError, match="could be guessed"):
        parse_key(text, "it")


# ---- from a file


def test_nothing_named_is_no_key() -> None:
    assert load_key("", "", ENV) is None


def test_a_file_and_a_command_are_one_too_many(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Both a key file and a key command"):
        load_key(key_file(tmp_path, SECRET), f"touch {tmp_path}/ran", ENV)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o602, 0o601, 0o644])
def test_a_file_that_others_may_open_is_refused_with_what_to_type(tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, SECRET, mode)
    with pytest.raises(ConfigError, match=rf"open to others \(mode 0{mode:o}\)") as caught:
        load_key(path, "", ENV)
    command = caught.value.hint.removeprefix("Type: ")
    subprocess.run(command, shell=True, check=True)
    assert load_key(path, "", ENV) == Key(SECRET)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize(("mode", "used"), [(0o440, True), (0o444, False)])
def test_a_group_may_read_what_someone_else_owns(tmp_path: Path, mode: int, used: bool) -> None:
    """A secret that is mounted into a container belongs to root and to the group that the container's user has."""
    path = key_file(tmp_path, SECRET, mode)
    os.chown(path, 12345, os.getegid())
    if used:
        assert load_key(path, "", ENV) == Key(SECRET)
    else:
        with pytest.raises(ConfigError, match="open to others"):
            load_key(path, "", ENV)


def test_odd_files_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    for name, says in (("fifo", "not a file.*--encryption-key-command"), (".", "not a file"), ("gone", "No such file")):
        with pytest.raises(ConfigError, match=says):
            load_key(str(tmp_path / name), "", ENV)


# ---- from a command


def test_a_command_is_run_once_by_the_shell_in_the_given_environment(tmp_path: Path) -> None:
    env = {**ENV, "VAULT": SECRET.hex(), "WHERE": str(tmp_path)}
    assert load_key("", 'echo run >> "$WHERE/runs"; echo $VAULT | tr a-f A-F', env) == Key(SECRET)
    assert (tmp_path / "runs").read_text() == "run\n"


def test_a_command_has_no_standard_input_and_its_errors_reach_the_user(capfd: pytest.CaptureFixture[str]) -> None:
    """I6: what is piped in is the agent's."""
    read, write = os.pipe()
    os.write(write, b"for the agent")
    stdin = os.dup(0)
    os.dup2(read, 0)
    try:
        assert load_key("", f"cat; echo unlocked >&2; echo {SECRET.hex()}", ENV) == Key(SECRET)
        assert os.read(0, 100) == b"for the agent"
    finally:
        os.dup2(stdin, 0)
        for fd in (stdin, read, write):
            os.close(fd)
    assert capfd.readouterr() == ("", "unlocked\n")


@pytest.mark.parametrize(
    ("command", "kind", "says"),
    [
        (f"echo {SECRET.hex()}; exit 3", Denied, r"failed \(exit code 3\)"),
        (f"echo {SECRET.hex()}; kill -9 $$", Denied, r"failed \(exit code -9\)"),
        ("no-such-program-here", Denied, r"failed \(exit code 127\)"),
        (f"echo {SECRET.hex()} {SECRET.hex()}", ConfigError, "no key in what the key command printed"),
        ("true", ConfigError, "no key in what"),
        ("head -c 10000 /dev/zero", ConfigError, "no key in what"),
    ],
)
def test_a_command_that_gives_no_key_is_told_without_its_text_or_its_output(
    command: str, kind: type[WalAgentError], says: str
) -> None:
    with pytest.raises(kind, match=says) as caught:
        load_key("", command, ENV)
    assert not secret_in(str(caught.value)) and command not in str(caught.value)
    assert caught.value.exit_code == (77 if kind is Denied else 78)


def test_a_command_that_hangs_is_ended_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "COMMAND_BUDGET", 5.0)
    with pytest.raises(Denied, match="did not end within 5 s"):
        load_key("", f"sleep 600 & echo $! > {tmp_path}/pid; wait", ENV)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 60
    while not gone(pid):
        assert time.monotonic() < end, "the command's child still runs"
        time.sleep(0.01)


# ---- the right key


@pytest.mark.parametrize(
    ("stored", "given", "says"),
    [
        ("aa", "", "Job shop is encrypted with key aa, and no key was given. Give it with --encryption-key-file or"),
        ("", "bb", "Job shop is not encrypted, but a key was given (key bb). Leave the key out, or"),
        ("aa", "bb", "Job shop is encrypted with key aa; the key that was given is bb."),
    ],
)
def test_each_wrong_key_has_its_sentence(stored: str, given: str, says: str) -> None:
    problem = wrong_key_error("shop", stored, given)
    assert problem is not None and says in str(problem) and problem.exit_code == 77


def test_the_right_key_or_none_is_no_problem() -> None:
    assert wrong_key_error("shop", "aa", "aa") is None
    assert wrong_key_error("shop", "", "") is None


def test_a_leases_key_id_is_cut_to_what_an_id_can_be() -> None:
    """The lease is hostile input."""
    assert len(str(wrong_key_error("shop", "x" * 50_000, ""))) < 300


def test_who_does_not_encrypt_does_not_load_cryptography() -> None:
    code = (
        "import sys\n"
        "from wal_agent.bucket.encryption import EncryptedBucket\n"
        "from wal_agent.bucket.base import MemoryBucket\n"
        "from wal_agent.bucket.encryption import Key\n"
        "import wal_agent.cli.main, wal_agent.supervise.run\n"
        "EncryptedBucket(MemoryBucket(), None).put('job/log/1', b'')\n"
        "print('cryptography' in sys.modules)\n"
        "EncryptedBucket(MemoryBucket(), Key(bytes(range(32))))\n"
        "print('cryptography' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
