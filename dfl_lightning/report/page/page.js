"use strict";
// What the page does: unpack its data, draw the charts in the reader's theme, and move the graph and the matrix together.
(async () => {
  const byId = (id) => document.getElementById(id);
  const report = (window.report = { views: {}, ready: false, drawn: 0 });

  async function unpack(id) {
    const bytes = Uint8Array.from(atob(byId(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  const script = document.createElement("script");
  script.textContent = await unpack("packed-vega");
  document.head.append(script);
  const data = JSON.parse(await unpack("packed-data"));

  // --- themes ---
  const system = matchMedia("(prefers-color-scheme: dark)");
  const themeName = () => document.documentElement.dataset.theme || (system.matches ? "dark" : "light");
  function nameTheme() {
    const button = byId("theme");
    const dark = themeName() === "dark";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(Boolean(document.documentElement.dataset.theme)));
    button.setAttribute("aria-label", `Change to ${dark ? "light" : "dark"} colours`);
  }

  // --- charts ---
  const plain = (element, spec) => {
    const width = Math.max(220, Math.floor(element.clientWidth));
    const shape = element.parentElement.className;
    if (shape === "square") return { ...spec, width: Math.min(width, 480), height: Math.min(width, 480) + 20 };
    return { ...spec, width };
  };
  const square = (element, spec) => {
    const size = Math.max(240, Math.floor(element.clientWidth));
    return { ...spec, width: size, height: size };
  };
  async function draw(element, spec, sized, renderer = "svg") {
    if (report.views[element.id]) report.views[element.id].finalize();
    const options = { mode: "vega-lite", actions: false, ast: true, renderer, config: data.themes[themeName()] };
    const drawn = await window.vegaEmbed(element, structuredClone(sized(element, spec)), options);
    report.views[element.id] = drawn.view;
    element.style.minHeight = "";
    return drawn.view;
  }
  async function drawAll() {
    await drawLinked();
    for (const [name, spec] of Object.entries(data.charts)) await draw(byId(`chart-${name}`), spec, plain);
    report.ready = true;
    report.drawn += 1;
  }
  let waiting = Promise.resolve();
  const redraw = () => (waiting = waiting.then(drawAll));

  // --- tables under the charts ---
  const cell = (tag, text, kind) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) made.className = kind;
    if (tag === "th") made.scope = "col";
    return made;
  };
  function table(names, rows) {
    const made = document.createElement("table");
    const head = made.createTHead().insertRow();
    for (const name of names) head.append(cell("th", name));
    const body = made.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      row.forEach((value) => line.append(cell("td", value, Array.isArray(value) ? "list" : "")));
    }
    return made;
  }
  const largest = (spec) => {
    const found = [];
    JSON.stringify(spec, (key, value) => {
      if (key === "values" && Array.isArray(value)) found.push(value);
      return value;
    });
    const inDatasets = Object.values(spec.datasets || {});
    return [...found, ...inDatasets].sort((a, b) => b.length - a.length)[0] || [];
  };
  for (const part of document.querySelectorAll("details.numbers")) {
    part.addEventListener("toggle", () => {
      const slot = part.querySelector(".slot");
      if (!part.open || slot.childElementCount) return;
      const rows = largest(data.charts[part.dataset.of]);
      const names = Object.keys(rows[0] || {});
      const save = cell("button", "Save as CSV");
      save.type = "button";
      save.addEventListener("click", () => {
        const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
        const text = [names, ...rows.map((row) => names.map((name) => row[name]))].map((r) => r.map(quoted).join(","));
        const link = document.createElement("a");
        link.href = URL.createObjectURL(new Blob([text.join("\n") + "\n"], { type: "text/csv" }));
        link.download = `${part.dataset.of}.csv`;
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 1000);
      });
      slot.tabIndex = 0;
      slot.append(save, table(names, rows.slice(0, 2000).map((row) => names.map((name) => row[name] ?? ""))));
    });
  }

  // --- who learns from whom ---
  const runs = data.runs;
  let at = 0, step = 0, picked = null, timer = null;
  const sums = (steps) => {
    let total = 0;
    return (steps || []).map((value) => (total += value));
  };
  function decode(run) {
    if (run.decoded || run.groups) return;
    let chosen = new Set();
    run.decoded = run.rounds.map((entry) => {
      const fresh = new Set(sums(entry.new)), gone = sums(entry.dropped);
      const left = new Set(chosen);
      for (const pair of [...gone, ...sums(entry.ended)]) left.delete(pair);
      const now = [...left, ...fresh].sort((a, b) => a - b);
      chosen = new Set(now);
      const links = now.map((pair, place) => [pair, fresh.has(pair) ? "new" : "kept", entry.weights[place] / 1000]);
      for (const state of ["own", "spoken"]) {
        const [pairs, weights] = entry[state] || [[], []];
        sums(pairs).forEach((pair, place) => links.push([pair, state, weights[place] / 1000]));
      }
      for (const pair of gone) links.push([pair, "dropped", 0]);
      for (const state of ["looked", "stands"]) for (const pair of sums(entry[state])) links.push([pair, state, 0]);
      return links;
    });
  }
  function linkRows(run, entry) {
    const n = run.nodes.length, palette = data.palettes[themeName()];
    return entry.map(([pair, state, weight]) => {
      const receiver = Math.floor(pair / n), sender = pair % n;
      const r = run.nodes[receiver], s = run.nodes[sender];
      const faint = picked !== null && receiver !== picked && sender !== picked;
      const colour = palette[state] || "";
      return { receiver, sender, state, weight, faint, colour, rx: r.x, ry: r.y, sx: s.x, sy: s.y, row: r.order, column: s.order };
    });
  }
  function nodeRows(run, entry, rows) {
    const down = new Set(entry.down), near = new Set([picked]);
    if (picked !== null) for (const row of rows) if (!row.faint) near.add(row.receiver).add(row.sender);
    return run.nodes.map((node) => ({ ...node, down: down.has(node.id), faint: picked !== null && !near.has(node.id) }));
  }
  function binRows(run, entry) {
    const [to, from, links] = entry.bins;
    const totals = {};
    to.forEach((group, place) => (totals[group] = (totals[group] || 0) + links[place]));
    return to.map((group, place) => ({
      receiver: group, sender: from[place], links: links[place], share: links[place] / totals[group],
      from: run.groups[from[place]], to: run.groups[group],
    }));
  }
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  function sentence(run, entry, counts) {
    const total = (counts.kept || 0) + (counts.new || 0);
    const servers = run.nodes.some((node) => node.server);
    const words = [`<b>Round ${entry.round}</b> of ${run.last}`, `<b>${total}</b> links chosen, ${counts.new || 0} of them new`];
    if (counts.dropped) words.push(`${counts.dropped} dropped`);
    if (counts.looked) words.push(`${counts.looked} looked at only`);
    if (counts.spoken) words.push(`${counts.spoken} mixed for others that are down`);
    if (entry.down.length) words.push(`${entry.down.length} clients down${servers && counts.stands ? `, ${counts.stands} with a stand-in` : ""}`);
    const names = { test_acc: "test accuracy", neighbour_precision: "precision", neighbour_recall: "recall", friend_accuracy: "stand-ins of the right cluster" };
    for (const [name, word] of Object.entries(names)) if (name in entry.numbers) words.push(`${word} ${percent(entry.numbers[name])}`);
    return words.join(" · ");
  }

  async function update() {
    const run = runs[at], entry = run.rounds[step];
    byId("round").value = step;
    byId("round").setAttribute("aria-valuetext", `round ${entry.round} of ${run.last}`);
    if (run.groups) {
      byId("state").innerHTML = sentence(run, entry, entry.kinds);
      await report.views.heat.data("bins", binRows(run, entry)).runAsync();
      fillTable();
      return;
    }
    const rows = linkRows(run, run.decoded[step]), nodes = nodeRows(run, entry, rows);
    const counts = {};
    for (const row of rows) counts[row.state] = (counts[row.state] || 0) + 1;
    byId("state").innerHTML = sentence(run, entry, counts);
    const cells = rows.filter((row) => row.state !== "stands");
    const drawn = [report.views.graph.data("links", rows).data("nodes", nodes).runAsync()];
    if (report.views.heat) drawn.push((nodes.length <= 40 ? report.views.heat.data("nodes", nodes) : report.views.heat).data("links", cells).runAsync());
    await Promise.all(drawn);
    fillTable();
  }
  function fillTable() {
    const part = byId("links");
    if (!part.open) return;
    const run = runs[at], entry = run.rounds[step];
    const slot = part.querySelector(".slot");
    if (run.groups) {
      const rows = binRows(run, entry).map((row) => [row.to, row.from, row.links, percent(row.share)]);
      slot.replaceChildren(table(["receivers", "senders", "links", "share"], rows));
      return;
    }
    const name = (id) => (run.nodes[id].server ? "server" : `${id}`);
    const down = new Set(entry.down), lines = new Map();
    for (const row of linkRows(run, run.decoded[step])) {
      if (row.faint) continue;
      const line = lines.get(row.receiver) || { kept: [], new: [], dropped: [], looked: [], spoken: [], stands: [], own: "" };
      if (row.state === "own") line.own = percent(row.weight);
      else line[row.state].push(row.weight ? `${name(row.sender)} (${percent(row.weight)})` : name(row.sender));
      lines.set(row.receiver, line);
    }
    const rows = [...lines].sort((a, b) => a[0] - b[0]).map(([id, line]) => [
      `${name(id)}${down.has(id) ? " (down)" : ""}`, line.own, line.kept.join(", "), line.new.join(", "),
      line.dropped.join(", "), line.looked.join(", "), [...line.spoken, ...line.stands].join(", "),
    ]);
    slot.replaceChildren(table(["receiver", "itself", "kept", "newly chosen", "dropped", "probed only", "speaks for others"], rows));
  }
  async function drawLinked() {
    if (!runs.length) return;
    const run = runs[at], specs = data.linked[at];
    decode(run);
    for (const id of ["graph", "heat"]) {
      if (report.views[id]) report.views[id].finalize();
      delete report.views[id];
      byId(id).replaceChildren();
    }
    const both = Boolean(specs.graph && specs.heat);
    document.querySelector(".pair").classList.toggle("one", !both);
    byId("graph").parentElement.hidden = !specs.graph;
    byId("heat").parentElement.hidden = !(specs.heat || specs.bins);
    if (specs.graph) {
      const view = await draw(byId("graph"), specs.graph, square, "canvas");
      view.addEventListener("click", (event, item) => {
        const id = item && item.datum ? item.datum.id : undefined;
        pick(id === undefined || run.nodes[id].server || id === picked ? null : id);
      });
    }
    if (specs.heat || specs.bins) await draw(byId("heat"), specs.heat || specs.bins, square, "canvas");
    legend(run);
    await update();
  }
  function legend(run) {
    const parts = [], clients = run.nodes.filter((node) => !node.server);
    const clusters = [...new Set(clients.map((node) => node.cluster))].sort((a, b) => a - b);
    const path = (shape) => (shape === "circle" ? "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z" : shape === "square" ? "M-.9,-.9H.9V.9H-.9Z" : shape);
    if (clusters.length > 1)
      clusters.forEach((cluster, place) => parts.push([`<path transform="translate(9 7) scale(5.5)" fill="var(--m${place % 6})" d="${path(data.shapes[place % data.shapes.length])}"/>`, `cluster ${cluster}`]));
    if (clients.some((node) => node.falsified)) parts.push(['<circle cx="9" cy="7" r="6" fill="none" stroke="var(--ink)" stroke-width="1.6"/>', "falsified labels"]);
    const states = new Set((run.decoded || []).flatMap((links) => links.map((link) => link[1])));
    const line = (state, dash) => `<path d="M0,7H20" stroke="var(--${state})" stroke-width="2.4" stroke-dasharray="${dash}"/>`;
    const cell = { new: '<path d="M26,2H36V12H26Z" fill="none" stroke="var(--new)" stroke-width="1.6"/>', dropped: '<path d="M27,3L35,11M35,3L27,11" stroke="var(--dropped)" stroke-width="1.6"/>', looked: '<circle cx="31" cy="7" r="1.8" fill="var(--looked)"/>' };
    for (const [state, dash, words] of [["kept", "none", "kept"], ["new", "none", "newly chosen"], ["dropped", "5 3", "dropped"], ["looked", "1 4", "probed only"], ["spoken", "none", "mixed for another"], ["stands", "3 2", "stands in for"]])
      if (states.has(state)) parts.push([line(state, dash) + (cell[state] || ""), words]);
    if (run.rounds.some((entry) => entry.down.length)) parts.push(['<circle cx="9" cy="7" r="5.5" fill="none" stroke="var(--soft)" stroke-dasharray="2 2" stroke-width="1.5"/>', "down"]);
    byId("legend").innerHTML = parts.map(([shape, words]) => `<li><svg width="${shape.includes("M2") || shape.includes('cx="31"') ? 40 : 22}" height="14" aria-hidden="true">${shape}</svg>${words}</li>`).join("");
  }
  function pick(id) {
    picked = id;
    byId("client").value = id === null ? "" : String(id);
    return update();
  }
  function move(to) {
    step = Math.max(0, Math.min(runs[at].rounds.length - 1, to));
    return update();
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => (step + 1 < runs[at].rounds.length ? move(step + 1) : play(false)), 700) : null;
    byId("play").textContent = on ? "Stop" : "Play";
    byId("play").setAttribute("aria-pressed", String(on));
    byId("state").setAttribute("aria-live", on ? "off" : "polite");
  }
  function choose(index) {
    at = index;
    const run = runs[at];
    picked = null;
    step = Math.min(step, run.rounds.length - 1);
    byId("round").max = run.rounds.length - 1;
    const clients = run.nodes.filter((node) => !node.server).map((node) => new Option(`client ${node.id}`, node.id));
    byId("client").replaceChildren(new Option("all", ""), ...clients);
    byId("client").disabled = Boolean(run.groups);
  }
  if (runs.length) {
    runs.forEach((run, index) => byId("run").append(new Option(run.seed === null ? run.method : `${run.method}, seed ${run.seed}`, index)));
    step = Math.min(4, runs[0].rounds.length - 1);
    choose(0);
    byId("run").addEventListener("change", () => {
      play(false);
      choose(Number(byId("run").value));
      waiting = waiting.then(drawLinked);
    });
    byId("round").addEventListener("input", () => move(Number(byId("round").value)));
    byId("back").addEventListener("click", () => move(step - 1));
    byId("next").addEventListener("click", () => move(step + 1));
    byId("play").addEventListener("click", () => {
      if (timer === null && step + 1 >= runs[at].rounds.length) move(0);
      play(timer === null);
    });
    byId("client").addEventListener("change", () => pick(byId("client").value === "" ? null : Number(byId("client").value)));
    byId("links").addEventListener("toggle", fillTable);
  }
  report.now = () => ({ run: at, step, round: runs[at].rounds[step].round, picked });
  report.move = move;

  nameTheme();
  byId("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = themeName() === "dark" ? "light" : "dark";
    nameTheme();
    redraw();
  });
  system.addEventListener("change", () => {
    nameTheme();
    redraw();
  });
  let width = innerWidth, later = null;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(later);
    later = setTimeout(redraw, 200);
  });
  await redraw();
})();
