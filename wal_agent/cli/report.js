// The page of `wal-agent report`. What it shows is foreign: text enters the page by textContent alone.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 300; // rows that are made at a time
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

function safe(value) {
  return String(value).replace(HIDDEN, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
}

function make(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== "") made.textContent = safe(text);
  if (className) made.className = className;
  return made;
}

function own(object, key) {
  return object && typeof object === "object" && Object.hasOwn(object, key) ? object[key] : undefined;
}

function date(seconds) {
  const found = new Date(seconds * 1000);
  return Number.isNaN(found.getTime()) ? null : found;
}

const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const whole = new Intl.DateTimeFormat([], { dateStyle: "medium", timeStyle: "long" });
const time = (seconds) => { const d = date(seconds); return d ? clock.format(d) : "?"; };
const moment = (seconds) => { const d = date(seconds); return d ? whole.format(d) : "an unknown time"; };

function took(ms) {
  if (!ms) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 120000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60000)} min`;
}

// A payload as `wal-agent log --json` prints it: text, or only its size.
function textOf(payload) {
  const text = own(payload, "data");
  if (typeof text === "string") return text;
  const size = own(payload, "size");
  return size ? `(${size} bytes, not in this report: wal-agent recall --call N)` : "";
}

function preview(payload) {
  const text = textOf(payload);
  try {
    const fields = JSON.parse(text);
    for (const name of ["command", "file_path", "filePath", "path", "patchText", "pattern", "query", "url"]) {
      if (typeof own(fields, name) === "string") return fields[name].slice(0, 300);
    }
  } catch { /* no JSON: as it is */ }
  return text.slice(0, 300);
}

function pretty(text) {
  try { return JSON.stringify(JSON.parse(text), null, 2).replaceAll("\\n", "\n"); } catch { return text; }
}

const GROUPS = {
  intent: "call", opening: "crash", recovery: "crash", run_ended: "crash", agent_started: "crash", handoff: "crash",
  answer: "crash", file: "save", file_gone: "save", workspace: "save", checkpoint: "checkpoint", progress: "checkpoint",
  compaction: "checkpoint", turn: "turn", message: "turn", message_seen: "turn", phase: "phase",
};
const groupOf = (type) => own(GROUPS, type) || (/^(step|state)/.test(type) ? "step" : "other");
const TONES = { done: "good", verified: "good", resolved: "good", refused: "warn" };
const stateText = (state) => own(data.words, state) || state;
const CLASSES = { read_only: "good", mutation: "warn", unknown: "warn" };

// ---- what is in the log

const ends = new Map();
const verdicts = new Map();
for (const each of data.entries) {
  if (each.type === "end" && !ends.has(each.call)) ends.set(each.call, each);
  if (each.type === "recovery") for (const v of each.verdicts || []) verdicts.set(v.call, v);
}
const effects = new Map(data.effects.map((each) => [`${each.record}/${each.call || each.step}`, each]));
const rows = data.entries.filter((each) => each.type !== "end" || !seen(each)).map(rowOf);

function seen(end) {
  seen.calls ||= new Set(data.entries.filter((each) => each.type === "intent").map((each) => each.call));
  return seen.calls.has(end.call);
}

function rowOf(entry) {
  const row = { entry, group: groupOf(entry.type), name: entry.type.replaceAll("_", " "), what: "", cls: "", result: "", tone: "", ms: 0 };
  const effect = effects.get(`${entry.record}/${entry.call || entry.name}`);
  if (effect) row.effect = effect;
  if (entry.type === "intent") {
    const end = ends.get(entry.call);
    row.end = end;
    row.verdict = verdicts.get(entry.call);
    row.name = `#${entry.call} ${entry.tool}`;
    row.what = preview(entry.input);
    row.cls = entry.cls;
    row.result = stateText(entry.state);
    row.tone = own(TONES, entry.state) || "bad";
    row.ms = end ? end.duration_ms || 0 : 0;
  } else {
    row.what = summary(entry);
    if (entry.type === "run_ended") {
      row.result = entry.completed ? "completed" : entry.cls || "not completed";
      row.tone = entry.completed ? "good" : "bad";
    } else if (entry.type === "opening" && entry.cause === "dead") {
      row.result = "after a crash"; row.tone = "bad";
    } else if (entry.type === "step_begun" && effect && effect.result === "open") {
      row.result = "open"; row.tone = "bad";
    } else if (entry.type === "step_ended") {
      row.result = entry.how; row.tone = entry.how === "done" ? "good" : "bad";
    } else if (entry.type === "recovery") {
      row.ms = 1000 * (own(entry.seconds, "all") || 0);
    }
  }
  return row;
}

function summary(e) {
  switch (e.type) {
    case "opening": return `epoch ${e.epoch} on ${own(e.host, "name") || "?"} (${e.cause}), ${e.agent} ${e.agent_version}, ${moment(e.time)}`;
    case "recovery": return `of epoch ${e.from_epoch}: ${(e.verdicts || []).length} open calls, ${e.put_back || 0} put back`;
    case "turn": return `${e.state} ${textOf(e.prompt)}`;
    case "message": return `from ${e.sender}${e.verb ? ` (${e.verb})` : ""}: ${textOf(e.text)}`;
    case "message_seen": return `from ${e.sender}: ${e.id}`;
    case "file": return `${e.path}, ${e.size} bytes`;
    case "workspace": return `${e.files || 0} files, holds #${e.holds}`;
    case "checkpoint": return `${e.number} (${e.trigger})`;
    case "progress": return [e.title, e.phase, e.progress >= 0 ? `${e.progress} %` : "", e.note].filter(Boolean).join(" · ");
    case "phase": return `${e.phase} ${e.tool || ""} (was ${e.was})`;
    case "run_ended": return `code ${e.code} ${e.why || ""}`;
    case "step_begun": return `${e.name}: ${(e.command || []).join(" ")}`;
    case "cut":
    case "runs_on": return `#${e.call} ${stateText(e.type)} (${e.by}) ${e.why || ""}`;
    case "end": return `#${e.call} ${stateText(e.how)} (${e.by}) ${e.why || ""}`;
    default: return [e.name, e.step, e.path, e.agent, e.session, e.because, e.reason].filter((x) => typeof x === "string").join(" ");
  }
}

// ---- head

const epochs = [];
for (const { entry } of rows) {
  if (entry.type === "opening") epochs.push({ entry, from: entry.time, to: entry.time, calls: 0, lost: false, changed: 0 });
  const now = epochs.at(-1);
  if (!now) continue;
  now.to = Math.max(now.to, entry.time);
  if (entry.type === "intent") { now.calls += 1; if (entry.cls !== "read_only") now.changed += 1; }
  if (entry.type === "opening" && entry.cause === "dead" && epochs.length > 1) epochs.at(-2).lost = true;
}

function head() {
  const calls = rows.filter((row) => row.entry.type === "intent");
  const facts = [
    [calls.length, "calls"], [calls.filter((r) => r.cls !== "read_only").length, "may change something"],
    [calls.filter((r) => r.result === "failed").length, "failed"], [calls.filter((r) => r.result === "refused").length, "refused"],
    [epochs.length, "starts"], [data.crashes, "crashes"],
    [rows.filter((r) => r.entry.type === "recovery").length, "recoveries"],
    [data.effects.filter((e) => e.unsettled).length, "not known for certain"],
  ];
  const one = { calls: "call", starts: "start", crashes: "crash", recoveries: "recovery" };
  for (const [count, name] of facts) {
    const item = document.createElement("li");
    item.append(make("b", String(count)), ` ${count === 1 && one[name] || name}`);
    document.getElementById("facts").append(item);
  }
  const body = document.getElementById("epochs");
  for (const each of epochs) {
    const line = document.createElement("tr");
    const e = each.entry;
    for (const text of [e.epoch, own(e.host, "name") || "?", `${e.agent} ${e.agent_version}`, moment(each.from), took(1000 * (each.to - each.from)), e.cause, each.calls, each.changed])
      line.append(make("td", text));
    const [ended, crash] = own(data.ends, e.epoch) || ["", false];
    line.append(make("td", ended, crash ? "bad" : ""));
    body.append(line);
  }
  lanes();
}

function lanes() {
  const shown = epochs.slice(-40).filter((each) => date(each.from) && date(each.to));
  if (!shown.length) return;
  const svg = (name, fields, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(fields)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = safe(text);
    return made;
  };
  const first = Math.min(...shown.map((e) => e.from));
  const span = Math.max(...shown.map((e) => e.to)) - first || 1;
  const picture = svg("svg", { viewBox: `0 0 1000 ${shown.length * 18 + 4}`, role: "img", "aria-label": "Epochs over time; the table says the same." });
  shown.forEach((each, i) => {
    const x = 230 + (740 * (each.from - first)) / span;
    const width = Math.max(3, (740 * (each.to - each.from)) / span);
    picture.append(svg("text", { x: 0, y: i * 18 + 14 }, `${each.entry.epoch}  ${(own(each.entry.host, "name") || "?").slice(0, 26)}`));
    picture.append(svg("rect", { x, y: i * 18 + 4, width, height: 12, rx: 2, class: "run" }));
    if (each.lost) picture.append(svg("rect", { x: x + width, y: i * 18 + 2, width: 4, height: 16, class: "lost" }));
  });
  document.getElementById("lanes").append(picture);
}

// What is in a fold is made when it is opened.
function folded(name, content) {
  const made = document.createElement("details");
  made.append(make("summary", name, "plain"));
  made.addEventListener("toggle", () => { if (made.open && made.childElementCount === 1) made.append(content()); });
  return made;
}

function fileList(then) {
  const list = make("ol", "", "files");
  for (const file of then.files) {
    const item = document.createElement("li");
    const name = `${file.path}${file.link === undefined ? "" : ` -> ${file.link}`}, ${file.size} bytes${file.change ? `, ${file.change}` : ""}`;
    if (file.text) item.append(folded(name, () => make("pre", file.cut ? `${file.text}\n... (cut here: wal-agent restore --at ${then.record} --to DIR writes all of it)` : file.text)));
    else item.append(make("p", name));
    list.append(item);
  }
  if (then.more) list.append(make("li", `and ${then.more} more`));
  return list;
}

// With --at: the session and the working tree at the end of the page.
function asOf() {
  const { then } = data;
  if (!then) return;
  const place = document.getElementById("as-of");
  const title = make("h2", `As of record ${then.record}, ${moment(then.time)}`);
  title.id = "then";
  const fold = (name, content) => place.append(folded(name, content));
  place.append(title);
  if (then.short.length) place.append(make("p", `Not whole: ${then.short.join("; ")}`, "bad"));
  place.append(make("p", then.open.length ? `Calls that were open then: ${then.open.map((each) => `#${each.call} (${stateText(each.state)})`).join(", ")}` : "No call was open."));
  const changed = then.files.filter((file) => file.change).length;
  const all = then.files.length + then.more;
  fold(`Working tree: ${all} ${all === 1 ? "file" : "files"}${changed ? `, ${changed} added or changed by then` : ""}`, () => fileList(then));
  for (const each of then.session) fold(`Session file ${each.name}`, () => make("pre", each.text));
  place.classList.remove("hidden");
}

// ---- rows

const list = document.getElementById("rows");
const more = document.getElementById("more");
const count = document.getElementById("count");
let shown = rows;
let made = 0;

function element(row) {
  const { entry } = row;
  const item = document.createElement("li");
  if (entry.type === "opening") {
    item.className = entry.cause === "dead" ? "epoch lost" : "epoch";
  }
  const fold = document.createElement("details");
  const line = document.createElement("summary");
  const when = make("span", time(entry.time));
  when.title = moment(entry.time);
  line.append(make("span", entry.record, "number"), when, make("span", row.name, "name"), make("span", row.what, "what"),
    make("span", row.cls.replaceAll("_", " "), "class " + (own(CLASSES, row.cls) || "")), make("span", row.result, row.tone), make("span", took(row.ms), "took"));
  fold.append(line);
  fold.addEventListener("toggle", () => { if (fold.open && fold.childElementCount === 1) fold.append(unfold(row)); });
  item.append(fold);
  return item;
}

function part(body, title, text) {
  if (text === undefined || text === null || text === "") return;
  body.append(make("h3", title), make("pre", text));
}

// What the capture that followed a call, or this capture itself, changed in the files.
function diff(body, tree) {
  if (!tree) return;
  const calls = tree.to - tree.after;
  const by = calls === 1 ? `by call #${tree.to}` : calls > 1 ? `by calls #${tree.after + 1} to #${tree.to}` : "by what ran at that time";
  if (tree.why) part(body, "Files changed", `not known: ${tree.why}`);
  else if (!tree.files.length) body.append(make("p", `No file changed up to the capture in record ${tree.record}.`, "dim"));
  else {
    part(body, `Files changed ${by}, or beside it (capture in record ${tree.record})`, tree.files.map((f) => `${f.change}  ${f.path}`).join("\n"));
    part(body, "Differences", tree.patch);
  }
}

function unfold(row) {
  const { entry, end, verdict, effect } = row;
  const body = make("div", "", "body");
  body.append(make("p", `record ${entry.record}, epoch ${entry.epoch}, ${moment(entry.time)}`, "dim"));
  if (entry.type === "intent") {
    body.append(make("p", `class ${entry.cls} (rule ${entry.rule})${entry.unlogged ? "; it ran before it was logged" : ""}`));
    part(body, "Input", pretty(textOf(entry.input)));
    if (verdict) part(body, "Verdict of the recovery", `${verdict.finding}: ${verdict.why}${verdict.verify ? `\nlook with (the log says): ${verdict.verify}` : ""}`);
    if (end) {
      part(body, "End", `${row.result}, by ${end.by}${end.why ? `: ${end.why}` : ""}`);
      part(body, "Result", end.result ? pretty(textOf(end.result)) : "");
    }
    diff(body, data.trees.find((tree) => tree.after < entry.call && entry.call <= tree.to));
    if (entry.before) part(body, "Evidence from before the call", entry.before.map((f) => `${f.what}  ${f.where}  ${f.value}`).join("\n"));
  } else if (entry.type === "recovery") {
    for (const v of entry.verdicts || []) part(body, `Call #${v.call}: ${v.finding}`, `${v.why}${v.verify ? `\nlook with (the log says): ${v.verify}` : ""}`);
    part(body, "Restored", (entry.restored || []).join("\n"));
    part(body, "Left-over processes that were ended", (entry.leftovers || []).join("\n"));
    part(body, "Seconds", Object.entries(entry.seconds || {}).map(([k, v]) => `${k} ${v}`).join("\n"));
    part(body, "Prompt that the agent got", entry.told);
  } else {
    if (entry.type === "workspace") diff(body, data.trees.find((tree) => tree.record === entry.record));
    part(body, "Record", JSON.stringify(entry, null, 2));
  }
  if (effect) {
    part(body, "The agent says (this proves nothing)", effect.because);
    const label = { command: "Undo (a suggestion)", look: "Look", impossible: "No undo", unknown: "Undo" }[effect.undo.kind];
    part(body, label || "Undo", [...effect.undo.commands, effect.undo.note].filter(Boolean).join("\n"));
  }
  return body;
}

function extend(n) {
  const some = document.createDocumentFragment();
  for (const row of shown.slice(made, made + n)) some.append(element(row));
  made = Math.min(shown.length, made + n);
  list.append(some);
  more.classList.toggle("hidden", made >= shown.length);
  more.textContent = `Show more (${shown.length - made} left)`;
}

const form = document.getElementById("filter");
const field = (name) => form.elements[name].value;

function filter() {
  const words = field("search").toLowerCase().split(/\s+/).filter(Boolean);
  const [kind, cls, result] = [field("kind"), field("class"), field("result")];
  shown = rows.filter((row) => {
    if (kind === "effect" ? !row.effect : kind === "main" ? row.group === "save" || row.group === "phase" : kind && row.group !== kind) return false;
    if ((cls && row.cls !== cls) || (result && row.result !== result)) return false;
    if (!words.length) return true;
    row.text ||= JSON.stringify([row.entry, row.end, row.verdict]).toLowerCase();
    return words.every((word) => row.text.includes(word));
  });
  if (field("order") === "newest") shown.reverse();
  list.replaceChildren();
  made = 0;
  extend(PAGE);
  count.textContent = `${shown.length} of ${rows.length} records`;
}

for (const result of [...new Set(rows.filter((r) => r.entry.type === "intent").map((r) => r.result))].sort()) {
  const option = make("option", result);
  option.value = result;
  form.elements.result.append(option);
}
let waiting = 0;
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(filter, 120); });
more.addEventListener("click", () => extend(PAGE));
new IntersectionObserver((found) => { if (found.some((each) => each.isIntersecting)) extend(PAGE); }, { rootMargin: "600px" }).observe(more);
window.addEventListener("beforeprint", () => extend(shown.length));
head();
asOf();
filter();
document.documentElement.dataset.ready = "yes";
