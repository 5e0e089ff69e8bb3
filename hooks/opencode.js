// OpenCode's hooks for one run of wal-agent: a plugin that asks the supervisor itself, over wire.js beside it.
//
// OpenCode runs a tool unless tool.execute.before throws, and waits for that hook as long as it takes: so every failure
// here throws, and within a deadline (I5). No other hook may disturb the agent (I6): those swallow what goes wrong.
//
// Never touch OpenCode's database from here: closing a descriptor of it drops the process's own locks on it.

import { readFileSync, unlinkSync, writeFileSync } from "node:fs"

import { ask } from "./wire.js"

const SETUP = JSON.parse("@SETUP@") // socket, run, agent, skip, seconds, firm_seconds, clear, gone, owner, content, users

function alive(pid) {
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return error?.code === "EPERM"
  }
}

// Is this the OpenCode that wal-agent started? Not one that a tool of it started: that one is only a part of a call.
function first() {
  try {
    for (let turn = 0; turn < 3; turn++) {
      try {
        writeFileSync(SETUP.owner, String(process.pid), { flag: "wx", mode: 0o600 })
        return true
      } catch (error) {
        if (error?.code !== "EEXIST") return true
      }
      const pid = Number(readFileSync(SETUP.owner, "latin1"))
      if (!(pid > 0) || pid === process.pid) return true
      if (alive(pid)) return false
      unlinkSync(SETUP.owner)
    }
  } catch {
    // It guards what it cannot place.
  }
  return true
}

// npm was told to stay offline while OpenCode looked for its plugin package; tools and MCP servers are not to know.
for (const name of SETUP.clear) delete process.env[name]

// What the model is to be told first. `opencode run` would change a prompt on its command line (quotes, numbers), so it
// gets another there, and this one takes its place; the TUI takes none for a known session, so it is sent.
let say = JSON.parse(process.env.WAL_AGENT_OPENCODE_SAY || "null")
delete process.env.WAL_AGENT_OPENCODE_SAY

const BEGAN = Date.now() // ms
const MAX_SUMMARY = 200_000 // characters of a summary that wal-agent looks at

function tell(event, said, seconds = SETUP.seconds) {
  const { socket, run, agent } = SETUP
  return ask({ socket, run, agent, event, pid: process.pid, seconds, payload: JSON.stringify(said) })
}

function plain(value) {
  const kept = {}
  for (const [key, one] of Object.entries(value ?? {})) {
    if (["string", "number", "boolean"].includes(typeof one) && key !== "output" && String(one).length <= 4096)
      kept[key] = one
  }
  return kept
}

// MCP tools give a list of contents.
function text(output) {
  if (typeof output?.output === "string") return output.output
  const parts = Array.isArray(output?.content) ? output.content : []
  return parts.map((part) => (typeof part?.text === "string" ? part.text : `[${part?.type}]`)).join("\n")
}

// What the model reads behind a tool's result.
function add(output, words) {
  if (typeof words !== "string" || !words) return
  if (typeof output?.output === "string") output.output += `\n\n${words}`
  else if (Array.isArray(output?.content)) output.content.push({ type: "text", text: words })
}

export const WalAgent = async ({ client }) => {
  if (!first()) return {}
  const roots = new Map() // session -> its root session
  const failed = new Set() // root sessions whose turn ended with an error
  const stopped = new Set() // sessions whose turn a person stopped
  const sent = new Set() // what was told and not yet answered: dispose waits for it
  let current = ""
  let order = Promise.resolve()

  const root = async (session) => {
    let at = session
    const way = []
    while (!roots.has(at)) {
      way.push(at)
      const found = await client.session.get({ path: { id: at } })
      if (!found?.data?.id) throw new Error("the agent does not know its own session")
      if (!found.data.parentID) {
        roots.set(at, at)
        break
      }
      at = found.data.parentID
    }
    for (const one of way) roots.set(one, roots.get(at))
    return roots.get(at)
  }

  // In the order of what happened; answered at once, and nobody waits for a failure.
  const quietly = (work) => {
    const done = order.then(work).catch(() => undefined)
    order = done
    sent.add(done)
    done.finally(() => sent.delete(done))
    return done
  }

  const begin = async (session, source) => {
    if (session === current) return
    current = session
    await tell("session", { session, source })
  }

  const compacting = (id, done) =>
    quietly(async () => {
      if ((await root(id)) === id) return JSON.parse(await tell("compacting", { session: id, done }))
    })

  // A summary may lack the task: what wal-agent has to add goes behind it, in each request in the same words.
  const added = new Map() // by the id of the message with the summary
  const complete = async (session, messages) => {
    const summary = messages.findLast((message) => message.info?.summary === true && !message.info.error)
    const part = summary?.parts?.findLast((one) => one.type === "text")
    if (!part && !summary?.info.finish) return
    const { id } = summary.info
    if (!added.has(id)) {
      const text = String(part?.text ?? "").slice(0, MAX_SUMMARY)
      added.set(id, JSON.parse(await tell("summary", { session, id, text })).words ?? "")
    }
    const words = added.get(id)
    if (!words) return
    if (part) part.text = `${part.text}\n\n${words}`
    else summary.parts.push({ id: `${id}-wal-agent`, sessionID: session, messageID: id, type: "text", text: words })
  }

  const created = new Set() // sessions that this process made

  await quietly(() => tell("init", {}))

  if (say?.send) {
    const { session, text } = say
    say = null
    const body = { parts: [{ type: "text", text }] }
    setTimeout(() => client.session.promptAsync({ path: { id: session }, body }).catch(() => undefined), 0)
  }

  return {
    event: async ({ event }) => {
      const { type, properties: said } = event
      const info = said?.info
      if (type === "session.created" && info?.id) {
        roots.set(info.id, info.parentID ? (roots.get(info.parentID) ?? info.parentID) : info.id)
        if (!info.parentID) created.add(info.id)
      } else if (type === "message.updated" && info?.role === "user" && !current && created.has(info.sessionID)) {
        // Not when it is made: a fork is filled with what was said before. Without chat.message: a person's own command.
        if (info.time?.created >= BEGAN) quietly(() => begin(info.sessionID, "startup"))
      } else if (type === "session.error") {
        const session = said?.sessionID ?? current
        failed.add(session)
        if (said?.error?.name === "MessageAbortedError") stopped.add(session) // a person's Esc
      } else if (type === "session.idle" && roots.get(said?.sessionID) === said?.sessionID) {
        const session = said.sessionID
        if (!failed.has(session)) quietly(() => tell("completed", { session }))
        else if (stopped.has(session)) quietly(() => tell("stopped", { session }))
      } else if (type === "session.compacted") {
        compacting(said?.sessionID, true)
      } else if (type === "permission.asked") {
        const what = [said?.permission, ...(said?.patterns ?? [])].join(" ").slice(0, 2000)
        quietly(async () => tell("approval", { session: await root(said.sessionID), what }))
      }
    },

    "chat.message": async (input, output) => {
      const typed = output?.parts?.filter((part) => part.type === "text" && !part.synthetic)
      const words = typed?.map((part) => part.text)
      if (say && typed?.length) {
        typed[0].text = say.front ? `${say.text}\n\n${typed[0].text}` : say.text
        if (!say.front) words[0] = say.text
        say = null
      }
      await quietly(async () => {
        const session = await root(input.sessionID)
        if (session !== input.sessionID) return
        failed.delete(session)
        stopped.delete(session)
        await begin(session, created.has(session) ? "startup" : "resume")
        await tell("turn", { session, prompt: (words ?? []).join("\n") })
      })
    },

    // The messages of the next request, read back from the database: the batch before is in it.
    "experimental.chat.messages.transform": async (_, output) => {
      const session = output?.messages?.at(-1)?.info?.sessionID
      if (!session) return
      await quietly(async () => {
        if ((await root(session)) !== session) return
        await tell("request", { session })
        await complete(session, output.messages)
      })
    },

    // Awaited: the log has the conversation before the model is asked to shorten it.
    "experimental.session.compacting": async (input, output) => {
      const said = await compacting(input?.sessionID, false)
      if (typeof said?.words === "string" && said.words) output?.context?.push(said.words)
    },

    // What a tool starts gets the user's own value: another OpenCode works there as without us. It stays in our own
    // process, which reads it again when it reads its settings again.
    "shell.env": async (_, output) => {
      if (output?.env) output.env[SETUP.content] = SETUP.users
    },

    "tool.execute.before": async (input, output) => {
      if (SETUP.skip.includes(input.tool)) return
      let answer
      try {
        const session = await root(input.sessionID)
        const inner = session === input.sessionID ? "" : input.sessionID
        const said = { session, inner, tool: input.tool, call: input.callID, input: output.args ?? {} }
        answer = JSON.parse(await tell("before", said, SETUP.firm_seconds))
      } catch {
        throw new Error(SETUP.gone)
      }
      if (answer?.decision === "allow") return
      if (answer?.stop === true) client.session.abort({ path: { id: input.sessionID } }).catch(() => undefined)
      throw new Error(answer?.decision === "deny" && typeof answer.reason === "string" ? answer.reason : SETUP.gone)
    },

    "tool.execute.after": async (input, output) => {
      if (SETUP.skip.includes(input.tool)) return
      await quietly(async () => {
        const session = await root(input.sessionID)
        const inner = session === input.sessionID ? "" : input.sessionID
        const result = { output: text(output), title: output?.title ?? "", metadata: plain(output?.metadata) }
        const wrong = output?.isError === true
        const said = { session, inner, tool: input.tool, call: input.callID, input: input.args ?? {}, result, wrong }
        add(output, JSON.parse(await tell("after", said)).words)
      })
    },

    dispose: async () => {
      await Promise.all(sent)
    },
  }
}
