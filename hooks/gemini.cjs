// Node loads this file before Gemini CLI starts, in one run only (NODE_OPTIONS of that process).
//
// It adds the run's extension to the list that Gemini reads from ~/.gemini/extensions, so that no other Gemini loads it,
// and keeps the run's hooks and context file out of Gemini's status line: Gemini has no setting for that (0.61 reads
// `hooksConfig.notifications` only to compute a width). If any of this fails, Gemini runs without the hooks, the
// handshake is missing, and wal-agent ends the run (I5).

"use strict"

const { EventEmitter } = require("node:events")
const fs = require("node:fs")
const os = require("node:os")
const path = require("node:path")
const { syncBuiltinESMExports } = require("node:module")

// name: the hooks'. folder: the extension's, null if Gemini finds it by itself. context: the extension's context file,
// null for none. options: the user's NODE_OPTIONS, null for none.
const setup = __WAL_AGENT_SETUP__

// The rule of Gemini's Storage.getGlobalGeminiDir. Evaluated at each call, as Gemini does.
function isExtensions(place) {
  const home = process.env.GEMINI_CLI_HOME || os.homedir()
  return typeof place === "string" && path.resolve(place) === path.join(home, ".gemini", "extensions")
}

// Gemini joins each name to the folder's path, so a relative path leads to an extension anywhere.
function withOurs(place, names) {
  forget()
  return setup.folder === null ? names : [...names, path.relative(path.resolve(place), setup.folder)]
}

// Tools must get the user's NODE_OPTIONS. A launcher in front of Gemini may be a node program too and has to pass them
// on, so they are put back only when Gemini loads its extensions. The variable is for hooks that are installed in
// Gemini's own settings: this process needs none of them.
function forget() {
  process.env.GEMINI_CLI_WAL_AGENT_HOOKS = String(process.pid)
  if (setup.options === null) delete process.env.NODE_OPTIONS
  else process.env.NODE_OPTIONS = setup.options
}

const { existsSync } = fs
const { readdir } = fs.promises

fs.existsSync = (place) => existsSync(place) || isExtensions(place)
fs.promises.readdir = async (place, options) => {
  if (options || !isExtensions(place)) return readdir(place, options)
  const names = await readdir(place).catch((error) => {
    if (error.code === "ENOENT") return []
    throw error
  })
  return withOurs(place, names)
}

// The status line and the tips count the context files in a Set of paths. While Gemini reads ours, its path is kept out
// of the next set; the first attempt to add it ends that.
const { readFile } = fs.promises

fs.promises.readFile = async (file, ...rest) => {
  const text = await readFile(file, ...rest)
  if (setup.context !== null && file === setup.context) addAllBut(file)
  return text
}

function addAllBut(unwanted) {
  const { add } = Set.prototype
  const filter = function (value) {
    if (value !== unwanted) return add.call(this, value)
    if (Set.prototype.add === filter) Set.prototype.add = add
    return this
  }
  Set.prototype.add = filter
}
syncBuiltinESMExports()

// The UI learns by events which hooks run.
const HOOK_EVENTS = new Set(["hook-start", "hook-end"])

function quiet(emitter) {
  const { emit } = emitter
  emitter.emit = function (event, payload, ...rest) {
    if (HOOK_EVENTS.has(event) && payload?.hookName === setup.name) return false
    return emit.call(this, event, payload, ...rest)
  }
}

const { on } = EventEmitter.prototype
const seen = new WeakSet()
EventEmitter.prototype.on = EventEmitter.prototype.addListener = function (event, listener) {
  if (HOOK_EVENTS.has(event) && !seen.has(this)) {
    seen.add(this)
    quiet(this)
  }
  return on.call(this, event, listener)
}
