"use strict";
// One client of a run: its score over rounds against training alone and the mean of its cluster, its samples, whom it chose,
// and its place among the clients in each method.
const client = (() => {
  const ALONE = "Local", MEAN = "mean";

  function decode(entry) {
    entry.values ??= (entry.curves || []).map((steps) => {
      let at = 0;
      return steps.map((step) => (step === null ? null : (at += step) * entry.unit));
    });
    return entry.values;
  }
  /** A client's score in the last evaluated round up to this one; null where there is none. */
  function at(entry, id, round) {
    const place = entry?.rounds ? entry.rounds.findLastIndex((one) => one <= round) : -1;
    return place < 0 ? null : (decode(entry)[id]?.[place] ?? null);
  }
  const mean = (values) => {
    const known = values.filter((value) => value !== null && value !== undefined);
    return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
  };

  /** What there is to say of a client.
   *
   * @param clients of the page: `runs` and `names`.
   * @param run of the slider.
   * @param id of the client.
   */
  function about(clients, run, id) {
    const here = clients.runs[run.clients], nodes = run.nodes.filter((node) => !node.server);
    const sign = run.score.higher ? 1 : -1;
    const same = clients.runs.filter((entry) => entry.data === here.data);
    const alone = here.local ? null : same.find((entry) => entry.local) || null;
    const clusters = new Set(nodes.map((node) => node.cluster)), cluster = clusters.size > 1 ? nodes[id].cluster : null;
    const members = nodes.filter((node) => cluster === null || node.cluster === cluster).map((node) => node.id);
    const places = same.map((entry) => {
      const last = entry.last[id], known = entry.last.filter((value) => value !== null);
      const before = known.filter((value) => sign * (value - last) > 0).length;
      const gain = last === null || !alone || entry === alone || alone.last[id] === null ? null : last - alone.last[id];
      return { name: entry.name, here: entry === here, last, gain, place: last === null ? null : before + 1, of: known.length };
    });
    const share = (count) => count / here.recorded;
    const received = here.received?.[id];
    const senders = (received?.senders || []).map((sender, at) => ({
      id: sender, share: share(received.rounds[at]), weight: received.weights[at] / 1000,
      same: cluster === null ? null : nodes[sender].cluster === cluster,
    }));
    return {
      id, here, alone, cluster, members, places, senders,
      group: cluster === null ? "all clients" : `cluster ${cluster}`,
      own: places.find((place) => place.here),
      others: received?.others || 0,
      by: received ? { count: received.by, mean: mean(here.received.map((one) => one.by)) } : null,
      mixed: here.mixed ? share(here.mixed[id]) : null,
      mean: mean(members.map((member) => here.last[member])),
      counted: clients.counted[here.counted] || null,
      samples: Object.entries(here.samples || {}).map(([part, counts]) => ({ part, count: counts[id], mean: mean(counts) })),
      words: here.about?.[id] || "",
    };
  }

  /** The rows of the chart: `method` is what a line is called, and `of` the method whose colour it has. */
  function rows(found) {
    const { here, alone, id, members } = found, values = decode(here), lines = [];
    const add = (method, of, entry, of_round) =>
      entry.rounds.forEach((round, at) => {
        const value = of_round(at);
        if (value !== null) lines.push({ method, of, round, value: Number(value.toPrecision(5)) });
      });
    if (!values.length) return [];
    add(`client ${id}`, here.name, here, (at) => values[id][at]);
    add(`mean of ${found.group}`, MEAN, here, (at) => mean(members.map((member) => values[member][at])));
    if (alone?.curves) add(alone.name === ALONE ? ALONE : `alone: ${alone.name}`, alone.name, alone, (at) => decode(alone)[id][at]);
    return lines;
  }

  /** Places of names that stand at least `gap` apart, as near to the ends of their lines as their order allows. */
  function apart(ends, gap, low, high) {
    const order = [...ends].sort((a, b) => a.value - b.value);
    order.forEach((end, at) => (end.at = Math.max(end.value, at ? order[at - 1].at + gap : low)));
    const over = order.length ? order.at(-1).at - high : 0;
    if (over > 0) order.reverse().forEach((end, at) => (end.at = Math.min(end.at, at ? order[at - 1].at - gap : high)));
    return ends;
  }

  /** The chart in Vega-Lite, without a theme. */
  function spec(found, score, names, height = 260) {
    const lines = rows(found), all = lines.map((row) => row.value);
    const low = Math.min(...all), high = Math.max(...all), room = 0.06 * (high - low || Math.abs(high) || 1);
    const domain = score.percent ? [Math.max(0, Math.floor((low - room) / 5) * 5), Math.min(100, Math.ceil((high + room) / 5) * 5)] : [low - room, high + room];
    const ends = [...new Map(lines.map((row) => [row.method, row])).values()].map((row) => {
      const label = `${row.method}  ${score.text(row.value)}`;
      return { ...row, label, brief: row.of === MEAN ? `mean  ${score.text(row.value)}` : label };  // the second on a phone
    });
    apart(ends, ((domain[1] - domain[0]) * 17) / (height - 50), ...domain);
    const x = { field: "round", type: "quantitative", scale: { nice: false, zero: false }, axis: { title: "round", tickMinStep: 1, format: "d", tickCount: 6 } };
    const axis = { title: score.axis, titleAngle: 0, titleAlign: "left", titleAnchor: "end", titleX: -34, titleY: -12, tickCount: 6 };
    const y = (field) => ({ field, type: "quantitative", scale: { domain }, axis });
    const color = { field: "of", type: "nominal", scale: { domain: names }, legend: null };
    const only = (isMean) => [{ filter: `(datum.of === '${MEAN}') === ${isMean}` }];
    const dash = { condition: { test: `datum.method === 'client ${found.id}'`, value: [1, 0] }, value: [6, 3] };
    const width = { condition: { test: `datum.method === 'client ${found.id}'`, value: 2.8 }, value: 1.8 };
    const label = { align: "left", dx: 10, fontSize: 12, fontWeight: 600 };
    const text = { x, y: y("at"), text: { field: "label", type: "nominal" } };
    const own = (part) => (lines.some((row) => row.of !== MEAN) ? [part] : []);  // a client without a score has the mean alone
    const layer = [
      ...own({ data: { values: lines }, transform: only(false), mark: { type: "line", clip: true }, encoding: { x, y: y("value"), color, strokeDash: dash, strokeWidth: width } }),
      { data: { values: lines }, transform: only(true), mark: { type: "line", clip: true, style: "dotted", strokeWidth: 1.8 }, encoding: { x, y: y("value"), detail: { field: "method" } } },
      { data: { values: ends }, mark: { type: "text", style: "rim", ...label }, encoding: text },
      ...own({ data: { values: ends }, transform: only(false), mark: { type: "text", ...label }, encoding: { ...text, color } }),
      { data: { values: ends }, transform: only(true), mark: { type: "text", style: "note", ...label }, encoding: text },
    ];
    return { spec: { height, autosize: { type: "fit", contains: "padding" }, layer }, ends: ends.map((end) => end.label) };
  }

  /** Its training samples by class, or by the value of the target, beside the mean of all clients; null where none are known. */
  function samplesOf(found, names) {
    if (!found.counted) return null;
    const { of, counts, edges } = found.counted, columns = counts[0].map((_, at) => at), isNumber = Boolean(edges);
    const values = columns.map((at) => {
      const [low, high] = isNumber ? [edges[at], edges[at + 1]] : [at - 0.4, at + 0.4];
      const what = isNumber ? { from: low, below: high } : { [of]: at };
      return { ...what, samples: counts[found.id][at], mean: Number(mean(counts.map((row) => row[at])).toPrecision(3)), low, high, of: found.here.name };
    });
    const axis = { title: of, labelOverlap: true, ...(isNumber ? { tickCount: 6 } : { format: "d", tickMinStep: 1, tickCount: 10 }) };
    const x = { field: "low", type: "quantitative", axis, scale: { nice: false, zero: false, domain: isNumber ? [edges[0], edges.at(-1)] : [-0.5, columns.length - 0.5] } };
    const y = (field) => ({ field, type: "quantitative", scale: { domainMin: 0 }, axis: { title: "training samples", titleAngle: 0, titleAlign: "left", titleAnchor: "end", titleX: -34, titleY: -12, tickMinStep: 1, tickCount: 4 } });
    const tooltip = [...(isNumber ? ["from", "below"] : [of]), "samples", "mean"].map((field) => ({ field, type: "quantitative", ...(field === "mean" ? { title: "mean of all clients" } : {}) }));
    const color = { field: "of", type: "nominal", scale: { domain: names }, legend: null };
    const layer = [
      { data: { values }, mark: { type: "rect", opacity: 0.75 }, encoding: { x, x2: { field: "high" }, y: y("samples"), y2: { datum: 0 }, color, tooltip } },
      { data: { values }, mark: { type: "rule", style: "zero", strokeWidth: 2 }, encoding: { x, x2: { field: "high" }, y: y("mean"), tooltip } },
    ];
    return { height: 150, autosize: { type: "fit", contains: "padding" }, layer };
  }
  /** The same in words. */
  function saidOfSamples(found) {
    const { of, counts, edges } = found.counted, own = counts[found.id];
    const all = own.reduce((sum, count) => sum + count, 0), order = own.map((_, at) => at).sort((a, b) => own[b] - own[a] || a - b);
    const name = (at) => (edges ? `${few(edges[at])} to ${few(edges[at + 1])}` : `${of} ${at}`);
    const held = order.filter((at) => own[at]), most = held.slice(0, 3).map((at) => `${name(at)}: ${own[at]}`);
    return `${edges ? "" : `${held.length} of ${own.length} ${of === "class" ? "classes" : "labels"}. `}Most: ${most.join(", ")}${of === "label" ? "" : ` of ${all} samples`}.`;
  }

  /** Whom it chose, round by round: bars of its own cluster and of others, and below them those that it no longer chose. */
  function choicesOf(found, height = 150) {
    const { here, id } = found, { rounds, known } = here.choices, [same, other, gone, absent] = ["same", "other", "gone", "absent"].map((name) => here.choices[name][id]);
    const values = rounds.map((round, at) => ({ round, at, [known ? "own cluster" : "chosen"]: same[at], ...(known ? { "other clusters": other[at] } : {}), "no longer chosen": gone[at], "dropped out": absent[at] ? "yes" : "no" }));
    const most = Math.max(1, ...rounds.map((_, at) => same[at] + other[at])), least = -Math.max(0, ...gone);
    const every = Math.max(1, Math.ceil(rounds.length / 8)), ticks = rounds.map((_, at) => at).filter((at) => at % every === 0 || (at === rounds.length - 1 && at % every > every / 2));
    const x = (by) => ({ field: by, type: "quantitative", scale: { nice: false, domain: [-0.5, rounds.length - 0.5] }, axis: { title: "round", values: ticks, labelExpr: `[${rounds.join(",")}][datum.value]`, grid: false } });
    const y = (by) => ({ field: by, type: "quantitative", scale: { domain: [least, most], nice: false }, axis: { title: "senders", titleAngle: 0, titleAlign: "left", titleAnchor: "end", titleX: -34, titleY: -12, tickMinStep: 1, tickCount: 4, labelExpr: "abs(datum.value)" } });
    const tooltip = Object.keys(values[0]).filter((name) => name !== "at").map((field) => ({ field, type: field === "dropped out" ? "nominal" : "quantitative" }));
    const edge = [{ calculate: "datum.at - 0.42", as: "left" }, { calculate: "datum.at + 0.42", as: "right" }];
    const bar = (style, from, to, needed) => ({ data: { values }, transform: [...edge, { calculate: from, as: "low" }, { calculate: to, as: "high" }, { filter: needed }], mark: { type: "rect", style }, encoding: { x: x("left"), x2: { field: "right" }, y: y("low"), y2: { field: "high" }, tooltip } });
    const own = `datum['${known ? "own cluster" : "chosen"}']`, others = known ? "datum['other clusters']" : "0", left = "datum['no longer chosen']";
    const layer = [
      bar("wash", `${least}`, `${most}`, "datum['dropped out'] === 'yes'"),
      bar("same", "0", own, `${own} > 0`), ...(known ? [bar("other", own, `${own} + ${others}`, `${others} > 0`)] : []),
      bar("gone", `-${left}`, "0", `${left} > 0`),
    ];
    return { height, autosize: { type: "fit", contains: "padding" }, layer };
  }
  /** The same in words: since when it chose its own cluster only, and in which share of all choices. */
  function saidOfChoices(found) {
    const { rounds, known, ...counts } = found.here.choices, same = counts.same[found.id], other = counts.other[found.id];
    const sum = (values) => values.reduce((all, one) => all + one, 0), all = sum(same) + sum(other);
    const dropped = sum(counts.absent[found.id]), out = dropped ? ` It dropped out of ${dropped} of ${rounds.length} recorded rounds.` : "";
    if (!all) return `It chose no other client.${out}`;
    if (!known) return `It chose ${Number((all / rounds.length).toPrecision(3))} senders a round, and gave up ${sum(counts.gone[found.id])} from one recorded round to the next.${out}`;
    const last = other.findLastIndex((count) => count > 0), first = last < 0 ? 0 : last + 1;
    const share = `${percent(sum(same) / all)} of its choices were of its own cluster`;
    if (same.slice(first).some((count) => count > 0)) return `${first ? `From round ${rounds[first]} on` : "In all rounds"} it chose its own cluster only; ${share}.${out}`;
    return `It chose other clusters, too, up to the last recorded round; ${share}.${out}`;
  }

  /** The client in a sentence. */
  function said(found, score) {
    const { own, cluster, here, alone } = found;
    if (own.last === null) {
      const tested = found.samples.find(({ part }) => part === "test");
      return `Client ${found.id} has no ${tested?.count === 0 ? "test data" : `${score.label}${tested ? ": it is undefined on its data, or its loss or score is not finite" : ""}`}.`;
    }
    const words = [`${score.label} ${score.text(own.last)}${score.unit}`, `rank ${own.place} of ${own.of}`];
    const against = (value, what) => {
      const gap = own.last - value;
      words.push(`${score.distance(gap)} ${gap < 0 ? "below" : "above"} ${what}`);
    };
    if (own.gain !== null) against(alone.last[found.id], "the same client training alone");
    if (found.mean !== null) against(found.mean, `the mean of ${found.group}`);
    return `${here.method}${here.seed === null ? "" : `, seed ${here.seed}`}${cluster === null ? "" : `, cluster ${cluster}`}: ${words.join(", ")}.`;
  }

  // --- as HTML ---
  const made = (tag, about = {}, ...parts) => {
    const element = Object.assign(document.createElement(tag), about);
    element.append(...parts);
    return element;
  };
  function table(caption, heads, rows) {
    const found = made("table", { className: "one" }, made("caption", {}, made("span", { textContent: caption })));
    found.createTHead().insertRow().append(...heads.map((text) => made("th", { scope: "col", textContent: text })));
    const body = found.createTBody();
    for (const { cells, here } of rows) {
      const row = body.insertRow();
      if (here) row.setAttribute("aria-current", "true");
      row.append(...cells.map((cell, at) => made(at ? "td" : "th", at ? {} : { scope: "row" }, cell)));
    }
    return found;
  }
  const percent = (value) => `${(100 * value).toFixed(0)} %`;
  const few = (value) => (Number.isInteger(value) ? `${value}` : value.toFixed(1));
  const note = (text) => made("p", { className: "note", textContent: text });

  /** The tables below the chart, `left`, and beside it, `right`.
   *
   * @param found what `about` says.
   * @param score how numbers are written.
   * @param choose is called with the client whose button is pressed.
   */
  function tables(found, score, choose) {
    const left = [], parts = [], gains = found.places.some((place) => place.gain !== null);
    parts.push(table(
      `Rank among the clients in each method, same seed and test data`,
      ["method", score.axis, ...(gains ? ["over training alone"] : []), "rank"],
      found.places.map(({ name, here, last, gain, place, of }) => ({
        here,
        cells: [name, last === null ? "–" : score.text(last), ...(gains ? [gain === null ? "–" : score.signed(gain)] : []), place === null ? "–" : `${place} of ${of}`],
      })),
    ));
    const data = found.samples.map(({ part, count, mean }) => ({ cells: [`${part} samples`, few(count), few(mean)] }));
    if (data.length) left.push(table(found.words ? `Data: ${found.words}` : "Data", ["", "this client", "mean of all"], data));
    const { by, here, mixed } = found;
    if (mixed !== null) parts.push(made("p", { className: "note", textContent: `The server mixed its model in ${percent(mixed)} of ${here.recorded} rounds.` }));
    if (!by) return { left, right: parts };
    const known = found.cluster !== null;
    const rows = found.senders.map((sender) => {
      const button = made("button", { type: "button", textContent: `client ${sender.id}` });
      button.addEventListener("click", () => choose(sender.id));
      const share = made("span", { className: "share" }, made("i"), percent(sender.share));
      share.firstChild.style.width = `${Math.max(1, 90 * sender.share)}%`;
      return { cells: [button, share, sender.weight.toFixed(3), ...(known ? [sender.same ? "same" : "other"] : [])] };
    });
    const chosen = table(`Whom it chose, in the ${here.recorded} recorded rounds`, ["sender", "share of rounds", "mean weight", ...(known ? ["cluster"] : [])], rows);
    chosen.classList.add("senders");
    if (rows.length) parts.push(chosen);
    const others = rows.length ? (found.others ? `It chose ${found.others} ${found.others === 1 ? "other" : "others"} no more often. ` : "") : "It chose no other client. ";
    parts.push(made("p", { className: "note", textContent: `${others}It was chosen by ${by.count} ${by.count === 1 ? "client" : "clients"} a round; the mean of all is ${Number(by.mean.toPrecision(3))}.` }));
    return { left, right: parts };
  }

  /** How numbers of a task's score are written; they are in the unit of charts. */
  function writing(about) {
    const text = (value) => (about.percent ? value.toFixed(1) : significant(Math.abs(value), value < 0 ? "−" : ""));
    const signed = (value) => (Number(text(Math.abs(value))) === 0 ? text(0) : `${value < 0 ? "−" : "+"}${text(Math.abs(value))}`);
    const significant = (value, sign) => `${sign}${value >= 1e-6 && value < 1e9 ? value.toFixed(Math.max(0, 2 - Math.floor(Math.log10(value)))) : value.toPrecision(3)}`;
    return { ...about, text, signed, unit: about.percent ? " %" : "", distance: (value) => `${text(Math.abs(value))}${about.percent ? " points" : ""}` };
  }

  /** The part of the page that shows a client.
   *
   * @param clients of the page.
   * @param draw draws a chart's specification in an element.
   * @param dress lets the folds and the buttons of a figure work; it gets the figure and the specification.
   * @param choose is called with the client that the reader wants to see, or null.
   */
  function panel(clients, draw, dress, choose) {
    const byId = (id) => document.getElementById(id), host = byId("one");
    let line = Promise.resolve();
    const close = () => {
      choose(null);
      byId("client").focus();
    };
    byId("one-close").addEventListener("click", close);
    host.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();  // a method that is singled out stays so
      close();
    });
    const knows = (run) => run.clients !== undefined;

    /** Show a client, or nothing.
     *
     * @param run of the slider.
     * @param id of the client; null for none.
     * @param beside what was pointed at with it: a name and a function each.
     */
    function show(run, id, beside = []) {
      host.hidden = id === null || !knows(run);
      if (host.hidden) return byId("one-content").replaceChildren();
      const found = about(clients, run, id), score = writing(run.score), title = `Client ${id}: ${score.label} over rounds`;
      byId("one-name").textContent = `Client ${id}`;
      const words = said(found, score);
      if (byId("one-words").textContent !== words) byId("one-words").textContent = words;
      const content = [], { left, right } = tables(found, score, choose), first = made("div", { className: "half tables" });
      if (beside.length > 1) content.push(made("p", { className: "note wide beside" }, "Also at this place: ", ...beside.filter((one) => !one.here).map((one) => {
        const button = made("button", { type: "button", textContent: one.name });
        button.addEventListener("click", one.open);
        return button;
      })));
      /** A chart that is drawn when those before it are. */
      function add(name, title, words, drawn, ...notes) {
        const chart = made("div", { id: `chart-${name}`, className: "chart" });
        const figure = made("figure", { className: "half" }, made("figcaption", {}, made("h3", { textContent: title }), ...notes), chart);
        [figure.dataset.method, figure.dataset.title] = [found.here.name, title];
        drawn.description = `${title}. ${words}`;
        chart.setAttribute("aria-label", drawn.description);
        chart.style.minHeight = `${drawn.height}px`;
        dress(figure, name, title, drawn);
        first.append(figure);
        line = line.then(() => chart.isConnected && draw(chart, drawn));
      }
      if (rows(found).length) {
        const drawn = spec(found, score, clients.names);
        add("one-client", title, `At the end: ${drawn.ends.join(", ")}.`, drawn.spec);
      }
      first.append(...left);
      if (found.here.choices) {
        const said = saidOfChoices(found), legend = made("p", { className: "note swatches" });
        const kinds = found.here.choices.known ? [["same", "own cluster"], ["other", "other clusters"]] : [["same", "chosen"]];
        for (const [kind, words] of [...kinds, ["gone", "no longer chosen"], ...(found.here.choices.absent[id].some(Boolean) ? [["wash", "dropped out"]] : [])]) legend.append(made("i", { className: kind }), `${words} `);
        add("one-clients-choices", `Client ${id}: whom it chose, round by round`, said, choicesOf(found), note(said), legend);
      }
      const samples = samplesOf(found, clients.names);
      if (samples) add("one-clients-samples", `Client ${id}: training samples by ${found.counted.of}`, saidOfSamples(found), samples, note("Bars: this client; lines: mean of all clients."));
      byId("one-content").replaceChildren(...content, first, made("div", { className: "half tables" }, ...right));
    }
    return { show, knows };
  }

  return { panel, at, writing, apart };
})();
