"""The rules as data: complete, and whitelists where a mistake would let a changing call start too early (I1)."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from importlib.resources import files

import pytest

from tests.tiers import once
from wal_agent.calls.call import ReadCall
from wal_agent.calls.classify import classify, classify_command
from wal_agent.calls.rules.table import (
    SCHEMA,
    CommandRow,
    ToolRow,
    join,
    json_schema,
    load_rules,
    parse_file,
    read_texts,
)
from wal_agent.calls.rules_lint import lint_builtin

# The programs that agents are known to run; the rest of the file is more than this.
PROGRAMS = """
    git gh npm pnpm yarn bun npx pip pip3 uv poetry pipx cargo go rustup mvn gradle make cmake docker podman
    kubectl helm kustomize terraform tofu pulumi ansible ansible-playbook aws gcloud gsutil az psql mysql
    sqlite3 redis-cli mongosh curl wget http ssh ssh-keygen scp rsync rm mv cp mkdir rmdir ln chmod chown touch
    tee sed dd truncate install mktemp tar unzip zip gzip systemctl service journalctl launchctl apt apt-get
    dpkg brew yum dnf apk snap useradd crontab kill pkill pytest jest vitest tox phpunit rspec eslint ruff
    prettier black mypy tsc gcc clang rustc javac ls cat head tail less wc sort uniq cut tr grep egrep rg fd
    tree stat file du df jq yq awk diff cmp comm column paste nl od xxd hexdump strings basename dirname
    realpath readlink pwd which whereis type printenv date hostname uname whoami id groups uptime free ps top
    lsof ss netstat ip ping dig nslookup host nproc lscpu seq echo printf sleep true false test md5sum sha256sum
    base64 cal bc expr tput locale man python python3 node ruby perl php code open xdg-open jupyter tmux screen
    find
"""


PARSED = [parse_file(text) for text in read_texts().values()]
ROWS: list[CommandRow | ToolRow] = []
for _file in PARSED:
    ROWS += [*_file.command, *_file.tool]


def test_there_are_enough_rules() -> None:
    assert len(ROWS) >= 150


def test_every_program_that_agents_are_known_to_run_has_a_rule() -> None:
    known = load_rules().begins
    assert [p for p in PROGRAMS.split() if p not in known] == []


def test_the_built_in_rules_have_no_problem() -> None:
    assert lint_builtin(read_texts()) == []


def test_enough_rules_say_how_to_verify_by_a_command() -> None:
    programs = {p.split()[0] for p in load_rules().commands}
    assert sum(bool(row.verify) and join(row.verify).split()[0] in programs for row in ROWS) > 100


def test_rows_are_short_and_name_their_schema() -> None:
    for name, text in read_texts().items():
        assert text.startswith(f"#:schema ../{SCHEMA}\n"), name
        assert max(map(len, text.splitlines())) <= 160, name


def test_the_schema_is_that_of_the_rows() -> None:
    shipped = files("wal_agent.calls.rules").joinpath(SCHEMA).read_text("utf-8")
    assert shipped == json_schema(), "python -m wal_agent.calls.rules.table >wal_agent/calls/rules/rules.schema.json"


def test_every_shell_tool_has_a_rule_for_what_cannot_be_read() -> None:
    rules = load_rules()
    assert [name for name in rules.shells if rules.tools[name].cls != "unknown"] == []


# Written from the manuals; each has an option or operand that changes something beside forms that only read.
TRAPS = r"""
    git log --output=f ;; git diff --output f ;; git -c core.pager=x log ;; git branch x ;; git branch -D x ;;
    git tag x ;; git tag -d x ;; git config a.b c ;; git config --unset a.b ;; git remote add a b ;; git stash ;;
    git stash pop ;; git reflog expire --all ;; git checkout . ;; git grep -Ovim x ;; git ls-remote ext::sh ;;
    git bisect run x ;; git submodule foreach ls ;; git archive HEAD ;; git symbolic-ref HEAD refs/heads/x ;;
    git fsck --lost-found ;; git notes add ;; git worktree prune ;; git fetch ;; git apply x ;; find . -exec rm x + ;;
    find . -delete ;; find . -fls f ;; find . -fprint f ;; find . -ok rm x + ;; fd -x rm ;; fd --exec rm ;;
    rg --pre x y ;; sort -o f f ;; sort -uo f f ;; sort --compress-program=x f ;; uniq a b ;; xxd -r a b ;; xxd a b ;;
    tree -o f ;; file -C -m x ;; date -s x ;; date 01010000 ;; hostname x ;; tar -tf x --to-command=y ;; tar -xf x ;;
    tar -cf x y ;; unzip x ;; gzip x ;; gzip -d x ;; less +!x f ;; sed -i s/a/b/ f ;; sed -n 'w f' g ;;
    sed 's/a/b/w f' g ;; sed '1e rm x' f ;; sed 's/a/b/e' f ;; sed -n '/x/wf' g ;; sed -e 1p -e wf g ;; sed -f s g ;;
    awk '{print > "f"}' g ;; awk 'BEGIN{system("x")}' ;; awk '{print | "x"}' g ;; awk -f s g ;;
    awk -i inplace '{print}' g ;; awk '{"x" | getline}' g ;; awk '@load "x"' ;; yq -i .a=1 f ;; yq -s .a f ;;
    curl -o f http://x ;; curl -O http://x ;; curl -d a http://x ;; curl -X POST http://x ;; curl -T f http://x ;;
    curl -K f ;; curl -sof http://x ;; curl -XDELETE http://x ;; curl file.txt ;; curl -c j http://x ;;
    curl -H 'X-HTTP-Method-Override: DELETE' http://x ;; curl -w '%output{f}' http://x ;;
    curl https://api.vercel.com/deploy/x ;; curl http://x --next -d a http://y ;; wget http://x ;;
    wget -O f http://x ;; wget --post-data=a -qO- http://x ;; http POST http://x ;; http http://x a=b ;;
    gh api -X POST /a ;; gh api /a -f b=c ;; gh api --method=DELETE /a ;; gh api graphql -f query=x ;; gh pr create ;;
    gh run cancel 1 ;; gh extension exec x ;; kubectl apply -f x ;; kubectl apply -f x --dry-run=none ;;
    kubectl delete pod x ;; kubectl cluster-info dump --output-directory=x ;; kubectl config use-context x ;;
    kubectl rollout restart x ;; kubectl auth reconcile ;; kubectl get --raw /x ;; kubectl --kubeconfig=x get pods ;;
    helm template x --output-dir d ;; helm template x --post-renderer y ;; terraform apply ;; terraform plan -out=x ;;
    terraform fmt ;; terraform state rm x ;; terraform workspace new x ;; docker run x ;; docker system prune ;;
    docker compose config -o f ;; docker image rm x ;; aws s3 cp a b ;; aws s3api get-object --bucket b --key k f ;;
    aws ec2 terminate-instances --instance-ids i ;; aws lambda invoke list-x ;; aws cognito-identity get-id ;;
    gcloud compute ssh x ;; gcloud compute instances delete list ;; gcloud auth login ;; az vm delete --name list ;;
    npm audit fix ;; npm config set a b ;; npm run x ;; npm install ;; npm version patch ;; pip install x ;;
    pip list --log f ;; pip config set a b ;; uv tree ;; cargo tree ;; cargo fmt ;; go env -w A=b ;;
    go list -toolexec x ;; go vet -vettool=x ;; gofmt -w f ;; systemctl restart x ;; journalctl --rotate ;;
    journalctl --vacuum-size=1M ;; journalctl --cursor-file=f ;; crontab f ;; crontab -r ;; dpkg -i x ;;
    apt install x ;; apt -o x=y list ;; brew install x ;; rpm -e x ;; eslint . ;; prettier --write f ;; black f ;;
    mypy --install-types ;; tsc ;; ruff check --fix ;; ruff format ;; isort f ;; psql -c 'SELECT f()' ;; psql -f x ;;
    psql -c '\! x' ;; psql -l -o f ;; mysql -e 'DROP TABLE x' ;; sqlite3 x.db .tables ;; sqlite3 -readonly x.db ;;
    sqlite3 x.db ;; sqlite3 -readonly x.db ".shell x" ;; sqlite3 -readonly x.db "select writefile('a','b')" ;;
    redis-cli set a b ;; redis-cli flushall ;; redis-cli -x get ;; kill 1 ;; kill -9 1 ;; python x.py ;;
    python -c 'import os; os.mkdir(1)' ;;
    python -m http.server ;; python -m json.tool a b ;; node x.js ;; perl -ne 1 f ;; make -n ;;
    make --version all ;; ssh-keygen -f x ;; ssh-keygen -R h ;; rsync -a a b ;; rsync -an --log-file=f a b ;;
    rsync -an -e x a b ;; ip link set x up ;; ip addr add x ;; iptables -A x ;; sysctl -w a=b ;; dmesg -C ;;
    ldconfig ;; mount a b ;; top ;; nc -l 1 ;; openssl req -new -out f ;; openssl x509 -in a -out b ;;
    printf -v PATH x ;; less -o f g ;; man -P x ls ;; pandoc -o a b ;; 7z x a ;; nvidia-smi -pl 1 ;; tee f ;;
    shuf -o f ;; exiftool -a=b f ;; timedatectl set-time x ;; apt-mark hold x ;; base64 -o f ;;
    arch -x86_64 rm -rf build ;; ptx -G in out ;; lastlog -C -u x ;; lastlog -S -u x ;; lastlog -Cu x ;; sensors -s ;;
    sensors --set ;; lz4 -l big.txt ;; lz4 -t a b ;; lz4 -c a b ;; lz4 big.txt ;; compress -l f ;; ruff check . ;;
    ruff check --no-fix . ;; golangci-lint run ;; golangci-lint run --no-config --fix ;; stylelint a.css ;; rubocop ;;
    openssl s_client -connect a:1 ;; echo DELETE / | openssl s_client -connect a:1 ;; rubocop --only=A --version a ;;
    openssl s_client -connect a:1 < f ;; openssl s_client -connect a:1 <<< x ;; openssl s_client 3</dev/null ;;
    openssl s_client </dev/null <f ;; sudo openssl s_client -connect a:1 ;; bash </dev/null 0<f ;;
    aws ec2 get-console-screenshot --instance-id i --wake-up ;;
    split f ;; bat --pager=x f ;; getent -i x y ;; tmux display-message "#(rm x)" ;; vault read database/creds/x ;;
""".strip()


# What a bare split at ;; would tear apart, or what needs a line of its own.
DEEP_TRAPS = [
    """awk '{print "INSERT (" $1 ");" > "out.sql"}' x""",
    """awk '{print "a}" > "f"}' x""",
    """awk '{print "a;" > "out"}' d""",
    """awk '{ printf("%s;\\n", $1) > "f" }' x""",
    """awk '/a;/ { x = "print" } { print; print "};" >> x }' x""",
    """awk '{print ";" | "sh"}' x""",
    """awk '{print "a;" |& "sh"}' x""",
    r"""sed -n '/x\/p;/e touch T;/p' f""",
    r"""sed -n '/x\/p;/w out;/p' f""",
    r"""sed -n '\|x\|p;|w out;|p' f""",
    r"""sed 'y/a\/b/c/;w out' f""",
    r"""sed -e p -e '/x\/p;/w out;/p' f""",
    # Some seds end this address at the first slash, and others at the one behind the bracket.
    "sed '/[/p;s/]/w out/' f",
    "sed 's/[/]/w out/;s/]/x/' f",
    "sed -e p -e r/dev/tty f",
]


@pytest.mark.parametrize("command", DEEP_TRAPS)
def test_what_ends_a_text_inside_of_a_program_does_not_hide_what_comes_behind_it(command: str) -> None:
    assert classify_command(command, load_rules()).cls != "read_only"


@pytest.mark.parametrize(
    "command",
    [
        "awk '$3 > 5 {print $1, $2}' f",
        "awk 'BEGIN{n=0} $2>n {n=$2} END{print n >= 3}' f",
        "awk '$1 > 3 && $2 >= 4 { printf \"%s;\\n\", $1 }' f",
        r"sed -n 's|.*/\([^/]*\)$|\1|p' f",
        r"sed -n '/a\/b/,/c\/d/p' f",
        "sed 's/[[:space:]]*$//;/^$/d' f",
        "sed -n '/a/{p;q}' f",
        "sed 's|/a/|/b|g' f",
        "arch",
        "lastlog -u root -t 3",
        "sensors -A",
        "lz4 -dc big.lz4",
        "ruff check --diff src",
        "ruff check --isolated --select F .",
        "openssl s_client -connect a:443 </dev/null 2>/dev/null | openssl x509 -noout -dates",
        "timeout 5 openssl s_client -connect a:443 -servername a < /dev/null",
        "echo | openssl s_client -connect a:443",
        "git config user.name",
        "git config branch.a.b.remote",
    ],
)
def test_forms_that_only_read_are_told_so(command: str) -> None:
    assert classify_command(command, load_rules()).cls == "read_only"


# Every pattern of a rule over texts that go on and on, and fail at their end. It prints the name before each.
SLOW = """
import sys
from wal_agent.calls.rules.table import load_rules

BEFORE = ("", "1", "/", "select ", "print ", "http://a/", "s/") if sys.argv[1] == "with words around" else ("",)
AFTER = ("", "!", "w x") if sys.argv[1] == "with words around" else ("!",)
units = ["\\n", " ", "\\t", "a", "a.", ".", "/", "a/", "/a/p;", "\\\\/", "|", ";", " ;", "1", "1,", "-", "{", "}", "'"]
units += ["p;", "p\\n", "s/a/b/;", "[", "[a]", ">=", "print ", "a=", "(", "select ", "_", ",", "--\\n", '"', "commit "]
patterns = {}
for rules in load_rules().commands.values():
    for rule in rules:
        for pattern in (rule.first, rule.operands, rule.line):
            if pattern is not None:
                patterns[pattern.pattern] = (rule.rule, pattern)
for name, pattern in patterns.values():
    print(name, flush=True)
    for times in (40, 3000):
        for unit in units:
            for before in BEFORE:
                for after in AFTER:
                    pattern.fullmatch(before + unit * times + after)
print("all", len(patterns))
"""


@pytest.mark.parametrize("texts", once(["alone", "with words around"], "alone"))
def test_no_pattern_of_a_rule_takes_long_over_any_text(texts: str) -> None:
    """Patterns run in the hook: a minute over one text is an agent that stands still."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW, texts],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (40, 45)),
    )
    last = done.stdout.splitlines()[-1]
    assert last.startswith("all "), f"{last} {done.stderr[-500:]}"
    assert int(last.split()[1]) > 100


def test_scripts_of_sed_are_read_up_to_a_length() -> None:
    assert classify_command(f"sed '{'p;' * 240}' f", load_rules()).cls == "read_only"
    assert classify_command(f"sed '{'p;' * 260}' f", load_rules()).cls == "unknown"


@pytest.mark.parametrize("command", [c for part in TRAPS.split(";;") if (c := part.strip())])
def test_forms_that_change_something_are_not_taken_for_those_that_read(command: str) -> None:
    assert classify_command(command, load_rules()).cls != "read_only"


def test_an_input_of_every_shell_tool_is_looked_into() -> None:
    for name, shell in load_rules().shells.items():
        text = json.dumps({shell.field: "git status"}).encode()
        assert classify(ReadCall(name, text), load_rules()).cls == "read_only"
