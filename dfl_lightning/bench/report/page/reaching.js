"use strict";
// What each method had spent when its score reached the level that the reader types: of each run the first round in which
// it did so counts.
const reaching = (() => {
  const COSTS = { round: ["rounds", ""], mb: ["received", "MB a client"], simulated: ["simulated time", "seconds"] };
  const NAMED = 6;  // seeds that a cell names
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const deviation = (values) => Math.sqrt(values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1));

  const around = (values, places) => (values.length > 1 ? `± ${deviation(values) ? deviation(values).toFixed(places) : 0}` : "");

  /** Digits after the point of all numbers in a column: one, or of numbers below 1 as many as show three of the least. */
  function digits(kind, columns) {
    if (kind === "round") return columns.some((values) => values.length > 1) ? 1 : 0;
    const known = columns.filter((values) => values.length).map(mean).filter((value) => value > 0).sort((a, b) => a - b);
    if (!(known[0] < 1)) return 1;
    const middle = (known[(known.length - 1) >> 1] + known[known.length >> 1]) / 2;
    return Math.max(1, Math.min(2 - Math.floor(Math.log10(known[0])), 3 - Math.floor(Math.log10(middle))));
  }
  /** What a run had spent when it reached a level, by cost; null if it did not. */
  function spentBy(run, level) {
    const at = run.level.findIndex((one) => one >= level);
    return at < 0 ? null : Object.fromEntries(Object.keys(COSTS).filter((kind) => run[kind]).map((kind) => [kind, run[kind][at]]));
  }
  /** The same of the runs of a method that reached it, a list for each cost; and the seeds of all runs, by whether they did. */
  function spent(method, level) {
    const found = Object.fromEntries(Object.keys(COSTS).map((kind) => [kind, []])), seeds = { yes: [], no: [] };
    for (const run of method.runs) {
      const costs = spentBy(run, level);
      (costs ? seeds.yes : seeds.no).push(run.seed);
      for (const [kind, value] of Object.entries(costs || {})) found[kind].push(value);
    }
    return { ...found, seeds };
  }
  /** Names of seeds, which runs from Python may lack; the others of many are counted. */
  function named(seeds, most = seeds.length) {
    const known = seeds.filter((seed) => seed !== null), more = known.length - most;
    if (!known.length) return "";
    return `seed${known.length > 1 ? "s" : ""} ${known.slice(0, most).join(", ")}${more > 0 ? ` and ${more} more` : ""}`;
  }
  /** The costs of single runs; of many the least and the largest. */
  function apart(values, places) {
    const order = [...values].sort((a, b) => a - b).map((value) => value.toFixed(places));
    return order.length > 3 ? `${order[0]} to ${order.at(-1)}` : `${order.slice(0, -1).join(", ")}${order.length > 1 ? " and " : ""}${order.at(-1)}`;
  }
  function cell(row, tag, text, more = "") {
    const made = row.appendChild(document.createElement(tag));
    made.textContent = text;
    if (more) made.append(" ", Object.assign(document.createElement("i"), { textContent: more }));
    return made;
  }
  const levelOf = (task, value) => Math.ceil((task.sign * value) / task.unit - 1e-6);
  const kindsOf = (task) => Object.keys(COSTS).filter((kind) => task.methods.some((method) => method.runs.some((run) => run[kind])));
  function fill(task, table, value) {
    const level = levelOf(task, value), rows = task.methods.map((method) => [method, spent(method, level)]), kinds = kindsOf(task);
    const head = document.createElement("thead"), body = document.createElement("tbody"), top = head.insertRow();
    for (const [words, unit] of [["method", ""], ...kinds.map((kind) => COSTS[kind]), ["reach it", "seeds"]]) {
      const made = cell(top, "th", words);
      made.scope = "col";
      if (unit) made.append(Object.assign(document.createElement("small"), { textContent: unit }));
    }
    for (const [method, found] of rows) {
      const row = body.insertRow();
      cell(row, "th", method.name).scope = "row";
      for (const kind of kinds) {
        const values = found[kind], places = digits(kind, rows.map(([, costs]) => costs[kind]));
        if (values.length && values.length < method.runs.length) {  // a mean of those that do would look cheaper than the method is
          cell(row, "td", apart(values, kind === "round" ? 0 : places), `${values.length} of ${method.runs.length} seeds`);
        } else cell(row, "td", values.length ? mean(values).toFixed(places) : "–", around(values, places));
      }
      const { yes, no } = found.seeds, isPart = yes.length > 0 && no.length > 0;
      const reach = cell(row, "td", `${yes.length} of ${method.runs.length}`, isPart ? named(yes, NAMED) : "");
      reach.title = [[yes, "reached by"], [no, "not reached by"]].map(([seeds, words]) => [words, named(seeds)]).filter(([, seeds]) => seeds).map((pair) => pair.join(" ")).join("; ");
    }
    const caption = document.createElement("caption"), words = `Until test ${task.label} is ${value}${task.percent ? " %" : ""} or ${task.sign > 0 ? "more" : "less"}`;
    caption.append(Object.assign(document.createElement("span"), { textContent: words }));
    table.replaceChildren(caption, head, body);
  }

  /** The rows of the file: a run each, without costs if it does not reach the level. */
  function rowsOf(task, value) {
    const level = levelOf(task, value), kinds = kindsOf(task);
    return task.methods.flatMap((method) => method.runs.map((run) => {
      const costs = spentBy(run, level), of = (kind) => [COSTS[kind].filter(Boolean).join(", "), costs?.[kind] ?? ""];
      return { method: method.name, seed: run.seed ?? "", [`test ${task.label}${task.percent ? ", %" : ""}`]: value, reached: costs ? "yes" : "no", ...Object.fromEntries(kinds.map(of)) };
    }));
  }
  /** Let the fields work, and the buttons that save the numbers.
   *
   * @param tasks what `contents/reaching.py` has made.
   * @param save writes rows into a file of a name.
   */
  function offer(tasks, save) {
    for (const button of document.querySelectorAll("[data-reach]")) button.addEventListener("click", () => {
      const number = Number(button.dataset.reach), value = document.getElementById(`reach-${number}`).valueAsNumber;
      if (Number.isFinite(value)) save(`reaching-a-score${tasks.length > 1 ? `-${number + 1}` : ""}.csv`, rowsOf(tasks[number], value));
    });
    tasks.forEach((task, number) => {
      const field = document.getElementById(`reach-${number}`), table = document.querySelectorAll("table.reaching")[number];
      const show = () => Number.isFinite(field.valueAsNumber) && fill(task, table, field.valueAsNumber);
      field.addEventListener("input", show);
      show();
    });
  }
  return { offer };
})();
