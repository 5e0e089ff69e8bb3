"""Score the words of a recovery:  python -m bench.wording [--server URL] [--apart] [SCENARIO...]"""

from __future__ import annotations

import argparse
import os
import sys

from bench.wording.cases import APART, KINDS, TOOLS, TUNED, case
from bench.wording.model import FORCED, Model, write_prompt
from wal_agent.errors import WalAgentError

WAYS = ("verify", "repeat", "ask", "go on", "settle")


def main() -> None:
    ask = argparse.ArgumentParser(prog="bench.wording", description="Score the words of a recovery with a model.")
    ask.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(TUNED)} (all), or a .toml file")
    ask.add_argument("--apart", action="store_true", help=f"also the ones kept apart: {', '.join(APART)}")
    ask.add_argument("--kind", action="append", choices=KINDS, help="only this conversation")
    default = os.environ.get("WORDING_SERVER", "http://127.0.0.1:8080")
    ask.add_argument("--server", default=default, help="a server with OpenAI's completions ($WORDING_SERVER)")
    ask.add_argument("--model", default=os.environ.get("WORDING_MODEL", "default"), help="its name ($WORDING_MODEL)")
    ask.add_argument("--show", action="store_true", help="print the conversations, and ask no model")
    options = ask.parse_args()
    if options.show:
        for name in options.scenarios or TUNED:
            for kind in options.kind or KINDS:
                print("\n\n".join(str(message.get("content") or "") for message in case(name, kind).messages[1:]))
        return
    model = Model(options.server, options.model)
    print("| scenario | conversation | a call at all | " + " | ".join(WAYS) + " |")
    print("|---|---|" + "---|" * (1 + len(WAYS)), flush=True)
    for name in options.scenarios or (*TUNED, *(APART if options.apart else ())):
        for kind in options.kind or KINDS:
            made = case(name, kind)
            prompt = write_prompt(made.messages, TOOLS)
            begins = model.begins_call(prompt)
            ways = model.spread(prompt + FORCED, made.ways)
            shown = " | ".join(f"{100 * ways[way]:.0f}" for way in WAYS)
            print(f"| {name} | {kind} | {100 * begins:.0f} | {shown} |", flush=True)


try:
    main()
except WalAgentError as error:
    sys.exit(str(error))
