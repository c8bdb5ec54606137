"use strict";
// Any column of metrics.csv, or any array of clients.npz: the reader picks it, what it is drawn over, and how. A line is the
// mean of a method over its seeds, thin lines are its seeds; or each line is a client of one run.
const columns = (() => {
  const ACROSS = { round: ["rounds", "round"], mb: ["MB received", "MB received by a client"], simulated: ["simulated seconds", "simulated seconds"], seconds: ["seconds", "seconds since the start"] };
  const HEIGHT = 340, GAP = 16, EACH = "each client of ", SEEDS = 30; // lines of seeds are drawn of so many methods at most
  const byId = (id) => document.getElementById(id);
  const OPEN = { column: null, task: 0, lines: "methods", across: "round", logx: false, logy: null, seeds: true, smooth: 0 };  // logy: null is the axis that fits the values

  const DECADES = 6; // powers of ten from which an axis is logarithmic unless the reader chooses

  let data = null, state = { ...OPEN }, isLog = false, again = () => {}, changed = () => {};

  // --- the words of an address ---
  /** What differs from the page as it opens, as words of an address. */
  function words() {
    const kept = Object.entries(state).filter(([name, value]) => value !== (name === "column" ? data?.first : OPEN[name]) && value !== null);
    return kept.map(([name, value]) => [`chart.${name}`, String(value)]);
  }
  function read(found) {
    const next = { ...OPEN };
    for (const [name, first] of Object.entries(OPEN)) {
      const text = found?.get(`chart.${name}`);
      if (text === null || text === undefined) continue;
      next[name] = typeof first === "boolean" || name === "logy" ? text === "true" : typeof first === "number" ? Number(text) || 0 : text;
    }
    state = next;
  }

  // --- the menus ---
  const inTask = () => data.methods.filter((method) => method.task === state.task);
  const isOfClients = () => !inTask().some((method) => state.column in method.columns) || state.column.startsWith(OF);
  const OF = "clients: ";
  const plain = () => (state.column.startsWith(OF) ? state.column.slice(OF.length) : state.column);
  function options(select, entries, chosen) {
    select.replaceChildren(...entries.map(([value, text]) => new Option(text, value, false, String(value) === String(chosen))));
  }
  function names(kind) {
    return [...new Set(inTask().flatMap((method) => Object.keys(method[kind])))];
  }
  /** The runs of which each client is known, as values of the menu: `method` and the number of the seed. */
  function runsWithClients(name) {
    return inTask().flatMap((method) => Object.keys(method.clients[name]?.each ?? {}).map((run) => ({ method, run: Number(run), value: `${method.name}|${run}` })));
  }
  function fill() {
    state.task = Math.min(Math.max(0, state.task), data.tasks.length - 1);
    const groups = [["metrics.csv: a number a round", names("columns").map((name) => [name, name])], ["clients.npz: the clients", names("clients").map((name) => [OF + name, name])]];
    const known = groups.flatMap(([, entries]) => entries.map(([value]) => value));
    if (!known.includes(state.column)) state.column = known.includes(data.first) ? data.first : known[0] ?? null;
    byId("pick-column").replaceChildren(...groups.filter(([, entries]) => entries.length).map(([label, entries]) => {
      const group = Object.assign(document.createElement("optgroup"), { label });
      group.append(...entries.map(([value, text]) => new Option(text, value, false, value === state.column)));
      return group;
    }));
    options(byId("pick-task"), data.tasks.map((name, at) => [at, name]), state.task);
    byId("pick-task-label").hidden = data.tasks.length < 2;
    const single = isOfClients() ? runsWithClients(plain()) : [];
    const lines = [["methods", isOfClients() ? "methods, the median client" : "methods"], ...single.map(({ method, run, value }) => [value, `${EACH}${method.name}${method.seeds[run] === null ? "" : `, seed ${method.seeds[run]}`}`])];
    if (!lines.some(([value]) => value === state.lines)) state.lines = "methods";
    options(byId("pick-lines"), lines, state.lines);
    const spent = new Set(inTask().flatMap((method) => Object.values(method.costs).flatMap(Object.keys)));
    const across = Object.keys(ACROSS).filter((kind) => kind === "round" || spent.has(kind));
    if (!across.includes(state.across)) state.across = "round";
    options(byId("pick-across"), across.map((kind) => [kind, ACROSS[kind][0]]), state.across);
    [byId("pick-logx").checked, byId("pick-logy").checked, byId("pick-seeds").checked] = [state.logx, isLog, state.seeds];
    byId("pick-seeds-label").hidden = state.lines !== "methods" || !inTask().some((method) => method.seeds.length > 1);
    byId("pick-smooth").value = state.smooth;
    byId("pick-smoothed").textContent = state.smooth ? state.smooth.toFixed(2) : "off";
  }
  function listen() {
    const on = (id, event, take) => byId(id).addEventListener(event, () => {
      take(byId(id));
      fill();
      changed();
      again();
    });
    on("pick-column", "change", (part) => (state.column = part.value));
    on("pick-task", "change", (part) => (state.task = Number(part.value)));
    on("pick-lines", "change", (part) => (state.lines = part.value));
    on("pick-across", "change", (part) => (state.across = part.value));
    on("pick-logx", "change", (part) => (state.logx = part.checked));
    on("pick-logy", "change", (part) => (state.logy = part.checked));
    on("pick-seeds", "change", (part) => (state.seeds = part.checked));
    on("pick-smooth", "input", (part) => (state.smooth = Number(part.value)));
  }

  // --- the numbers ---
  /** The exponential mean of the values until each place, without the pull of the first ones to 0, as TensorBoard has it. */
  function smoothed(values, weight) {
    let mean = 0, whole = 0;
    return values.map((value) => {
      if (value === null) return null;
      [mean, whole] = [weight * mean + (1 - weight) * value, weight * whole + (1 - weight)];
      return mean / whole;
    });
  }
  const soft = (values) => (state.smooth ? smoothed(values, state.smooth) : values);
  const meanOf = (values) => (values.length && values.every((value) => value !== null) ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  const deviation = (values, mean) => (values.length > 1 && mean !== null ? Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1)) : null);
  const short = (value) => (value === null ? null : Number(value.toPrecision(5)));

  /** A series for each line: its name, rounds, places across, and values; of methods also those of each seed. */
  function series() {
    const name = plain(), { factor } = data.about[name], scaled = (values) => values.map((value) => (value === null ? null : value * factor));
    if (state.lines === "methods") return inTask().flatMap((method) => {
      const column = isOfClients() ? method.clients[name] : method.columns[name];
      if (!column) return [];
      const runs = (isOfClients() ? column.quantiles.median : column.runs).map(scaled), rounds = data.rounds[column.at];
      const spent = state.across === "round" ? null : (method.costs[column.at]?.[state.across] ?? null);
      if (state.across !== "round" && !spent) return [];
      return [{ name: method.name, short: method.short, aside: method.aside, seeds: method.seeds, rounds, places: spent ?? runs.map(() => rounds), runs }];
    });
    const { method, run } = runsWithClients(name).find(({ value }) => value === state.lines), each = method.clients[name].each[run];
    const rounds = data.rounds[each.at], spent = state.across === "round" ? rounds : method.costs[each.at]?.[state.across]?.[run] ?? rounds;
    return each.clients.map((values, id) => ({ name: `client ${id}`, short: [`client ${id}`, `client ${id}`], id, aside: "", seeds: [method.seeds[run]], rounds, places: [spent], runs: [scaled(values)] }));
  }
  /** The rows of the chart, one for each line and round, with a column for each seed. */
  function rowsOf(found) {
    const field = state.lines === "methods" ? "method" : "client", rows = [];
    const seeds = [...new Set(found.flatMap((line) => line.seeds))], several = field === "method" && seeds.length > 1;
    for (const line of found) {
      const runs = line.runs.map(soft);
      line.rounds.forEach((round, at) => {
        const known = runs.map((values) => values[at]).filter((value) => value !== null), mean = meanOf(known);
        const here = line.places.map((places) => places[at]).filter((place) => place !== null), place = meanOf(here);
        const row = { [field]: line.name, round, ...(state.across === "round" ? {} : { cost: short(place) }), mean: short(mean) };
        if (several) {
          row.sd = short(deviation(known, mean));
          for (const seed of seeds) {
            const run = line.seeds.indexOf(seed);
            row[`seed ${seed}`] = run < 0 ? null : short(runs[run][at]);
            if (state.across !== "round") row[`across, seed ${seed}`] = run < 0 ? null : short(line.places[run][at]);
          }
        }
        if (state.smooth) row.unsmoothed = short(meanOf(line.runs.map((values) => values[at]).filter((value) => value !== null)));
        if (row.mean !== null && (state.across === "round" || row.cost !== null)) rows.push(row);
      });
    }
    return { rows, field, seeds: several ? seeds : [] };
  }
  const sayEnd = (value, factor) => (factor === 100 ? value.toFixed(1) : Math.abs(value) >= 1e6 ? value.toExponential(2) : Number(value.toPrecision(3)).toString()).replace("-", "−");

  /** The chart in Vega-Lite, without a theme, and its words.
   *
   * @param category colours of the theme, for lines other than those of methods.
   */
  function chart(category) {
    const name = plain(), { factor, title, words } = data.about[name], found = series(), { rows, field, seeds } = rowsOf(found);
    const at = state.across === "round" ? "round" : "cost";
    const numbers = rows.flatMap((row) => [row.mean, ...seeds.map((seed) => row[`seed ${seed}`])]).filter((value) => value !== null);
    const decades = Math.log10(Math.max(...numbers) / Math.min(...numbers)), isWide = Math.min(...numbers) > 0 && decades > DECADES;
    isLog = state.logy ?? isWide;
    const positive = (value) => !isLog || value > 0, ahead = (row) => !state.logx || row[at] > 0;
    const shown = rows.filter((row) => positive(row.mean) && ahead(row)), left = rows.length - shown.length;
    const withSeeds = state.seeds && seeds.length > 1 && found.length <= SEEDS;
    const all = shown.flatMap((row) => [row.mean, row.unsmoothed ?? null, ...(withSeeds ? seeds.map((seed) => row[`seed ${seed}`]) : [])]).filter((value) => value !== null && positive(value));
    if (!shown.length) return { spec: null, words: "No number here can be drawn." };
    const least = Math.min(...all), most = Math.max(...all), room = 0.04 * (most - least || Math.abs(most) || 1);
    const domain = isLog ? [least / 1.05, most * 1.05] : [factor === 100 ? Math.max(0, least - room) : least >= 0 ? Math.max(0, least - room) : least - room, factor === 100 ? Math.min(100, most + room) : most + room];
    if (domain[1] <= domain[0]) domain[1] = domain[0] + 1;
    const places = shown.map((row) => row[at]), ends = [Math.min(...places), Math.max(...places)];
    const log = { type: "log", base: 10 };
    const x = (of) => ({ field: of, type: "quantitative", scale: { nice: false, domain: ends[1] > ends[0] ? ends : [ends[0], ends[0] + 1], ...(state.logx ? log : { zero: false }) },
      axis: { title: `${ACROSS[state.across][1]}${state.logx ? ", logarithmic" : ""}`, tickCount: 8, ...(state.logx ? { values: logTicks(...ends) } : {}), ...(at === "round" ? { tickMinStep: 1, format: "d" } : { format: ",~r" }) } });
    const y = (of) => ({ field: of, type: "quantitative", scale: { domain, nice: false, ...(isLog ? log : {}) },
      axis: { title: `${title}${isLog ? ", logarithmic" : ""}`, titleAngle: 0, titleAlign: "left", titleAnchor: "end", titleX: -34, titleY: -12, tickCount: 6, ...(domain[1] >= 1e6 ? { labelExpr: "abs(datum.value) >= 1e4 || (datum.value && abs(datum.value) < 1e-3) ? format(datum.value, '.3~g') : format(datum.value, '~r')" } : isLog ? { format: "~r" } : {}), ...(isLog ? { values: logTicks(...domain) } : {}) } });
    const lines = found.map((line) => line.name), places_ = field === "method" ? data.names : lines;
    const color = { field, type: "nominal", legend: null, scale: { domain: places_, ...(field === "method" ? {} : { range: lines.map((_, index) => category[index % (category.length - 1)]) }) } };
    const dashes = field === "method" ? data.names.map((_, place) => dash(place)) : lines.map((_, index) => dash(Math.floor(index / (category.length - 1)) * category.length));
    const strokeDash = { field, type: "nominal", legend: null, scale: { domain: places_, range: dashes } };
    const faint = { condition: { test: { field, oneOf: found.filter((line) => line.aside).map((line) => line.name) }, value: 0.4 }, value: 1 };
    const order = { field: "round", type: "quantitative" }, thin = { type: "line", clip: true, strokeWidth: 0.9, opacity: 0.45 };
    const valid = (of) => ({ filter: `isValid(datum['${of}'])${isLog ? ` && datum['${of}'] > 0` : ""}` });
    const layer = [{ data: { values: shown }, mark: { type: "line", clip: true, strokeWidth: field === "method" ? 2 : 1.2 }, encoding: { x: x(at), y: y("mean"), color, strokeDash, order, opacity: faint } }];
    if (state.smooth) layer.push({ data: { values: shown }, transform: [valid("unsmoothed")], mark: { ...thin, opacity: 0.3 }, encoding: { x: x(at), y: y("unsmoothed"), color, detail: { field }, order } });
    if (withSeeds) for (const seed of seeds) {
      const across = at === "round" ? "round" : `across, seed ${seed}`, of = `seed ${seed}`;
      layer.push({ data: { values: shown }, transform: [valid(of), ...(at === "round" ? [] : [{ filter: `datum['${across}'] ${state.logx ? ">" : ">="} 0` }])], mark: thin, encoding: { x: x(escaped(across)), y: y(escaped(of)), color, detail: { field }, order } });
    }
    layer.push(...labels(shown, found, field, at, domain, ends[1], factor, x, y, color));
    const note = [words, !isOfClients() ? "" : field === "method" ? "The median client; thin lines are single seeds." : "A line for each client.", state.lines === "methods" && seeds.length > 1 ? `Mean over seeds${withSeeds ? "; thin lines are single seeds" : ""}.` : "", isLog && state.logy === null ? `The axis is logarithmic, since the numbers span ${Math.round(decades)} powers of ten.` : "", state.smooth ? "Smoothed; the faint line is not." : "", left ? `${left} ${left === 1 ? "point is" : "points are"} not above 0 and left out.` : ""];
    const spec = { height: HEIGHT, autosize: { type: "fit", contains: "padding" }, layer };
    const heading = `${name} ${at === "round" ? "over rounds" : `against ${ACROSS[state.across][0]}`}`;
    spec.description = `${heading}. ${lastOf(shown, field).slice(0, 8).map((row) => `${row[field]} ${sayEnd(row.mean, factor)}`).join(", ")}.`;
    return { spec, heading, words: [...new Set(note)].filter(Boolean).join(" ") };
  }
  /** 1, 2 and 5 times powers of ten between both ends; fewer factors over many powers. */
  function logTicks(low, high) {
    const wide = Math.log10(high / low), factors = wide <= 2 ? [1, 2, 5] : wide <= 3 ? [1, 5] : [1], first = Math.floor(Math.log10(low));
    const powers = Array.from({ length: Math.ceil(Math.log10(high)) - first + 1 }, (_, at) => first + at);
    return powers.flatMap((power) => factors.map((factor) => Number((factor * 10 ** power).toPrecision(6)))).filter((tick) => tick >= low && tick <= high);
  }
  const escaped = (name) => name.replaceAll(/([.[\]'"\\])/g, "\\$1");
  const lastOf = (rows, field) => [...new Map(rows.map((row) => [row[field], row])).values()].sort((a, b) => b.mean - a.mean);
  function dash(place) {
    const { number, dashes, dotted } = data.dash;
    return place === number - 1 ? dotted : dashes[(place - Math.floor(place / number)) % dashes.length];
  }
  /** Names at the side, as many as have room, from the highest line to the lowest. */
  function labels(rows, found, field, at, domain, end, factor, x, y, color) {
    const inner = HEIGHT - 50, most = Math.floor(inner / GAP), last = lastOf(rows, field);
    const kept = last.length <= most ? last : [...last.slice(0, most - 1), last.at(-1)];
    const up = (value) => (isLog ? Math.log(value / domain[0]) / Math.log(domain[1] / domain[0]) : (value - domain[0]) / (domain[1] - domain[0]));
    const down = (share) => (isLog ? domain[0] * (domain[1] / domain[0]) ** share : domain[0] + share * (domain[1] - domain[0]));
    const ends = kept.map((row) => {
      const { aside, short: [name, brief] } = found.find((line) => line.name === row[field]);
      const after = aside ? `: ${aside}` : `  ${sayEnd(row.mean, factor)}`;
      return { [field]: row[field], end_x: row[at], end_y: row.mean, label_x: end, label: `${name}${after}`, brief: brief + (aside ? "" : after), value: up(row.mean) };
    });
    client.apart(ends, GAP / inner, 0, 1);
    for (const one of ends) one.label_y = down(one.at);
    const values = ends.map(({ value, at: _, ...one }) => one), text = { align: "left", dx: 12, fontSize: 12, fontWeight: 600, clip: false };
    const place = { x: x("label_x"), y: y("label_y"), text: { field: "label", type: "nominal" } };
    return [
      { data: { values }, mark: { type: "point", filled: true, opacity: 1, size: 30 }, encoding: { x: x("end_x"), y: y("end_y"), color } },
      { data: { values }, mark: { type: "text", style: "rim", ...text }, encoding: place },
      { data: { values }, mark: { type: "text", ...text }, encoding: { ...place, color, tooltip: [{ field, type: "nominal" }] } },
    ];
  }

  /** Let the picker work.
   *
   * @param found what `contents/columns.py` has made.
   * @param redraw draws the chart again.
   * @param tell is called when the reader has chosen something.
   */
  function offer(found, redraw, tell) {
    [data, again, changed] = [found, redraw, tell];
    state.column ??= data.first;
    fill();
    listen();
  }
  /** Write what the chart shows over it, and return its specification; null if nothing can be drawn. */
  function shown(category) {
    fill();
    const { spec, heading, words: said } = chart(category);
    byId("pick-logy").checked = isLog;
    byId("pick-title").textContent = heading ?? "Any column";
    byId("pick-words").textContent = said;
    byId("chart-columns").closest("figure").dataset.title = heading ?? "Any column";
    return spec;
  }
  return { offer, shown, words, read, smoothed };
})();
