"""redact: secrets go, everything that only looks random stays. The "keys" here are made up."""

from __future__ import annotations

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal_agent.redact import MARK, redact

# Written in two parts so that no scanner takes this file for a leak.
SECRETS = [
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ASIA" + "Y34FZKBOKMUTVV7A",
    "AIza" + "SyA1234567890abcdefghijklmnopqrstuv",
    "ya29." + "a0AfH6SMBx-1234567890_abcdefghij",
    "GOCSPX-" + "1234567890abcdefghijklmn",
    "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "gho_" + "16C7e42F292c6912E7710c838347Ae178B4a",
    "github_pat_" + "11ABCDEFG0abcdefghijkl_mnopqrstuvwxyz",
    "glpat-" + "1234567890abcdefghij",
    "sk-" + "proj-abcdEFGH1234567890ijklMNOP",
    "sk-" + "ant-api03-abcdEFGH1234567890ijklMNOP_qrst-uvwx",
    "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "rk_test_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "xoxb-" + "123456789012-abcdefGHIJkl",
    "npm_" + "abcdefghijklmnopqrstuvwxyz0123456789",
    "hf_" + "abcdefghijklmnopqrstuvwxyz01234567",
    *(f"S{kind}" + "ACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY" for kind in "OANCUX"),  # NKEYs
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "around", ["{}", "key {} end", '{{"a": "{}"}}', "x={}", "https://h/?q={}&r=1", "a\n{}\nb", "({})"]
)
def test_known_key_formats(secret: str, around: str) -> None:
    said = redact(around.format(secret))
    assert secret not in said and MARK in said


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("TOKEN=hunter2hunter2", "hunter2"),
        ("export DB_PASS='p4ss w0rd'", "p4ss w0rd"),
        ("PGPASSWORD=zebra psql -h db", "zebra"),
        ("cmd --password zebra --verbose", "zebra"),
        ("cmd --api-key=zebra9", "zebra9"),
        ("cmd --auth-token 'zebra9'", "zebra9"),
        ('{"apiKey": "zebra9"}', "zebra9"),
        ('{"client_secret":"zebra9","x":1}', "zebra9"),
        ("{'password': 'zebra9'}", "zebra9"),
        (json.dumps({"command": 'curl -d {"password":"zebra9"}'}), "zebra9"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalr"),
        ("aws_session_token=FwoGZXIvYXdzEJr", "FwoGZXIv"),
        ("//registry.example.org/:_authToken=zebra9", "zebra9"),
        ("_auth=emVicmE5OnplYnJhOQ==", "emVicmE5"),
        ("password: zebra9", "zebra9"),
        ("my.service.token=zebra9", "zebra9"),
        ("postgres://me:zebra9@db:5432/shop", "zebra9"),
        ("redis://:zebra9@cache/0", "zebra9"),
        ("git clone https://x-access-token:zebra9@github.com/a/b", "zebra9"),
        ("git clone https://0123456789abcdef0123@github.com/a/b", "0123456789abcdef0123"),
        ("curl -H 'Authorization: Bearer zebra9' https://h", "zebra9"),
        ('curl -H "X-Api-Key: zebra9" https://h', "zebra9"),
        ('"authorization": "token zebra9"', "zebra9"),
        ("Cookie: sid=zebra9; other=lion", "lion"),
        ("curl -u me:zebra9 https://h", "zebra9"),
        ("curl -s --user me:zebra9 https://h", "zebra9"),
        ("sshpass -p zebra9 ssh h", "zebra9"),
        ("use bearer abcdefghij0123456789", "abcdefghij0123456789"),
        ("https://b.s3.amazonaws.com/k?X-Amz-Signature=0123abcd&X-Amz-Date=1", "0123abcd"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEabc+/=\nzebra9\n-----END RSA PRIVATE KEY-----\nafter", "zebra9"),
        ("k='-----BEGIN PRIVATE KEY-----\\nMIIEzebra9\\n-----END PRIVATE KEY-----\\n'", "zebra9"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rzebra9", "zebra9"),
    ],
)
def test_secrets_by_name_and_place(text: str, secret: str) -> None:
    said = redact(text)
    assert secret not in said and MARK in said


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("cmd --password zebra --verbose", ("cmd --password ", " --verbose")),
        ("postgres://me:zebra9@db:5432/shop", ("postgres://me:", "@db:5432/shop")),
        ('{"apiKey": "zebra9", "b": 1}', ('{"apiKey": "', '", "b": 1}')),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", ("BEGIN RSA", "\nafter")),
    ],
)
def test_the_surroundings_stay(text: str, kept: tuple[str, ...]) -> None:
    assert all(k in redact(text) for k in kept)


@pytest.mark.parametrize(
    "text",
    [
        "git push origin main",
        "commit 9e1c2d4f5a6b7c8d9e0f1a2b3c4d5e6f7a8b9c0d",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "integrity sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
        "3f2a91c0-1b2c-4d5e-8f90-a1b2c3d4e5f6",
        "/home/me/projects/shop/src/a_very_long_file_name_with_numbers_0123456789.py",
        "chats/session-1970-01-01T00-00-3f2a91c0.jsonl",
        "dist/index-BxY3kPz9aQ7LmN2vC8wR4tE6.js.map",
        "max_tokens: 4096, token_count=12, tokenizer=gpt",
        "PWD=/home/me/work/shop",
        "GOOGLE_APPLICATION_CREDENTIALS=/etc/keys/agent.json",
        "TOKEN=$TOKEN ./deploy.sh",
        "password=${DB_PASSWORD}",
        "token: ${{ secrets.TOKEN }}",
        'token = os.environ["TOKEN"]',
        "token = read_token(path)",
        "def f(token: str, password: str | None = None)",
        "ssh git@github.com",
        "git clone git+ssh://git@github.com/a/b",
        "http://127.0.0.1:8080/x@y",
        "docker run -u 1000:1000 image",
        "Authorization: required for every call, as said above",
        "a basic understanding of bearer authentication",
        "sk-learn-contrib-some-long-package-name",
        "grep -r '-----BEGIN CERTIFICATE-----' .",
        "task-12345678901234567890",
        "bypass=hello",
        "run_shell_command__run_shell_command_1795295630757_0",
    ],
)
def test_what_only_looks_random_stays(text: str) -> None:
    assert redact(text) == text


@given(st.text(alphabet="0123456789abcdef", min_size=1, max_size=128))
def test_hashes_stay(digits: str) -> None:
    assert redact(f"blob {digits} sha256:{digits} {digits}.json") == f"blob {digits} sha256:{digits} {digits}.json"


@given(st.lists(st.text(alphabet=string.ascii_letters + string.digits + "_.-", min_size=1, max_size=30), min_size=1))
def test_paths_of_words_stay_unless_a_part_is_a_key(parts: list[str]) -> None:
    path = "/" + "/".join(parts)
    said = redact(path)
    assert said == path or MARK in said


@given(st.sampled_from(SECRETS), st.text(alphabet=" \n\t\"'(){}[],;", max_size=5), st.text(max_size=20))
def test_a_key_is_found_in_any_surrounding(secret: str, edge: str, other: str) -> None:
    assert secret not in redact(f"{other} {edge}{secret}{edge} {other}")


TEXT = st.lists(
    st.sampled_from(["token", "password", "--", "=", ":", " ", '"', "'", "\\", "http://", "@", "Bearer ", "\n", "x",
                     "7", "-----BEGIN PRIVATE KEY-----", "-----END", "Authorization", *SECRETS]) | st.text(max_size=3),
    max_size=30,
).map(" ".join)  # fmt: skip


@given(TEXT)
def test_idempotent(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
