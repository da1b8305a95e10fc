"use strict";
// The page of Polder's daemons. Everything that it shows comes from /stream; text
// from there is only ever set as text. Every figure names the metric that it is.

const $ = (id) => document.getElementById(id);
const HOUR = 3600e3, POINTS = 1200, WIDTH = 520, HEIGHT = 130, LEFT = 58, BOTTOM = 18;
let token = sessionStorage.getItem("polder-token") || "";
let state = null, panels = [], help = {}, times = [], series = [], at = null, dirty = true;

// --- small things -----------------------------------------------------------

function el(tag, attrs, ...children) {
  const e = document.createElement(tag);
  for (const k in attrs) if (k === "class") e.className = attrs[k]; else e.setAttribute(k, attrs[k]);
  e.append(...children);
  return e;
}
function svg(tag, attrs, text) {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const k in attrs) e.setAttribute(k, attrs[k]);
  if (text !== undefined) e.textContent = text;
  return e;
}
const color = (i) => `var(--c${i % 8})`;
const three = (v) => v === 0 ? "0" : Math.abs(v) >= 99.95 ? v.toFixed(0) : Math.abs(v) >= 9.995 ? v.toFixed(1) : v.toFixed(2);
function scaled(v, base, units) {
  let i = 0;
  while (Math.abs(v) >= base && i < units.length - 1) { v /= base; i++; }
  return (i === 0 && Number.isInteger(v) ? String(v) : three(v)) + units[i];
}
const bytes = (v) => scaled(v, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
const count = (v) => Number.isInteger(v) && Math.abs(v) < 1e5 ? v.toLocaleString("en") : scaled(v, 1000, ["", " k", " M", " G"]);
function seconds(v) {
  if (v < 1e-3) return three(v * 1e6) + " µs";
  return v < 1 ? three(v * 1e3) + " ms" : three(v) + " s";
}
function say(v, unit) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  switch (unit) {
    case "bytes": return bytes(v);
    case "bytes per second": return bytes(Math.round(v)) + "/s";
    case "seconds": return seconds(v);
    case "per second": return (v > 0 && v < 10 ? three(v) : count(Math.round(v))) + "/s";
    case "cores": return v.toFixed(v < 1 ? 3 : 2);
  }
  return count(v);
}
// unitOf tells what a metric's name says it is measured in.
function unitOf(name) {
  if (/_bytes(_total)?$/.test(name)) return "bytes";
  if (/_timestamp_seconds$/.test(name)) return "number";
  if (/_seconds(_total)?$/.test(name)) return "seconds";
  return "number";
}
function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000)), d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
  return d ? `${d} d ${h} h` : h ? `${h} h ${m} min` : m ? `${m} min ${s % 60} s` : `${s} s`;
}
const clock = (t) => new Date(t).toLocaleTimeString("en-GB");

// named is a figure that links to its metric.
function named(text, metric, attrs) {
  return el("a", Object.assign({ href: "#" + metric, title: metric + (help[metric] ? "\n" + help[metric] : ""), "data-metric": metric }, attrs), text);
}
const samples = (name) => (state.metrics[name] || { samples: [] }).samples;
function sum(name, match) {
  return samples(name).filter((s) => Object.keys(match || {}).every((k) => (s.labels || {})[k] === match[k])).reduce((a, s) => a + s.value, 0);
}
const has = (name) => name in state.metrics;
const last = (panel, name) => { const s = series.find((s) => s.panel === panel && s.name === name); return s && s.values.length ? s.values[s.values.length - 1] : null; };

// --- what is shown ------------------------------------------------------------

function showHeader() {
  document.title = `Polder ${state.service}` + (state.problem ? " – not well" : "");
  $("service").textContent = state.service;
  const down = nodesDown().length;
  $("health").replaceChildren(state.problem ? el("span", { class: "state bad" }, "not well: " + state.problem)
    : down ? el("span", { class: "state warn" }, `works, but ${down} ${down > 1 ? "nodes are" : "node is"} down`) : el("span", { class: "state ok" }, "all well"));
  const a = Object.entries(state.addresses).sort().map(([k, v]) => `${k} ${v}`).join("  ·  ");
  $("about").textContent = `${state.version}  ·  process ${state.pid}  ·  up ${span(Date.parse(state.now) - Date.parse(state.started))}  ·  ${a}`;
}

// nodesDown are the nodes that cannot be reached.
function nodesDown() {
  return ["polder_pool_node_up", "polder_broker_node_up"].flatMap((m) => samples(m).filter((s) => s.value === 0).map((s) => [s.labels.node, m]));
}

function showAttention() {
  const list = [];
  for (const [node, metric] of nodesDown()) list.push(el("li", { class: "bad" }, "Node ", node, " is ", named("down", metric), ": what lies there cannot be read until it is back."));
  if (state.problem) list.push(el("li", { class: "bad" }, "It cannot do its work: " + state.problem));
  for (const line of state.advice || []) list.push(el("li", {}, line));
  if (!list.length) list.push(el("li", {}, "Nothing needs attention."));
  replace($("attention").querySelector("ul"), list);
}

// ratio is a part of a whole in percent.
const ratio = (part, whole) => whole > 0 ? (100 * part / whole).toFixed(1) + " %" : "–";

function figures() {
  const f = [];
  const add = (what, text, metric) => f.push([what, text, metric]);
  const from = (what, panel, name, unit, metric) => { if (has(metric)) add(what, say(last(panel, name), unit), metric); };
  from("Commands", "commands", "commands", "per second", "polder_resp_commands_total");
  if (has("polder_resp_keys")) add("Keys", count(sum("polder_resp_keys")), "polder_resp_keys");
  if (has("polder_far_hits_total")) {
    const h = last("reads", "local"), m = last("reads", "far");
    add("Reads that were local", ratio(h, h + m), "polder_far_hits_total");
  }
  from("Local reply, p99", "round", "p99", "seconds", "polder_resp_round_seconds");
  from("Fetch, p50", "fetch", "p50", "seconds", "polder_resp_fetch_seconds");
  from("Fetch, p99", "fetch", "p99", "seconds", "polder_resp_fetch_seconds");
  from("Fetched", "moved", "fetched", "bytes per second", "polder_far_read_bytes_total");
  from("Evacuated", "moved", "evacuated", "bytes per second", "polder_far_written_bytes_total");
  if (has("polder_pool_node_up")) add("Nodes up", `${sum("polder_pool_node_up")} of ${samples("polder_pool_node_up").length}`, "polder_pool_node_up");
  if (has("polder_far_lost_entries")) add("Entries lost now", count(sum("polder_far_lost_entries")), "polder_far_lost_entries");
  if (has("polder_node_memory_bytes")) add("Lent", bytes(sum("polder_node_memory_bytes", { use: "lent" })), "polder_node_memory_bytes");
  if (has("polder_node_clients")) add("Borrowers", count(sum("polder_node_clients")), "polder_node_clients");
  if (has("polder_soft_hits_total")) {
    const h = last("soft-reads", "hits"), m = last("soft-reads", "misses");
    add("Reads that hit", ratio(h, h + m), "polder_soft_hits_total");
  }
  if (has("polder_coordinator_clients")) {
    add("Caches", count(sum("polder_coordinator_clients")), "polder_coordinator_clients");
    add("Granted", bytes(sum("polder_coordinator_granted_bytes")), "polder_coordinator_granted_bytes");
    add("Available on the host", bytes(sum("polder_coordinator_available_bytes")), "polder_coordinator_available_bytes");
  }
  if (has("polder_share_keys")) {
    add("Keys", count(sum("polder_share_keys")), "polder_share_keys");
    add("Bytes in keys", bytes(sum("polder_share_bytes")), "polder_share_bytes");
    add("Regions", count(sum("polder_share_regions")), "polder_share_regions");
    add("Open views (pins)", count(sum("polder_share_views")), "polder_share_views");
    add("Clients", count(sum("polder_share_clients")), "polder_share_clients");
  }
  if (has("polder_broker_applications")) add("Applications", count(sum("polder_broker_applications")), "polder_broker_applications");
  add("Resident", bytes(sum("process_resident_memory_bytes")), "process_resident_memory_bytes");
  from("Cores busy", "cpu", "cores", "cores", "process_cpu_seconds_total");
  return f;
}

function showFigures() {
  replace($("figures"), figures().map(([what, text, metric]) =>
    el("div", { class: "figure" }, el("div", { class: "what" }, what), el("div", { class: "much" }, named(text, metric)))));
}

// bars are metrics whose samples, by the label use, make a whole; and pools.
function bars() {
  const list = [];
  for (const [metric, title] of [["polder_far_local_bytes", "Local budget of the heap"], ["polder_node_memory_bytes", "What this node lends"], ["polder_soft_memory_bytes", "Soft budget of this cache"]]) {
    if (!has(metric)) continue;
    list.push({ title, metric, parts: samples(metric).map((s) => [s.labels.use, s.value, metric]).sort((a, b) => byUse(a[0], b[0])) });
  }
  for (const s of samples("polder_share_pool_bytes")) {
    const free = sum("polder_share_pool_free_bytes", { pool: s.labels.pool });
    list.push({ title: `Shared pool ${s.labels.pool}`, metric: "polder_share_pool_bytes", parts: [["used", s.value - free, "polder_share_pool_bytes"], ["free", free, "polder_share_pool_free_bytes"]] });
  }
  if (has("polder_coordinator_target_bytes")) {
    const m = "polder_coordinator_";
    const granted = sum(m + "granted_bytes"), used = sum(m + "resident_bytes"), target = sum(m + "target_bytes");
    list.push({ title: "Soft memory of this host", metric: m + "target_bytes", parts: [["in use", used, m + "resident_bytes"],
      ["granted, idle", Math.max(granted - used, 0), m + "granted_bytes"], ["free", Math.max(target - granted, 0), m + "target_bytes"]] });
  }
  if (has("polder_memory_limit_bytes")) {
    const limit = sum("polder_memory_limit_bytes"), mine = sum("process_resident_memory_bytes"), free = sum("polder_memory_available_bytes");
    list.push({ title: `All memory, bounded by ${samples("polder_memory_limit_bytes")[0].labels.bound}`, metric: "polder_memory_limit_bytes", parts: [
      ["this process", mine, "process_resident_memory_bytes"], ["others", Math.max(limit - mine - free, 0), "polder_memory_limit_bytes"], ["free", free, "polder_memory_available_bytes"]] });
  }
  return list;
}

// The parts of a whole, in the order and the colours that they have everywhere.
const USES = { hot: 5, live: 0, cold: 0, lent: 0, used: 0, "in use": 0, "this process": 0, index: 1, buffers: 2, "granted, idle": 3, others: 3, dirty: 7, dead: 7, free: 4 };
const partColor = (name, i) => color(USES[name] ?? i);
const byUse = (a, b) => Object.keys(USES).indexOf(a) - Object.keys(USES).indexOf(b);

function showBars() {
  replace($("bars").querySelector("div"), bars().map((b) => {
    const whole = b.parts.reduce((a, p) => a + p[1], 0);
    const strip = el("div", { class: "strip", "aria-hidden": "true" });
    const legend = el("div", { class: "legend" });
    b.parts.forEach(([name, v, metric], i) => {
      const part = el("i", {}), key = el("span", { class: "key" });
      part.style.width = whole > 0 ? 100 * v / whole + "%" : "0";
      part.style.background = key.style.background = partColor(name, i);
      strip.append(part);
      legend.append(el("span", {}, key, name + " ", named(bytes(v), metric), whole > 0 ? ` (${(100 * v / whole).toFixed(0)} %)` : ""));
    });
    return el("div", { class: "bar" }, el("h3", {}, b.title + " ", el("span", { class: "of" }, named(bytes(whole), b.metric))), strip, legend);
  }));
}

function table(title, heads, rows, note) {
  if (!rows.length) return [];
  const t = el("table", {}, el("thead", {}, el("tr", {}, ...heads.map((h) => el("th", { scope: "col", class: h.startsWith("#") ? "n" : "" }, h.replace(/^#/, ""))))));
  const body = el("tbody", {});
  for (const r of rows) body.append(el("tr", {}, ...r.map((c, i) => el("td", { class: heads[i].startsWith("#") ? "n" : "" }, c))));
  t.append(body);
  return [el("h2", {}, title), ...(note ? [el("p", { class: "hint" }, note)] : []), el("div", { class: "scroll" }, t)];
}

const upDown = (v, metric) => named(v > 0 ? "up" : "down", metric, { class: "state " + (v > 0 ? "ok" : "bad") });

function showTables() {
  const cell = (metric, match, f) => named(f(sum(metric, match)), metric);
  const out = [];
  out.push(...table("Nodes that lend to it", ["Node", "State", "#Borrowed", "#More to be had", "#Reads", "#Writes", "#Read", "#Written", "#Connections lost", "#Chunks lost"],
    samples("polder_pool_node_up").map((s) => {
      const m = { node: s.labels.node }, p = "polder_pool_";
      return [m.node, upDown(s.value, p + "node_up"), cell(p + "borrowed_bytes", m, bytes), cell(p + "available_bytes", m, bytes), cell(p + "reads_total", m, count), cell(p + "writes_total", m, count),
        cell(p + "read_bytes_total", m, bytes), cell(p + "written_bytes_total", m, bytes), cell(p + "reconnects_total", m, count), cell(p + "lost_total", m, count)];
    })));
  out.push(...table("Nodes that it allocates at", ["Node", "State", "#Blocks", "#Held", "#Owed", "#Given", "#Freed"], samples("polder_broker_node_up").map((s) => {
    const m = { node: s.labels.node }, p = "polder_broker_";
    return [m.node, upDown(s.value, p + "node_up"), cell(p + "blocks", m, count), cell(p + "bytes", m, bytes), cell(p + "blocks_owed", m, count), cell(p + "allocs_total", m, count), cell(p + "frees_total", m, count)];
  })));
  out.push(...table("Who borrows from it", ["Client", "State", "#Holds"], (state.clients || []).map((c) => [c.name,
    c.expires ? el("span", { class: "state warn" }, "gone, reclaimed in " + span(Date.parse(c.expires) - Date.parse(state.now))) : el("span", { class: "state ok" }, "connected"), bytes(c.bytes)])));
  out.push(...table("Maps of the heap", ["Map", "#Entries", "#Local reads", "#Far reads", "#Local", "#Sets", "#Lost now"], samples("polder_far_entries").map((s) => {
    const m = { map: s.labels.map }, p = "polder_far_";
    return [m.map, cell(p + "entries", m, count), cell(p + "hits_total", m, count), cell(p + "misses_total", m, count),
      ratio(sum(p + "hits_total", m), sum(p + "hits_total", m) + sum(p + "misses_total", m)), cell(p + "sets_total", m, count), cell(p + "lost_entries", m, count)];
  })));
  out.push(...table("Soft caches of this host", ["Cache", "#Process", "#Granted", "#Used", "#Hits", "#Misses", "#Hit ratio", "#Rebuilding"], samples("polder_coordinator_client_granted_bytes").map((s) => {
    const m = { client: s.labels.client }, p = "polder_coordinator_client_";
    return [s.labels.name, s.labels.pid, cell(p + "granted_bytes", m, bytes), cell(p + "used_bytes", m, bytes), cell(p + "hits_total", m, count), cell(p + "misses_total", m, count),
      ratio(sum(p + "hits_total", m), sum(p + "hits_total", m) + sum(p + "misses_total", m)), cell(p + "rebuild_seconds_total", m, seconds)];
  })));
  out.push(...table("Shared pools", ["Pool", "#Size", "#Free", "#Largest free range", "#Regions"], samples("polder_share_pool_bytes").map((s) => {
    const m = { pool: s.labels.pool }, p = "polder_share_pool_";
    return [m.pool, cell(p + "bytes", m, bytes), cell(p + "free_bytes", m, bytes), cell(p + "largest_free_bytes", m, bytes), cell(p + "regions", m, count)];
  })));
  replace($("tables"), out);
}

function showEvents() {
  const list = (state.events || []).slice().reverse().map((e) => {
    const t = el("time", { datetime: e.time }, clock(e.time));
    return el("li", {}, t, el("span", { class: "level " + e.level }, e.level), el("span", {}, e.text, el("span", { class: "more" }, e.more || "")));
  });
  replace($("events").querySelector("ol"), list.length ? list : [el("li", {}, "", "", el("span", { class: "more" }, "Nothing has been logged."))]);
}

function showMetrics() {
  const body = $("metrics").querySelector("tbody"), filter = $("filter").value.toLowerCase(), rows = [];
  for (const name of Object.keys(state.metrics).sort()) {
    if (filter && !(name + " " + (help[name] || "")).toLowerCase().includes(filter)) continue;
    state.metrics[name].samples.forEach((s, i) => {
      const histogram = state.metrics[name].type === "histogram";
      const value = histogram ? `${count(s.value)} observed, mean ${s.value ? seconds(s.sum / s.value) : "–"}` : say(s.value, unitOf(name));
      const attrs = i ? {} : { id: name };
      if (!i && location.hash === "#" + name) attrs.class = "aim";
      rows.push(el("tr", attrs, el("td", { class: "mono" }, i ? "" : name), el("td", {}, Object.entries(s.labels || {}).map(([k, v]) => `${k}=${v}`).join(", ")),
        el("td", { class: "n", "data-value": s.value, title: histogram ? "" : String(s.value) }, value), el("td", {}, i ? "" : help[name] || "")));
    });
  }
  replace(body, rows);
}

// replace puts new children in place and leaves the focus where it was, and what is
// marked too.
function replace(parent, children) {
  const links = [...parent.querySelectorAll("a")], i = links.indexOf(document.activeElement), top = parent.scrollTop;
  if (parent.contains(getSelection().anchorNode) && !getSelection().isCollapsed) return;
  parent.replaceChildren(...children);
  parent.scrollTop = top;
  if (i >= 0) { const next = parent.querySelectorAll("a")[i]; if (next) next.focus({ preventScroll: true }); }
}

// --- plots ---------------------------------------------------------------------

const plots = new Map();

// ticks are two or three round values up to the highest.
function ticks(top, unit) {
  const base = unit.startsWith("bytes") ? 1024 : 1000;
  let scale = 1;
  while (top / scale >= base) scale *= base;
  while (top / scale < 1 && unit === "seconds") scale /= 1000;
  const raw = top / scale / 2, ten = Math.pow(10, Math.floor(Math.log10(raw))), step = [1, 2, 2.5, 5, 10].find((m) => m * ten >= raw) * ten * scale;
  return [0, step, 2 * step];
}

// stacked are a panel's lines as they are drawn: each from its bottom to its top.
function layers(p, lines) {
  const below = times.map(() => 0);
  return lines.map((s) => {
    const bottom = p.stacked ? below.slice() : null;
    const top = s.values.map((v, i) => { if (v === null) return null; if (!p.stacked) return v; return below[i] += v; });
    return { s, top, bottom };
  });
}

function drawPlot(p) {
  const lines = series.filter((s) => s.panel === p.id);
  if (p.stacked) lines.sort((a, b) => byUse(a.name, b.name));
  let plot = plots.get(p.id);
  if (!plot) {
    plot = { box: el("div", { class: "plot" }), when: el("span", { class: "when" }), legend: el("div", { class: "legend" }), svg: svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, tabindex: "0", role: "img", preserveAspectRatio: "none" }) };
    plot.box.append(el("div", { class: "title" }, el("h3", {}, p.title), plot.when), plot.svg, plot.legend);
    plot.svg.addEventListener("pointermove", (e) => { const r = plot.svg.getBoundingClientRect(); pointAt((e.clientX - r.left) / r.width * WIDTH); });
    plot.svg.addEventListener("pointerleave", () => { at = null; drawAll(); });
    plot.svg.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -POINTS, End: POINTS }[e.key];
      if (!step) { if (e.key === "Escape") { at = null; drawAll(); } return; }
      e.preventDefault();
      at = Math.min(Math.max((at === null ? times.length - 1 : at) + step * (e.shiftKey ? 20 : 1), 0), times.length - 1);
      drawAll();
    });
    plots.set(p.id, plot);
    const after = panels.slice(panels.indexOf(p) + 1).find((q) => plots.has(q.id) && q.id !== p.id);
    $("plots").querySelector("div").insertBefore(plot.box, after ? plots.get(after.id).box : null);
  }
  const stack = layers(p, lines), end = times[times.length - 1], begin = Math.min(times[0], end - 60e3);
  let top = 0;
  for (const l of stack) for (const v of l.top) if (v !== null && v > top) top = v;
  const marks = ticks(top > 0 ? top : 1, p.unit), max = Math.max(marks[2], top);
  plot.width = plot.svg.clientWidth || WIDTH;
  plot.svg.setAttribute("viewBox", `0 0 ${plot.width} ${HEIGHT}`);
  const x = (t) => LEFT + (t - begin) / (end - begin || 1) * (plot.width - LEFT - 4), y = (v) => 6 + (1 - v / max) * (HEIGHT - BOTTOM - 6);
  const parts = [];
  for (const m of marks) {
    parts.push(svg("line", { class: "grid", x1: LEFT, x2: plot.width - 4, y1: y(m), y2: y(m) }));
    parts.push(svg("text", { x: LEFT - 6, y: y(m) + 3.5, "text-anchor": "end" }, m === 0 ? "0" : say(m, p.unit)));
  }
  parts.push(svg("text", { x: LEFT, y: HEIGHT - 4 }, span(end - begin) + " ago"), svg("text", { x: plot.width - 4, y: HEIGHT - 4, "text-anchor": "end" }, "now"));
  stack.forEach((l, i) => {
    let d = "", area = "", pen = false, from = 0;
    const close = (to) => { if (!pen || !p.stacked) return; for (let j = to; j >= from; j--) area += `L${x(times[j]).toFixed(1)} ${y(l.bottom[j]).toFixed(1)}`; area += "Z"; };
    l.top.forEach((v, j) => {
      if (v === null) { close(j - 1); pen = false; return; }
      const point = `${x(times[j]).toFixed(1)} ${y(v).toFixed(1)}`;
      if (!pen) from = j;
      d += (pen ? "L" : "M") + point;
      if (p.stacked) area += (pen ? "L" : "M") + point;
      pen = true;
    });
    close(l.top.length - 1);
    const c = p.stacked ? partColor(l.s.name, i) : color(i);
    if (p.stacked) parts.push(svg("path", { d: area, fill: c, "fill-opacity": .75 }));
    else parts.push(svg("path", { d, fill: "none", stroke: c, "stroke-width": 1.6, "stroke-linejoin": "round" }));
  });
  const i = at === null ? times.length - 1 : Math.min(at, times.length - 1);
  if (at !== null) parts.push(svg("line", { class: "at", x1: x(times[i]), x2: x(times[i]), y1: 6, y2: HEIGHT - BOTTOM }));
  plot.svg.replaceChildren(...parts);
  plot.when.textContent = at === null ? "" : clock(times[i]);
  plot.x = x; plot.begin = begin; plot.end = end;
  plot.svg.setAttribute("aria-label", `${p.title}, ${at === null ? "now" : "at " + clock(times[i])}: ` + lines.map((s) => `${s.name} ${say(s.values[i], p.unit)}`).join(", "));
  replace(plot.legend, lines.map((s, j) => {
    const key = el("span", { class: "key" });
    key.style.background = p.stacked ? partColor(s.name, j) : color(j);
    return el("span", {}, key, s.name + " ", named(say(s.values[i], p.unit), s.metric, { "data-panel": p.id, "data-line": s.name }));
  }));
}

function pointAt(px) {
  const plot = plots.values().next().value;
  if (!plot || !times.length) return;
  const t = plot.begin + (px / WIDTH * plot.width - LEFT) / (plot.width - LEFT - 4) * (plot.end - plot.begin);
  let best = 0;
  for (let i = 0; i < times.length; i++) if (Math.abs(times[i] - t) < Math.abs(times[best] - t)) best = i;
  if (best !== at) { at = best; drawAll(); }
}

function drawAll() {
  if (!times.length) return;
  for (const p of panels) if (series.some((s) => s.panel === p.id)) drawPlot(p);
}

function showCurves() {
  const list = state.curves || [];
  $("curves").hidden = !list.length;
  replace($("curves").querySelector("div"), list.map((c, i) => {
    const s = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" }), big = c.bytes[c.bytes.length - 1], small = c.bytes[0];
    const x = (b) => LEFT + Math.log2(b / small) / (Math.log2(big / small) || 1) * (WIDTH - LEFT - 4), y = (r) => 6 + (1 - r) * (HEIGHT - BOTTOM - 6);
    for (const r of [0, .5, 1]) s.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 4, y1: y(r), y2: y(r) }), svg("text", { x: LEFT - 6, y: y(r) + 3.5, "text-anchor": "end" }, 100 * r + " %"));
    s.append(svg("path", { d: "M" + c.bytes.map((b, j) => x(b).toFixed(1) + " " + y(c.ratio[j]).toFixed(1)).join("L"), fill: "none", stroke: color(i), "stroke-width": 1.6 }));
    s.append(svg("text", { x: LEFT, y: HEIGHT - 4 }, bytes(small)), svg("text", { x: WIDTH - 4, y: HEIGHT - 4, "text-anchor": "end" }, bytes(big)));
    s.setAttribute("aria-label", `${c.name}: part of the cost of its reads that a cache of a size saves; ${bytes(small)} saves ${ratio(c.ratio[0], 1)}, ${bytes(big)} ${ratio(c.ratio[c.ratio.length - 1], 1)}`);
    return el("div", { class: "plot" }, el("h3", {}, c.name), s, el("p", { class: "hint" }, "Part of the cost of its reads that so much memory saves."));
  }));
}

function showAll() {
  if (!state || document.hidden) { dirty = true; return; }
  dirty = false;
  $("main").hidden = false; $("login").hidden = true;
  showHeader(); showAttention(); showFigures(); showBars(); drawAll(); showTables(); showCurves(); showEvents(); showMetrics();
}

// --- the stream ------------------------------------------------------------------

function take(event, data) {
  const message = JSON.parse(data);
  if (event === "hello") {
    state = message.state; panels = message.panels; help = {};
    for (const name in state.metrics) help[name] = state.metrics[name].help;
    times = state.history.times || []; series = state.history.series || [];
    plots.clear(); $("plots").querySelector("div").replaceChildren();
  } else {
    state = message;
    append(state.history);
  }
  $("live").className = "";
  $("live").textContent = "live, " + clock(state.now);
  showAll();
}

// append adds the newest point of each line, and forgets those of more than an hour.
function append(h) {
  if (!h.times.length || h.times[0] <= times[times.length - 1]) return;
  times.push(h.times[0]);
  for (const s of h.series) {
    let mine = series.find((m) => m.panel === s.panel && m.name === s.name);
    if (!mine) { mine = { ...s, values: times.slice(1).map(() => null) }; series.push(mine); }
    mine.values.push(s.values[0]);
  }
  for (const s of series) while (s.values.length < times.length) s.values.push(null);
  const old = Math.max(times.length - POINTS, 0);
  if (old) { times.splice(0, old); for (const s of series) s.values.splice(0, old); if (at !== null) at = Math.max(at - old, 0); }
}

function lost(why) {
  $("live").className = "lost";
  $("live").textContent = state ? `${why}; figures are of ${clock(state.now)}` : why;
  if (!state) $("health").replaceChildren(el("span", { class: "state bad" }, why));
}

async function follow() {
  for (let pause = 500; ; pause = Math.min(pause * 1.5, 5000)) {
    try {
      const r = await fetch("stream", { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
      if (r.status === 401) { askToken(); return; }
      if (!r.ok) throw new Error((await r.text()).trim());
      const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the daemon has ended");
        rest += value;
        for (let end; (end = rest.indexOf("\n\n")) >= 0; rest = rest.slice(end + 2)) {
          const m = /^event: (\w+)\ndata: ([^]*)$/.exec(rest.slice(0, end));
          if (m) { take(m[1], m[2]); pause = 500; }
        }
      }
    } catch (e) {
      lost(e instanceof TypeError ? "connection lost, trying again" : e.message + ", trying again");
    }
    await new Promise((wake) => setTimeout(wake, pause));
  }
}

function askToken() {
  $("health").replaceChildren(el("span", { class: "state wait" }, "a token is needed"));
  $("refused").textContent = token ? "The daemon does not know this token." : "";
  token = ""; sessionStorage.removeItem("polder-token");
  $("main").hidden = true; $("login").hidden = false; $("live").textContent = "";
  $("token").value = ""; $("token").focus();
}

$("login").addEventListener("submit", (e) => {
  e.preventDefault();
  token = $("token").value.trim(); sessionStorage.setItem("polder-token", token);
  $("token").value = "";
  follow();
});
$("filter").addEventListener("input", () => state && showMetrics());
addEventListener("hashchange", () => state && showMetrics());
addEventListener("resize", () => state && drawAll());
document.addEventListener("visibilitychange", () => { if (!document.hidden && dirty) showAll(); });
follow();
