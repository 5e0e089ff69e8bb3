#!/usr/bin/env node
// Find a way to run the Python program wal-agent, run it, and end as it ends. Signals are passed on; the terminal is shared.
"use strict";

const { spawn, spawnSync } = require("node:child_process");
const { accessSync, constants, realpathSync, statSync } = require("node:fs");
const { constants: { signals } } = require("node:os");
const { basename, delimiter, dirname, isAbsolute, join, sep } = require("node:path");
const { version } = require("./package.json");

const CONFIGURATION = 78; // docs/OPERATIONS.md of wal-agent, "Exit codes"
const FORWARDED = ["SIGTERM", "SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2"];

// npx and `npm exec` put the node_modules/.bin of this folder and of each above on PATH, and a clone may bring programs.
if (process.env.npm_command) {
  const here = realpathSync(process.cwd()) + sep;
  const isAround = (bin) => {
    if (basename(bin) !== ".bin" || basename(dirname(bin)) !== "node_modules") return false;
    try {
      return here.startsWith(join(realpathSync(dirname(dirname(bin))), sep));
    } catch {
      return false; // not there
    }
  };
  process.env.PATH = (process.env.PATH || "").split(delimiter).filter((bin) => !isAround(bin)).join(delimiter);
}

function onPath(name) {
  const self = realpathSync(__filename);
  for (const folder of (process.env.PATH || "").split(delimiter)) {
    if (!isAbsolute(folder)) continue; // a clone may bring programs
    const file = join(folder, name);
    try {
      accessSync(file, constants.X_OK);
      const real = realpathSync(file);
      if (statSync(real).isFile() && real !== self) return file; // npx puts this script on PATH under the same name
    } catch {
      // not there
    }
  }
  return null;
}

function command() {
  if (process.env.WAL_AGENT_BIN) return [process.env.WAL_AGENT_BIN];
  const pinned = `wal-agent==${version}`;
  let found = onPath("wal-agent");
  if (found) return [found];
  if ((found = onPath("uvx"))) return [found, "--from", pinned, "wal-agent"];
  if ((found = onPath("pipx"))) return [found, "run", "--spec", pinned, "wal-agent"];
  for (const name of ["python3", "python"]) {
    found = onPath(name);
    // -P: a Python file of the folder stands in for no module
    if (found && spawnSync(found, ["-P", "-c", "import wal_agent"], { stdio: "ignore" }).status === 0) {
      return [found, "-P", "-m", "wal_agent"];
    }
  }
  return null;
}

const words = command();
if (!words) {
  console.error("wal-agent: uvx, pipx and wal-agent itself are not on PATH. Install it: python3 -m pip install --user wal-agent");
  process.exit(CONFIGURATION);
}

// Before the start: the program may be there, and a signal come, before the next line here runs. A handler runs later.
// A ^C of the terminal reaches the whole process group: sent again, it would count twice.
let child;
for (const name of FORWARDED) {
  const typed = name === "SIGINT" || name === "SIGQUIT";
  process.on(name, () => (typed && process.stdin.isTTY) || child.kill(name));
}
child = spawn(words[0], [...words.slice(1), ...process.argv.slice(2)], { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`wal-agent: ${words[0]} cannot be started (${error.code}). Install it: python3 -m pip install --user wal-agent`);
  process.exit(CONFIGURATION);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + signals[signal] : code));
