// wal-agent's hooks in pi: an extension of one run, loaded with `-e` from the run's folder (wal_agent/agents/pi).
//
// A tool runs only on a whole "allow" of wal-agent's; every other way out of `tool_call` blocks it (I5). What the other
// events hear, and whether they hear anything, never disturbs pi (I6).

import { ask } from "./wire.js"

const SETUP = __WAL_AGENT_SETUP__
const FIRM = 25 // seconds: may wait for the bucket; other events are answered at once
const BRIEF = 4
const MAX_SUMMARY = 200_000 // characters of one that wal-agent looks at
// pi's own tools leave their input alone. An extension behind this one cannot rewrite it either: it was logged as it is.
const OWN = new Set(["bash", "edit", "write", "read", "grep", "find", "ls"])

function freeze(value) {
  if (value && typeof value === "object") Object.values(Object.freeze(value)).forEach(freeze)
}

function hear(event, ctx, said, seconds) {
  const payload = JSON.stringify({ session: ctx.sessionManager.getSessionId(), ...said })
  const { socket, run } = SETUP
  return ask({ socket, run, agent: "pi", event, pid: process.pid, seconds, payload })
}

async function tell(event, ctx, said = {}, seconds = BRIEF) {
  try {
    await hear(event, ctx, said, seconds)
  } catch {}
}

// What the model reads behind a tool's result, or where it would end its turn: messages; "" where there are none, or no answer came.
async function words(event, ctx, said, seconds) {
  try {
    const found = /^wal-agent:say (\{[^\0]*\})\0$/.exec(await hear(event, ctx, said, seconds))
    const text = found && JSON.parse(found[1]).words
    return typeof text === "string" ? text : ""
  } catch {
    return ""
  }
}

// "wal-agent:allow" or "wal-agent:say {...}", each with the NUL that proves it whole.
function verdict(answer) {
  if (answer === "wal-agent:allow\0") return undefined
  const said = JSON.parse(/^wal-agent:say (\{[^\0]*\})\0$/.exec(answer)[1])
  if (typeof said.words === "string" && said.reason === undefined) return said
  if (typeof said.reason !== "string" || said.reason === "") throw new Error("a refusal without a reason")
  return said
}

export default function (pi) {
  // pi refuses a flag that no extension knows: so it does not start where a launcher kept this one from it.
  pi.registerFlag("wal-agent", { type: "boolean", description: "Started by wal-agent" })
  const names = new Map() // by call id, of the calls of this batch
  let stop = "" // of the newest answer

  // An extension may put a tool of its own in the place of one of pi's: nobody knows what that one does (I1).
  function named(tool) {
    if (!OWN.has(tool)) return tool
    const found = pi.getAllTools().find(({ name }) => name === tool)
    return found?.sourceInfo?.path === `builtin:${tool}` ? tool : `${tool} (extension)`
  }

  pi.on("session_start", (event, ctx) => tell("session_start", ctx, { reason: event.reason }))

  pi.on("before_agent_start", async (event, ctx) => {
    stop = ""
    await tell("before_agent_start", ctx, { prompt: event.prompt })
    if (SETUP.protocol) return { systemPrompt: `${event.systemPrompt}\n\n${SETUP.protocol}` }
  })

  pi.on("tool_call", async (event, ctx) => {
    try {
      const { toolName, toolCallId: call_id, input } = event
      const tool = named(toolName)
      names.set(call_id, tool)
      if (SETUP.skip.includes(tool)) return
      if (OWN.has(toolName)) freeze(input)
      if (ctx.cwd !== process.cwd()) return { block: true, reason: SETUP.elsewhere }
      const refusal = verdict(await hear("tool_call", ctx, { tool, call_id, input }, FIRM))
      if (!refusal) return
      if (!refusal.reason) throw new Error("neither allowed nor refused")
      if (refusal.stop) ctx.abort()
      return { block: true, reason: refusal.reason }
    } catch {
      return { block: true, reason: SETUP.gone }
    }
  })

  // Only of tools that ran: tool_execution_end also comes for those that were blocked or do not exist.
  pi.on("tool_result", async (event, ctx) => {
    const { toolName, toolCallId: call_id, input, content, details, isError: failed } = event
    const tool = names.get(call_id) ?? toolName
    const aborted = ctx.signal?.aborted === true
    const change: any = {}
    const said = { tool, call_id, input, content, failed, aborted }
    const more = SETUP.skip.includes(tool) ? "" : await words("tool_result", ctx, said, FIRM)
    if (more && Array.isArray(content)) change.content = [...content, { type: "text", text: more }]
    // Into the session file, which else has the plain name; no model is told.
    const open = details === undefined || (details && Object.getPrototypeOf(details) === Object.prototype)
    if (tool !== toolName && open) change.details = { ...details, "wal-agent-tool": tool }
    if (Object.keys(change).length) return change
  })

  // Comes through the queue that writes the session file, behind the results of the batch; `context` does not. An answer
  // that a person stopped is a turn of its own to pi, the last one.
  pi.on("turn_end", (event, ctx) => {
    names.clear()
    return tell("turn_end", ctx, { stop: event.message?.stopReason ?? "" })
  })

  pi.on("agent_end", (event) => {
    stop = event.messages.findLast((message) => message.role === "assistant")?.stopReason ?? ""
  })

  // pi tries again by itself behind an agent_end, or goes on with what was queued. Behind this it waits, unless it is
  // told to go on; a run that was aborted skips it.
  pi.on("agent_before_settle", async (event, ctx) => {
    const content = await words("agent_before_settle", ctx, { stop }, BRIEF)
    if (!content) return
    const said = { type: "custom_message", customType: "wal-agent", content, display: true }
    return { entries: [...event.entries, said], continue: true }
  })

  // What the model that writes the summary is to keep comes as one more message of the user's.
  pi.on("session_before_compact", async (event, ctx) => {
    const { messagesToSummarize, turnPrefixMessages, isSplitTurn, tokensBefore } = event.preparation
    const tokens = Number.isInteger(tokensBefore) ? tokensBefore : 0
    try {
      const said = verdict(await hear("session_before_compact", ctx, { tokens }, BRIEF))
      if (said?.reason) return { cancel: true }
      if (!said?.words) return
      const content = [{ type: "text", text: said.words }]
      const into = [messagesToSummarize, ...(isSplitTurn ? [turnPrefixMessages] : [])].filter((list) => list.length)
      for (const list of into) list.push({ role: "user", content, timestamp: Date.now() })
    } catch {}
  })

  // A summary may lack the task: what wal-agent has to add goes behind it, in each request in the same words.
  const added = new Map() // by summary
  pi.on("context", async (event, ctx) => {
    const summary = event.messages.findLast((message) => message.role === "compactionSummary")
    if (!summary) return
    const id = `${summary.timestamp} ${summary.tokensBefore}`
    if (!added.has(id)) {
      try {
        const text = String(summary.summary).slice(0, MAX_SUMMARY)
        added.set(id, verdict(await hear("summary", ctx, { id, text }, BRIEF))?.words ?? "")
      } catch {}
    }
    if (!added.get(id)) return
    summary.summary = `${summary.summary}\n\n${added.get(id)}`
    return { messages: event.messages }
  })

  pi.on("session_compact", (event, ctx) => tell("session_compact", ctx))
}
