// The wire of wal_agent/agents/hook_line.py for agents whose hooks are JavaScript in their own process (Node or Bun).
//
// ask() gives the supervisor's answer as text, whole, or rejects: a caller that guards a tool must then refuse it (I5).

import { lstatSync } from "node:fs"
import { connect } from "node:net"

const MAX_FRAME = 1 << 20
const HEAD = 5

function frame(kind, body) {
  const head = Buffer.alloc(HEAD)
  head.write(kind, 0, "latin1")
  head.writeUInt32BE(body.length, 1)
  return Buffer.concat([head, body])
}

function question({ run, agent, event, pid, payload }) {
  const hello = ["wal-agent-hook/1", run, agent, event, String(process.pid), pid ? String(pid) : ""]
  const body = Buffer.from(payload)
  const frames = [frame("H", Buffer.from(hello.join("\0")))]
  for (let at = 0; at < body.length; at += MAX_FRAME) frames.push(frame("D", body.subarray(at, at + MAX_FRAME)))
  frames.push(frame("E", Buffer.alloc(0)))
  return Buffer.concat(frames)
}

// `payload`: text or bytes; `pid`: the agent's process; `seconds`: for the whole of it.
export function ask({ socket, run, agent, event, pid, seconds, payload }) {
  return new Promise((resolve, reject) => {
    const owner = lstatSync(socket) // whoever owns the folder when the run is gone could listen there
    if (!owner.isSocket() || owner.uid !== process.geteuid()) throw new Error("not wal-agent's socket")
    const asked = question({ run, agent, event, pid, payload })
    const peer = connect({ path: socket })
    let got = Buffer.alloc(0)
    const timer = setTimeout(() => end(new Error(`no answer in ${seconds} s`)), seconds * 1000)
    const end = (error, text) => {
      clearTimeout(timer)
      if (error) {
        peer.destroy()
        reject(error)
      } else {
        peer.end(frame("T", Buffer.alloc(0)))
        resolve(text)
      }
    }
    peer.on("error", end)
    peer.on("close", () => end(new Error("wal-agent closed: it has no answer")))
    peer.on("connect", () => peer.write(asked))
    peer.on("data", (piece) => {
      got = Buffer.concat([got, piece])
      if (got.length < HEAD) return
      const size = got.readUInt32BE(1)
      if (got[0] !== 0x41 || size > MAX_FRAME || got.length > HEAD + size) return end(new Error("not an answer"))
      if (got.length < HEAD + size) return
      try {
        end(null, new TextDecoder("utf-8", { fatal: true }).decode(got.subarray(HEAD)))
      } catch (error) {
        end(error)
      }
    })
  })
}
