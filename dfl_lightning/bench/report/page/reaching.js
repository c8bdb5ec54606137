"use strict";
// What each method had spent when its score reached the level that the reader types: of each run the first round in which
// it did so counts.
const reaching = (() => {
  const COSTS = { round: ["rounds", ""], mb: ["received", "MB a client"], simulated: ["simulated time", "seconds"] };
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const deviation = (values) => Math.sqrt(values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1));

  const around = (values, places) => (values.length > 1 ? `± ${deviation(values) ? deviation(values).toFixed(places) : 0}` : "");

  /** Digits after the point: none for whole numbers, one, or of a number below 1 as many as show three. */
  function digits(kind, values) {
    const value = mean(values);
    if (kind === "round") return values.length > 1 ? 1 : 0;
    return value > 0 && value < 1 ? 2 - Math.floor(Math.log10(value)) : 1;
  }
  /** What the runs of a method had spent when they reached a level: for each cost a list over the runs that did. */
  function spent(method, level) {
    const found = Object.fromEntries(Object.keys(COSTS).map((kind) => [kind, []]));
    for (const run of method.runs) {
      const at = run.level.findIndex((one) => one >= level);
      for (const kind of at < 0 ? [] : Object.keys(COSTS)) if (run[kind]) found[kind].push(run[kind][at]);
    }
    return found;
  }
  /** The costs of single runs; of many the least and the largest. */
  function apart(kind, values) {
    const order = [...values].sort((a, b) => a - b).map((value) => value.toFixed(kind === "round" ? 0 : digits(kind, [value])));
    return order.length > 3 ? `${order[0]} to ${order.at(-1)}` : `${order.slice(0, -1).join(", ")}${order.length > 1 ? " and " : ""}${order.at(-1)}`;
  }
  function cell(row, tag, text, more = "") {
    const made = row.appendChild(document.createElement(tag));
    made.textContent = text;
    if (more) made.append(" ", Object.assign(document.createElement("i"), { textContent: more }));
    return made;
  }
  function fill(task, table, value) {
    const level = Math.ceil((task.sign * value) / task.unit - 1e-6), rows = task.methods.map((method) => [method, spent(method, level)]);
    const kinds = Object.keys(COSTS).filter((kind) => task.methods.some((method) => method.runs.some((run) => run[kind])));
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
        const values = found[kind], places = values.length && digits(kind, values);
        if (values.length && values.length < method.runs.length) {  // a mean of those that do would look cheaper than the method is
          cell(row, "td", apart(kind, values), `${values.length} of ${method.runs.length} seeds`);
        } else cell(row, "td", values.length ? mean(values).toFixed(places) : "–", around(values, places));
      }
      cell(row, "td", `${found.round.length} of ${method.runs.length}`);
    }
    const caption = document.createElement("caption"), words = `Until test ${task.label} is ${value}${task.percent ? " %" : ""} or ${task.sign > 0 ? "more" : "less"}`;
    caption.append(Object.assign(document.createElement("span"), { textContent: words }));
    table.replaceChildren(caption, head, body);
  }

  /** Let the fields work.
   *
   * @param tasks what `contents/reaching.py` has made.
   */
  function offer(tasks) {
    tasks.forEach((task, number) => {
      const field = document.getElementById(`reach-${number}`), table = field.closest("p").nextElementSibling.querySelector("table");
      const show = () => Number.isFinite(field.valueAsNumber) && fill(task, table, field.valueAsNumber);
      field.addEventListener("input", show);
      show();
    });
  }
  return { offer };
})();
