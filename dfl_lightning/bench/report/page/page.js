"use strict";
// What the page does: unpack its data, draw the charts in the reader's theme, and move the graph and the matrix together.
(async () => {
  const byId = (id) => document.getElementById(id);
  const report = (window.report = { views: {}, ready: false, drawn: 0 });

  async function unpack(id) {
    return new Response(new Blob([base85(byId(id).textContent.trim())]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }
  const script = document.createElement("script");
  script.textContent = await unpack("packed-vega");
  document.head.append(script);
  const data = expand(JSON.parse(await unpack("packed-data")));

  // --- themes ---
  const system = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const themeName = () => (printing ? "light" : screenTheme());
  const screenTheme = () => document.documentElement.dataset.theme || (system.matches ? "dark" : "light");
  function nameTheme() {
    const button = byId("theme");
    const dark = themeName() === "dark";
    button.textContent = dark ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(Boolean(document.documentElement.dataset.theme)));
    button.setAttribute("aria-label", `Change to ${dark ? "light" : "dark"} colours`);
  }

  // --- charts ---
  const NARROW = 420; // pixels of a chart in which names are shorter
  const brief = (layer) => (layer.encoding?.text?.field === "label" ? { ...layer, encoding: { ...layer.encoding, text: { ...layer.encoding.text, field: "brief" } } } : layer);
  const PAPER = { wide: 900, half: 440, square: 240, small: 290, four: 208 }; // pixels of a printed chart, which paper makes smaller: its type has 7 points
  const shapeOf = (element) => element.parentElement.classList[0];
  const inFours = (element) => element.parentElement.classList.contains("four");
  const paperOf = (element) => PAPER[element.closest("#cost") ? "half" : inFours(element) ? "four" : shapeOf(element)];
  const widthOf = (element) => (printing ? paperOf(element) : Math.max(220, Math.floor(element.clientWidth)));
  const plain = (element, { usermeta, ...spec }) => {
    const width = widthOf(element);
    if (width < NARROW && spec.layer) spec = { ...spec, layer: spec.layer.map(brief) };
    if (shapeOf(element) === "square") return { ...spec, width: Math.min(width, 480), height: Math.min(width, 480) + 20 };
    return printing && inFours(element) ? { ...spec, width, height: 0.78 * spec.height } : { ...spec, width };
  };
  const zoomed = new Map(); // the rounds that a chart shows alone
  /** The longest list of rows that a chart or one of its layers holds. */
  function rowsOf(spec) {
    if (spec.usermeta?.rows) return spec.usermeta.rows;
    const held = [spec, ...(spec.layer || [])].map((part) => part.data?.values || []);
    return [...held, ...Object.values(spec.datasets || {})].sort((a, b) => b.length - a.length)[0] || [];
  }
  async function draw(element, whole, range = printing ? null : (zoomed.get(element) ?? null)) {
    const spec = range ? zoom.part(whole, range, rowsOf(whole)) : whole;
    if (report.views[element.id]) report.views[element.id].finalize();
    const theme = data.themes[themeName()];
    const config = widthOf(element) < NARROW ? { ...theme, axisY: { labelLimit: 90 } } : theme;
    const options = { mode: "vega-lite", actions: false, ast: true, renderer: "svg", config };
    const rows = rowsOf(spec), crossed = crosshair.fields(spec, rows);
    const drawn = await window.vegaEmbed(element, structuredClone(plain(element, crossed ? crosshair.lighter(spec) : spec)), options);
    if (crossed) crosshair.attach(element, drawn.view, rows, crossed);
    if (crossed?.at === "round") {
      const rounds = [...new Set(rows.map((row) => row.round))].sort((a, b) => a - b);
      zoom.attach(element, drawn.view, rounds, (ends) => {
        ends ? zoomed.set(element, ends) : zoomed.delete(element);
        return draw(element, whole);
      }, range);
    }
    single.attach(element, drawn.view, spec, rows);
    report.views[element.id] = drawn.view;
    toClients(element, spec, drawn.view);
    element.style.minHeight = "";
    element.setAttribute("role", "img");  // Vega has made it a document of thousands of marks to be read one by one
  }
  function erase(element) {
    element.style.minHeight = `${element.offsetHeight}px`;
    report.views[element.id]?.finalize();
    delete report.views[element.id];
    element.replaceChildren();
  }
  front.offer((element) => draw(element, data.charts[element.dataset.chart]));
  const CHOSEN = { columns: drawColumns, trouble: drawTrouble }; // charts that the reader's choice makes
  const charts = near.drawer([...document.querySelectorAll("[data-chart]")], (element) => (CHOSEN[element.dataset.chart] ?? draw)(element, data.charts[element.dataset.chart]), erase);
  // The graph and the matrix come first when they are near the screen, or are named by the address.
  let isLinked = false, isNamed = false;
  function linkedWhenNear() {
    const observer = new IntersectionObserver((entries) => {
      if (!isLinked && !entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      if (!isLinked) drawLinked();
    }, { rootMargin: near.MARGIN });
    observer.observe(byId("who"));
  }
  async function drawAll() {
    if (isLinked || isNamed || printing) drawLinked();
    else if (runs.length) {
      layLinked();
      linkedWhenNear();
    }
    await (printing ? charts.again() : charts.renew());
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
    addRows(made.createTBody(), rows);
    return made;
  }
  function addRows(body, rows) {
    for (const row of rows) body.insertRow().append(...row.map((value) => cell("td", value)));
  }
  const numbered = ([name, value]) => (Array.isArray(value) ? value.map((inner, place) => [`${name} ${place}`, inner]) : [[name, value]]);
  const largest = (spec) => rowsOf(spec).map((row) => Object.fromEntries(Object.entries(row).flatMap(numbered)));
  function fold(part) {
    part.addEventListener("toggle", () => unfold(part));
  }
  function unfold(part) {
    const slot = part.querySelector(".slot");
    if (!part.open || slot.childElementCount) return;
    const rows = largest(data.charts[part.dataset.of]);
    const names = Object.keys(rows[0] || {});
    slot.tabIndex = 0;
    slot.append(table(names, rows.slice(0, 2000).map((row) => names.map((name) => row[name] ?? ""))));
  }
  document.querySelectorAll("details.numbers").forEach(fold);
  // A link to a fold opens it.
  for (const link of document.querySelectorAll(".verdict thead a")) link.addEventListener("click", () => (document.querySelector(link.hash).open = true));

  // --- a chart as a file: its numbers, or a picture in light colours with its title ---
  function keep(name, address) {
    const link = document.createElement("a");
    [link.href, link.download] = [address, name];
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 1000);
  }
  const blob = (text, type) => URL.createObjectURL(new Blob([text], { type }));
  function csvOf(rows) {
    const names = Object.keys(rows[0] || {});
    const quoted = (value) => `"${String(value ?? "").replaceAll('"', '""')}"`;
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((r) => r.map(quoted).join(",")).join("\n") + "\n";
  }
  async function picture(spec, title, format) {
    const host = document.createElement("div"), { autosize, ...free } = structuredClone(spec);
    const options = { mode: "vega-lite", actions: false, ast: true, renderer: "svg", config: data.themes.light };
    const { view } = await window.vegaEmbed(host, { ...free, title, padding: 12 }, options);
    const address = format === "svg" ? blob(await view.toSVG(), "image/svg+xml") : await view.toImageURL("png", 3);
    view.finalize();
    return address;
  }
  function saves(button) {
    button.addEventListener("click", async () => {
      const of = button.parentElement.dataset.of, as = button.dataset.as;
      const spec = data.charts[of], title = button.closest("figure").dataset.title;
      keep(`${of}.${as}`, as === "csv" ? blob(csvOf(largest(spec)), "text/csv") : await picture(spec, title, as));
    });
  }
  document.querySelectorAll(".save button[data-as]").forEach(saves);
  /** Numbers and files under a chart that is made on the page. */
  function dress(figure, name, title, spec) {
    data.charts[name] = spec;
    const part = document.createElement("details"), menu = document.createElement("p");
    part.className = "numbers";
    part.dataset.of = menu.dataset.of = name;
    part.innerHTML = '<summary>Numbers</summary><div class="slot"></div>';
    part.firstChild.setAttribute("aria-label", `Numbers: ${title}`);
    menu.className = "save";
    menu.setAttribute("role", "group");
    menu.setAttribute("aria-label", `Save: ${title}`);
    menu.innerHTML = ["csv", "svg", "png"].map((as) => `<button type="button" data-as="${as}">${as.toUpperCase()}</button>`).join("");
    figure.append(part, menu);
    fold(part);
    menu.querySelectorAll("button").forEach(saves);
  }

  // --- charts of the reader's choice ---
  let picker = null; // what the picker of columns needs is unpacked when it comes near the screen
  const afresh = (name) => (waiting = waiting.then(() => CHOSEN[name](byId(`chart-${name}`))));
  async function drawColumns(element) {
    const isKnown = picker?.isKnown ?? false;
    element.closest("section").classList.toggle("unseen", !isKnown);
    if (printing && !isKnown) return;  // paper waits for nothing: what was never near the screen is left out
    picker ??= unpack("packed-columns").then((text) => columns.offer(expand(JSON.parse(text)), () => afresh("columns"), () => address.writeOthers(columns.words)));
    await picker;
    picker.isKnown = true;
    element.closest("section").classList.remove("unseen");
    const spec = columns.shown(data.colours[themeName()].category);
    await drawChosen(element, "columns", spec);
  }
  trouble.offer(data.trouble, () => afresh("trouble"));
  async function drawTrouble(element) {
    await drawChosen(element, "trouble", trouble.shown());
    report.views[element.id].addEventListener("click", (event, item) => {
      const { method, seed } = trouble.now(), place = runs.findIndex((run) => run.method === method && run.seed === seed);
      const there = (item?.datum?.what ? trouble.clientsOf(item.datum) : []).map((id) => ({ at: place, id, name: `client ${id}`, round: item.datum.from }));
      if (there.length && place >= 0) visit(there, element);
    });
  }
  /** Draw a chart that has been made here, and bring its table up to date. */
  async function drawChosen(element, name, spec) {
    data.charts[name] = spec ?? { layer: [] };
    const part = document.querySelector(`details.numbers[data-of="${name}"]`);
    part.querySelector(".slot").replaceChildren();
    if (!spec) return erase(element);
    zoomed.delete(element);
    element.setAttribute("aria-label", spec.description);
    await draw(element, spec);
    unfold(part);
  }

  more.offer();
  settings.offer(data.configs, (name, text) => keep(name, blob(text, "application/yaml")));
  repeating.offer(data.repeating);
  reaching.offer(data.reaching, (name, rows) => keep(name, blob(csvOf(rows), "text/csv")));

  // --- who learns from whom ---
  const runs = data.runs;
  let at = 0, step = 0, picked = null, timer = null, shaded = "cluster", shades = null;
  const sums = (steps) => {
    let total = 0;
    return (steps || []).map((value) => (total += value));
  };
  function decode(run) {
    if (run.decoded) return;
    const n = run.nodes.length;
    const link = (pair, state, weight) => ({ receiver: Math.floor(pair / n), sender: pair % n, state, weight });
    let chosen = new Set();
    run.decoded = run.rounds.map((entry) => {
      const before = [...chosen], places = (steps) => sums(steps).map((place) => before[place]);
      const fresh = new Set(sums(entry.new)), gone = places(entry.dropped);
      const left = new Set(chosen);
      for (const pair of [...gone, ...places(entry.ended)]) left.delete(pair);
      const now = [...left, ...fresh].sort((a, b) => a - b);
      chosen = new Set(now);
      const links = now.map((pair, place) => link(pair, fresh.has(pair) ? "new" : "kept", entry.weights[place] / 1000));
      for (const state of ["own", "substitute"]) {
        const [pairs, weights] = entry[state] || [[], []];
        sums(pairs).forEach((pair, place) => links.push(link(pair, state, weights[place] / 1000)));
      }
      for (const pair of gone) links.push(link(pair, "dropped", 0));
      for (const state of ["probed", "stands_in"]) for (const pair of sums(entry[state])) links.push(link(pair, state, 0));
      return links;
    });
  }
  function cellsOf(run, entry) {
    const [to, from, links] = entry.bins;
    const totals = {};
    to.forEach((group, place) => (totals[group] = (totals[group] || 0) + links[place]));
    return to.map((group, place) => ({
      receiver: group, sender: from[place], links: links[place], share: links[place] / totals[group],
    }));
  }
  const STATES = {
    own: "its own model", kept: "kept", new: "newly chosen", dropped: "dropped", probed: "probed only",
    substitute: "mixed in place of another", stands_in: "stands in for",
  };
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const number = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
  function sentence(run, entry, counts) {
    const total = (counts.kept || 0) + (counts.new || 0);
    const servers = run.nodes.some((node) => node.server);
    const words = [`<b>Round ${entry.round}</b> of ${run.last}`, `<b>${total}</b> ${total === 1 ? "link" : "links"} chosen, ${counts.new || 0} of them new`];
    if (counts.dropped) words.push(`${counts.dropped} dropped`);
    if (counts.probed) words.push(`${counts.probed} probed only`);
    if (counts.substitute) words.push(`${counts.substitute} mixed in place of others`);
    if (entry.absent.length) words.push(`${number(entry.absent.length, "client")} dropped out${servers && counts.stands_in ? `, ${counts.stands_in} with a substitute` : ""}`);
    const score = run.score, value = entry.numbers[score.column];
    if (value !== undefined) words.push(`${score.label} ${score.percent ? percent(value) : Number(value.toPrecision(4))}`);
    const names = { neighbour_precision: "precision", neighbour_recall: "recall", friend_accuracy: "substitutes of the right cluster", adversary_links: "honest clients' links that end at an adversary" };
    for (const [name, word] of Object.entries(names)) if (name in entry.numbers) words.push(`${word} ${percent(entry.numbers[name])}`);
    return words.join(" · ");
  }

  // Steps that come between two frames are drawn as one.
  let next = null;
  const update = () => (next ??= new Promise((done) => requestAnimationFrame(() => {
    next = null;
    show();
    done();
  })));
  function show() {
    if (!isLinked) {
      drawLinked(); // which comes back here
      return;
    }
    const run = runs[at], entry = run.rounds[step], { graph, heat } = report.views;
    if (run.light) {
      byId("state").textContent = "The graphs of this run are not on the page, and so it has no slider; its clients can be opened.";
      report.shown = step;
      chosen.show(run, step, picked);
      return;
    }
    byId("round").value = step;
    byId("round").setAttribute("aria-valuetext", `round ${entry.round} of ${run.last}`);
    if (run.groups) {
      byId("state").innerHTML = sentence(run, entry, entry.kinds);
      heat.draw({ cells: cellsOf(run, entry) });
    } else {
      const links = run.decoded[step], counts = {};
      for (const link of links) counts[link.state] = (counts[link.state] || 0) + 1;
      byId("state").innerHTML = sentence(run, entry, counts);
      const fill = shades && ((id) => {
        const colour = shades.colour(id, entry.round);
        return [colour, shade.readable(colour)];
      });
      const round = { links, absent: new Set(entry.absent), picked, fill };
      graph.draw(round);
      if (heat) heat.draw(round);
    }
    report.shown = step;
    chosen.show(run, step, picked);
    fillTable();
  }
  // The rows that are seen at once; the others when the slider rests.
  let others = null;
  function fillTable() {
    const part = byId("links");
    clearTimeout(others);
    if (!part.open) return;
    const slot = part.querySelector(".slot"), [names, rows] = roundTable();
    const seen = slot.scrollTop ? rows.length : 20;
    const made = table(names, rows.slice(0, seen));
    made.className = "round";
    slot.replaceChildren(made);
    others = setTimeout(() => addRows(made.tBodies[0], rows.slice(seen)), 150);
  }
  function named(run, id) {
    const clients = run.nodes.filter((node) => !node.server).length;
    return id < clients ? `${id}` : run.nodes.length === clients + 1 ? "server" : `server ${id - clients}`;
  }
  function roundTable() {
    const run = runs[at], entry = run.rounds[step];
    if (run.groups) {
      const rows = cellsOf(run, entry).map((cell) => [run.groups[cell.receiver], run.groups[cell.sender], cell.links, percent(cell.share)]);
      return [["receivers", "senders", "links", "share"], rows];
    }
    const name = (id) => named(run, id);
    const absent = new Set(entry.absent), lines = new Map();
    for (const { receiver, sender, state, weight } of run.decoded[step]) {
      if (picked !== null && receiver !== picked && sender !== picked) continue;
      const line = lines.get(receiver) || { kept: [], new: [], dropped: [], probed: [], substitute: [], stands_in: [], own: "" };
      if (state === "own") line.own = percent(weight);
      else line[state].push(weight ? `${name(sender)} (${percent(weight)})` : name(sender));
      lines.set(receiver, line);
    }
    const rows = [...lines].sort((a, b) => a[0] - b[0]).map(([id, line]) => [
      `${name(id)}${absent.has(id) ? " (dropped out)" : ""}`, line.own, line.kept.join(", "), line.new.join(", "),
      line.dropped.join(", "), line.probed.join(", "), [...line.substitute, ...line.stands_in].join(", "),
    ]);
    return [["receiver", "itself", "kept", "newly chosen", "dropped", "probed only", "substitutes"], rows];
  }
  /** Lay out the section of the shown run, and return what it has: the graph, and the matrix. */
  function layLinked() {
    const run = runs[at], served = run.nodes.some((node) => node.server);
    const [withGraph, withMatrix] = run.light ? [false, false] : [!run.groups, Boolean(run.groups) || !served];
    document.querySelectorAll(".pair, .slide, #links").forEach((part) => (part.hidden = Boolean(run.light)));
    document.querySelector(".pair").classList.toggle("one", !(withGraph && withMatrix));
    byId("graph").parentElement.hidden = !withGraph;
    byId("heat").parentElement.hidden = !withMatrix;
    const arrows = withGraph ? "Arrows lead from the sender to the receiver. " : "";
    byId("reading").textContent = `${arrows}${withMatrix ? "In the matrix, rows are receivers and columns are senders." : ""}`.trim();
    byId("choosing").textContent = one.knows(run) ? `Choose a client${withGraph ? ", here or above," : " above"} to see it alone below.` : "";
    if (!run.light) byId("choosing").append(" The slider starts at the last recorded round.");
    return [withGraph, withMatrix];
  }
  function drawLinked() {
    if (!runs.length) return;
    isLinked = true;
    const run = runs[at], colours = data.colours[themeName()], [withGraph, withMatrix] = layLinked();
    if (withGraph) decode(run);
    delete report.views.graph;
    delete report.views.heat;
    if (withGraph) {
      report.views.graph = linked.graph(byId("graph"), run, data.look, colours);
      const found = linked.explain(report.views.graph, said);
      report.views.graph.canvas.addEventListener("click", (event) => {
        const { node } = found(event);
        pick(!node || node.server || node.id === picked ? null : node.id);
      });
    }
    if (withMatrix) {
      report.views.heat = (run.groups ? linked.bins : linked.matrix)(byId("heat"), run, data.look, colours);
      linked.explain(report.views.heat, said);
      scaleOf(run);
    }
    if (!run.light) legend(run);
    shadeNodes();
    showClient();
  }
  // --- colours of the nodes ---
  function shadeNodes() {
    const run = runs[at], names = { cluster: "cluster", score: run.score.label, gain: "gain over training alone" };
    const kinds = shade.known(run, data.clients), kind = kinds.includes(shaded) ? shaded : "cluster";
    byId("shade").replaceChildren(...kinds.map((one) => new Option(names[one], one, false, one === kind)));
    shades = shade.scale(kind, run, data.clients, data.colours[themeName()]);
    byId("shading").hidden = kinds.length < 2;
    byId("scale").hidden = !shades;
    byId("legend").classList.toggle("plain", Boolean(shades));
    if (shades) {
      const ends = shades.words.map((text) => Object.assign(document.createElement("small"), { textContent: text }));
      byId("scale").replaceChildren(...byId("scale").querySelectorAll("span, i"), ...ends);
      byId("scale").querySelector("span").textContent = shades.label;
      byId("scale").querySelector("i").style.background = shades.gradient;
    }
    show();
  }
  byId("shade")?.addEventListener("change", () => {
    shaded = byId("shade").value;
    address.write(runs, { at, step, picked, shaded });
    shadeNodes();
  });
  // --- one client ---
  let beside = [];
  const one = runs.length && client.panel(data.clients, draw, dress, pick);
  function showClient() {
    one.show(runs[at], picked, beside);
    if (document.activeElement !== byId("open-id")) byId("open-id").value = byId("one").hidden ? "" : picked;
    const others = runs.flatMap((run, index) => (one.knows(run) && hasClient(run, picked) ? [new Option(nameOf(run), index, false, index === at)] : []));
    byId("one-run").replaceChildren(...others);
  }
  /** Where a dot of a chart leads: to its first client whose run the page has. */
  function toClients(element, spec, view) {
    if (!spec.layer?.some((layer) => crosshair.held(spec, layer)[0]?.who)) return;
    element.classList.add("of-clients");
    const task = element.id.match(/-(\d+)$/), of = (run) => data.clients.runs[run.clients];
    const place = (method, seed) => runs.findIndex((run) => {
      const its = of(run);
      return its && its.name === method && String(its.seed ?? "") === seed && (!task || its.task === Number(task[1]) - 1);
    });
    view.addEventListener("click", (event, item) => {
      const { who, method } = item?.datum ?? {};
      const there = (who ? who.split(" ") : []).map((word) => {
        const [seed, id] = word.split(":");
        return { at: place(method, seed), id: Number(id), name: `client ${id}${seed ? `, seed ${seed}` : ""}` };
      }).filter((each) => each.at >= 0);
      if (there.length) visit(there, element);
    });
  }
  for (const link of document.querySelectorAll("a.to-client")) link.addEventListener("click", (event) => {
    const named = event.ctrlKey || event.metaKey || event.shiftKey ? null : address.read(runs, link.getAttribute("href"));
    if (!named) return;
    event.preventDefault();
    visit([{ at: named.at, id: named.picked, name: `client ${named.picked}` }], link);
  });
  const left = [];  // elements from which clients were opened, and where on the screen they were
  /** Open a client at its `round`, or else at the last one.
   *
   * @param there the clients of a place: `at`, the number of the run, `id`, `name` and `round`, which may be missing.
   * @param from the element to which the way back leads.
   * @param chosen the one of them that is opened.
   */
  function visit(there, from, chosen = there[0]) {
    const { rounds } = runs[chosen.at], step = Math.max(0, rounds.findLastIndex(({ round }) => round <= (chosen.round ?? Infinity)));
    const hash = address.text(runs, { at: chosen.at, step, picked: chosen.id, shaded });
    left.push({ from, offset: from.getBoundingClientRect().top });
    history.replaceState({ left: left.length - 1, top: scrollY }, "");  // of a page loaded anew no element is known
    history.pushState({ from: true }, "", hash);
    byId("one-back").hidden = false;
    const next = there.map((each) => ({ name: each.name, here: each === chosen, open: () => visit(there, byId("one"), each) }));
    goTo(hash, next);
    byId("one").focus({ preventScroll: true });
  }
  function said({ node, link, cell }) {
    const run = runs[at];
    if (node && node.server) return [["node", named(run, node.id)]];
    if (node) {
      const rows = [["client", node.id], ...(node.cluster < 0 ? [] : [["cluster", node.cluster]])];
      if (run.rounds[step].absent.includes(node.id)) rows.push(["state", "dropped out"]);
      const score = client.writing(run.score), [own, gain] = ["score", "gain"].map((kind) => shade.value(kind, run, data.clients, node.id, run.rounds[step].round));
      const tested = data.clients.runs[run.clients]?.samples?.test?.[node.id];
      if (tested !== undefined) rows.push(["test samples", tested]);
      if (own !== null) rows.push([run.score.label, `${score.text(own)}${score.unit}`]);
      if (gain !== null) rows.push(["over training alone", score.signed(gain)]);
      if (node.falsified) rows.push(["falsified", node.falsified]);
      return rows;
    }
    const name = (id) => named(run, id);
    if (link) {
      const weight = link.weight ? [["weight", link.weight.toFixed(3)]] : [];
      const states = run.decoded[step].filter((one) => one.receiver === link.receiver && one.sender === link.sender).map((one) => STATES[one.state]);
      return [["receiver", name(link.receiver)], ["sender", name(link.sender)], ["link", states.join(" and ")], ...weight];
    }
    if (!cell) return [];
    return [["receivers", run.groups[cell.receiver]], ["senders", run.groups[cell.sender]], ["links", cell.links], ["share", percent(cell.share)]];
  }
  /** What the matrix's colours mean: they end at the largest of the run, so that all rounds have the same. */
  function scaleOf(run) {
    const own = !run.groups && run.decoded.some((links) => links.some((link) => link.weight > run.most + 0.001));
    byId("ramp").querySelector("span").textContent = run.groups ? "share of the group's links" : `weight in the new model${own ? data.look.more : ""}`;
    const digits = (value) => (run.groups ? percent(value) : String(Number(value.toPrecision(2))));
    [0, run.most / 2, run.most].forEach((value, place) => (byId("ramp").querySelectorAll("small")[place].textContent = digits(value)));
  }
  function legend(run) {
    const parts = [], { category } = data.colours[themeName()], clients = run.nodes.filter((node) => !node.server);
    const clusters = [...new Set(clients.map((node) => node.cluster))].sort((a, b) => a - b);
    const path = (shape) => (shape === "circle" ? "M-1,0A1,1,0,1,1,1,0A1,1,0,1,1,-1,0Z" : shape === "square" ? "M-.9,-.9H.9V.9H-.9Z" : shape);
    if (clusters.length > 1)
      clusters.forEach((cluster, place) => parts.push([`<path transform="translate(9 7) scale(5.5)" fill="var(--m${place % category.length})" d="${path(data.look.shapes[place % data.look.shapes.length])}"/>`, `cluster ${cluster}`]));
    if (run.nodes.length > clients.length + 1) parts.push(['<rect x="2" width="14" height="14" fill="var(--ink)"/>', "S: servers"]);
    const falsified = [...new Set(clients.flatMap((node) => (node.falsified ? [node.falsified] : [])))];
    if (falsified.length) parts.push(['<circle cx="9" cy="7" r="6" fill="none" stroke="var(--ink)" stroke-width="1.6"/>', `falsified ${falsified.join(", ")}`]);
    const states = new Set((run.decoded || []).flatMap((links) => links.map((link) => link.state)));
    const line = (state, dash) => `<path d="M0,7H20" stroke="var(--${state})" stroke-width="2.4" stroke-dasharray="${dash}"/>`;
    const cell = { new: '<path d="M26,2H36V12H26Z" fill="none" stroke="var(--new)" stroke-width="1.6"/>', dropped: '<path d="M27,3L35,11M35,3L27,11" stroke="var(--dropped)" stroke-width="1.6"/>', probed: '<circle cx="31" cy="7" r="1.8" fill="var(--probed)"/>' };
    for (const state of ["kept", "new", "dropped", "probed", "substitute", "stands_in"])
      if (states.has(state)) parts.push([line(state, data.look.dashes[state].join(" ")) + (cell[state] || ""), STATES[state]]);
    if (run.rounds.some((entry) => entry.absent.length)) parts.push(['<circle cx="9" cy="7" r="5.5" fill="none" stroke="var(--soft)" stroke-dasharray="2 2" stroke-width="1.5"/>', "dropped out"]);
    byId("legend").innerHTML = parts.map(([shape, words]) => `<li><svg width="${shape.includes("M2") || shape.includes('cx="31"') ? 40 : 22}" height="14" aria-hidden="true">${shape}</svg>${words}</li>`).join("");
  }
  /** The next client in the order of the ids, one way or the other; from none the first, or the last. */
  function beyond(by) {
    const ids = runs[at].nodes.filter((node) => !node.server).map((node) => node.id);
    return picked === null ? ids.at(by > 0 ? 0 : -1) : ids[(ids.indexOf(picked) + by + ids.length) % ids.length];
  }
  const KEYS = {
    ArrowLeft: () => move(step - 1), ArrowRight: () => move(step + 1), Home: () => move(0), End: () => move(runs[at].rounds.length - 1),
    ArrowUp: () => pick(beyond(-1)), ArrowDown: () => pick(beyond(1)),
    Enter: () => !byId("one").hidden && byId("one").focus(),
  };
  for (const name of ["graph", "heat"]) byId(name)?.addEventListener("keydown", (event) => {
    const does = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key];
    if (event.key === "Escape" && picked !== null) {
      event.stopPropagation();
      pick(null);
    } else if (does) {
      event.preventDefault();
      play(false);
      does();
    }
  });
  function pick(id) {
    picked = id;
    beside = [];
    byId("client").value = id === null ? "" : String(id);
    showClient();
    address.write(runs, { at, step, picked, shaded });
    return update();
  }
  function move(to) {
    step = Math.max(0, Math.min(runs[at].rounds.length - 1, to));
    address.write(runs, { at, step, picked, shaded });
    return update();
  }
  function play(on) {
    clearInterval(timer);
    timer = on ? setInterval(() => (step + 1 < runs[at].rounds.length ? move(step + 1) : play(false)), 700) : null;
    byId("play").textContent = on ? "Stop" : "Play";
    byId("play").setAttribute("aria-pressed", String(on));
    byId("state").setAttribute("aria-live", on ? "off" : "polite");
  }
  const nameOf = (run) => (run.seed === null ? run.method : `${run.method}, seed ${run.seed}`);
  const hasClient = (run, id) => run.nodes.some((node) => !node.server && node.id === id);
  function choose(index) {
    at = index;
    byId("run").value = at;
    byId("shown-run").textContent = nameOf(runs[at]);  // of the field there is nothing on paper
    const run = runs[at];
    picked = hasClient(run, picked) ? picked : null;
    beside = [];
    step = Math.min(step, run.rounds.length - 1);
    byId("round").max = run.rounds.length - 1;
    [byId("first").textContent, byId("last").textContent] = [run.rounds[0].round, run.rounds.at(-1).round];
    const clients = run.nodes.filter((node) => !node.server).map((node) => new Option(`client ${node.id}`, node.id));
    byId("client").replaceChildren(new Option("all", ""), ...clients);
    byId("client").value = picked ?? "";
    byId("open").title = `Opens the client in ${nameOf(run)}, the run that is chosen below`;
    byId("open-id").max = clients.length - 1;
    byId("client").disabled = Boolean(run.groups) && !one.knows(run);
  }
  if (runs.length) {
    const menu = (isLight) => runs.flatMap((run, index) => (Boolean(run.light) === isLight ? [new Option(nameOf(run), index)] : []));
    const without = Object.assign(document.createElement("optgroup"), { label: "clients only" });
    without.append(...menu(true));
    byId("run").append(...menu(false), ...(without.childElementCount ? [without] : []));
    step = runs[data.first].rounds.length - 1;
    const kept = window.following?.kept, named = address.read(runs, kept?.who ?? location.hash);
    choose(named ? named.at : data.first);
    isNamed = Boolean(named);
    if (named) set(named);
    if (kept?.newest) step = runs[at].rounds.length - 1;
    byId("run").addEventListener("change", () => goToRun(Number(byId("run").value)));
    byId("one-run").addEventListener("change", () => {  // the graphs above come and go, and the client stays where it is
      const top = byId("one").getBoundingClientRect().top;
      goToRun(Number(byId("one-run").value));
      scrollBy({ top: byId("one").getBoundingClientRect().top - top, behavior: "instant" });
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
    const inView = () => document.elementFromPoint(innerWidth / 2, innerHeight / 2)?.closest("figure, tr, [id]") ?? byId("who");
    chosen.offer((id) => visit([{ at, id, name: `client ${id}` }], inView()), (round) => move(runs[at].rounds.findLastIndex((entry) => entry.round <= round)));
  }
  function goToRun(index) {
    play(false);
    const isNewest = runs[at].light || report.newest();
    choose(index);
    if (isNewest) step = runs[at].rounds.length - 1;
    address.write(runs, { at, step, picked, shaded });
    drawLinked();
  }
  function goTo(hash, next = []) {
    const named = address.read(runs, hash);
    if (!named) return;
    play(false);
    choose(named.at);
    set(named);
    beside = next;
    drawLinked();
    shown().scrollIntoView({ behavior: "auto" });
  }
  const shown = () => (byId("one").hidden ? byId("who") : byId("one"));
  function set(named) {
    ({ step, picked } = named);
    shaded = named.shaded ?? shaded;
    byId("client").value = picked ?? "";
  }
  byId("one-back")?.addEventListener("click", () => history.back());
  report.address = () => (runs.length ? address.text(runs, { at, step, picked, shaded }) : "");
  report.newest = () => runs.length > 0 && !runs[at].light && step === runs[at].rounds.length - 1;
  report.now = () => ({ run: at, step, round: runs[at].rounds[step].round, picked });
  report.move = move;
  report.whole = () => {
    if (!isLinked) drawLinked();
    return charts.whole();
  };

  // --- a method singled out ---
  function singleOut(hash) {
    const name = address.methodIn(hash);
    if (name !== null && single.isKnown(name)) single.choose(name);
  }
  single.whenChanged(address.writeMethod);
  singleOut(location.hash);
  columns.read(address.wordsIn(location.hash));
  addEventListener("hashchange", () => {
    address.enter(location.hash);
    if (location.hash.includes("chart.")) {
      columns.read(address.wordsIn(location.hash));
      afresh("columns");
    }
    singleOut(location.hash);
    goTo(location.hash);
    if (runs.length) byId("one-back").hidden = !history.state?.from;
    if (history.state?.top === undefined) return;
    const { from, offset } = left[history.state.left] ?? {};
    if (from?.isConnected) place.back(from, offset);
    else scrollTo({ top: history.state.top, behavior: "instant" });
    history.replaceState(null, "");  // from now on the browser knows the place
  });

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
  // --- print: light, as wide as the paper, with the commands ---
  // What draws has no timer and loads nothing, so that all of it is done before the browser lays out the paper.
  const opened = [];
  addEventListener("beforeprint", () => {
    printing = true;
    for (const part of document.querySelectorAll("#how details:not([open]), #table details:not(.numbers, [open])")) {
      part.open = true;
      opened.push(part);
    }
    drawAll().then(asImages);
  });
  function asImages() {
    // Chromium prints of a canvas what pens drew, without the pixels that were put there, which are the lines.
    for (const canvas of document.querySelectorAll(".linked canvas")) {
      const image = new Image();
      image.decoding = "sync";
      image.src = canvas.toDataURL();
      image.alt = "";
      canvas.replaceWith(image);
    }
  }
  addEventListener("afterprint", () => {
    printing = false;
    for (const part of opened.splice(0)) part.open = false;
    redraw();
  });
  let width = innerWidth, later = null;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => {  // a picture of the whole page changes the size for a moment
      if (innerWidth === width) return;
      width = innerWidth;
      redraw();
    }, 200);
  });
  await redraw();
  const [section, words] = location.hash.slice(1).split("?");
  if (words && !window.following?.kept) {
    if (address.read(runs, location.hash)) place.keep(shown());
    else if (single.now() !== null && byId(section)) place.keep(byId(section));
  }
})();
