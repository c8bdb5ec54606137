"use strict";
// The table of runs without its look: rows that come and go, and which of them are shown in which order and groups.
const table = (() => {
  const FIRST = ["run", "method", "status", "rounds"], NUMBERS = ["seed", "MB received", "seconds", "changed"], LAST = ["note"];
  const POLICIES = ["topology", "selection", "threshold", "substitution", "aggregation", "dropout", "outgoing", "objective", "prediction", "model", "data", "trainer"];
  const rows = new Map(), parts = [], columns = new Map(); // rows by id; parts of configs; by column the number of rows of each value
  let start = "", version = 0;

  const isScore = (name) => name.startsWith("test ") || name === "worst tenth";
  function rankOf(name) {
    if (FIRST.includes(name)) return FIRST.indexOf(name);
    if (isScore(name)) return 10 + (name === "worst tenth");
    if (NUMBERS.includes(name)) return 20 + NUMBERS.indexOf(name);
    if (LAST.includes(name)) return 30;
    const place = POLICIES.indexOf(name.split(".")[0]);
    return 40 + (place < 0 ? POLICIES.length : place);
  }
  const isSetting = (name) => rankOf(name) >= 40;

  const tops = new Map();
  /** The first word of a setting's name, which says in which part of the config it stands. */
  function topOf(name) {
    if (!tops.has(name)) tops.set(name, name.split(".")[0]);
    return tops.get(name);
  }
  /** The value of a row in a column; undefined if it has none. */
  const value = (row, name) => row.cells[name] ?? row.parts[topOf(name)]?.settings[name];

  /** Take what has changed; true if anything has. */
  function take(answer) {
    if (answer.start !== start) {
      rows.clear();
      parts.length = 0;
    }
    [start, version] = [answer.start, answer.version];
    for (const settings of answer.parts) {
      const names = Object.keys(settings);
      parts.push({ settings: Object.assign(Object.create(null), settings), names, tops: [...new Set(names.map(topOf))], rows: 0, text: null });
    }
    answer.gone.forEach((id) => rows.delete(id));
    for (const [id, cells, numbers] of answer.rows) {
      const row = { cells: Object.create(null), parts: Object.create(null), numbers };
      cells.forEach((held, at) => held !== null && (row.cells[answer.columns[at]] = held));
      for (const number of numbers) for (const top of parts[number].tops) row.parts[top] = parts[number];
      rows.set(id, row);
    }
    const isNew = answer.rows.length + answer.gone.length > 0;
    if (isNew) count();
    return isNew;
  }
  /** Count the rows with each value of each column. */
  function count() {
    columns.clear();
    const add = (name, held, number) => {
      if (!columns.has(name)) columns.set(name, new Map());
      columns.get(name).set(held, (columns.get(name).get(held) ?? 0) + number);
    };
    for (const part of parts) part.rows = 0;
    for (const row of rows.values()) {
      for (const name in row.cells) add(name, row.cells[name], 1);
      for (const number of row.numbers) parts[number].rows += 1;
    }
    for (const part of parts) if (part.rows) for (const name of part.names) add(name, part.settings[name], part.rows);
  }
  /** All words of a row, in small letters. */
  function textOf(row) {
    const own = Object.values(row.cells).join("\n").toLowerCase();
    return [own, ...row.numbers.map((number) => (parts[number].text ??= Object.values(parts[number].settings).join("\n").toLowerCase()))].join("\n");
  }

  /** Names of all columns, in order; the settings that differ come before those that all runs share. */
  function names() {
    return [...columns.keys()].sort((a, b) => rankOf(a) - rankOf(b) || (a < b ? -1 : 1));
  }
  /** True if not all runs have one value in a column. */
  function differs(name) {
    const values = columns.get(name);
    return !values || values.size > 1 || [...values.values()][0] < rows.size;
  }
  const isNumeric = (name) => [...(columns.get(name)?.keys() ?? [])].every((value) => typeof value === "number");

  const collator = new Intl.Collator("en", { numeric: true });
  /** Numbers by size, then texts; what is missing comes last, in both directions. */
  function compare(a, b, down) {
    if (a === b) return 0;
    if (a === undefined) return 1;
    if (b === undefined) return -1;
    const order = typeof a === typeof b ? (typeof a === "number" ? a - b : collator.compare(a, b)) : typeof a === "number" ? -1 : 1;
    return down ? -order : order;
  }

  const HOW = {
    is: (a, b) => String(a ?? "") === b || (typeof a === "number" && b.trim() !== "" && a === Number(b)),
    not: (a, b) => !HOW.is(a, b),
    has: (a, b) => String(a ?? "").toLowerCase().includes(b.toLowerCase()),
    less: (a, b) => order(a, b, (x) => x < 0),
    most: (a, b) => order(a, b, (x) => x <= 0),
    more: (a, b) => order(a, b, (x) => x > 0),
    least: (a, b) => order(a, b, (x) => x >= 0),
  };
  function order(a, b, holds) {
    if (a === undefined) return false;
    const number = Number(b);
    return typeof a === "number" && !Number.isNaN(number) ? holds(a - number) : typeof a === "string" && holds(a < b ? -1 : a > b ? 1 : 0);
  }

  /** The ids of the rows that pass, in order.
   *
   * @param state `words` to find, `filters` of column, comparison and value each, `sort` and `down`.
   */
  function passing({ words, filters, sort, down }) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const [id, row] of rows) {
      if (!filters.every(([column, how, wished]) => HOW[how]?.(value(row, column), wished) ?? true)) continue;
      if (wanted.length) {
        const text = textOf(row);
        if (!wanted.every((word) => text.includes(word))) continue;
      }
      found.push({ id, key: value(row, sort), name: row.cells.run });
    }
    found.sort((a, b) => compare(a.key, b.key, down) || (a.name < b.name ? -1 : 1));
    return found.map(({ id }) => id);
  }

  /** What the table shows, from top to bottom: `{ id }` of rows, and `{ key, ids, depth, column, value }` of groups.
   *
   * @param ids of the rows, in order.
   * @param by the columns to group by.
   * @param closed keys of the groups whose rows are not shown.
   */
  function lines(ids, by, closed, depth = 0, above = "") {
    if (!by.length) return ids.map((id) => ({ id }));
    const groups = new Map();
    for (const id of ids) {
      const held = value(rows.get(id), by[0]);
      groups.has(held) ? groups.get(held).push(id) : groups.set(held, [id]);
    }
    return [...groups].sort(([a], [b]) => compare(a, b, false)).flatMap(([held, inside]) => {
      const key = `${above}${JSON.stringify([by[0], held ?? null])}`;
      const head = { key, ids: inside, depth, column: by[0], value: held };
      return closed.has(key) ? [head] : [head, ...lines(inside, by.slice(1), closed, depth + 1, key)];
    });
  }

  const pad = (digits) => String(digits).padStart(2, "0");
  function moment(seconds) {
    const date = new Date(1000 * seconds);
    return `${date.getFullYear()}-${pad(date.getMonth() + 1)}-${pad(date.getDate())} ${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;
  }
  /** A value of a column in letters. */
  const text = (held, name) => (held === undefined ? "" : typeof held !== "number" ? held : name === "changed" ? moment(held) : number(held));
  function number(value) {
    if (Number.isInteger(value)) return String(value);
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-4 ? value.toExponential(2) : String(Number(value.toPrecision(size >= 1 ? 4 : 3)));
  }
  /** What a group says in a column: the value of all, the mean of numbers, or how many values there are. */
  function summary(ids, name) {
    const values = ids.map((id) => value(rows.get(id), name)), known = values.filter((value) => value !== undefined);
    if (!known.length) return "";
    const kinds = new Set(values);
    if (kinds.size === 1) return text(known[0], name);
    if (known.every((value) => typeof value === "number") && (isScore(name) || name === "seconds" || name === "MB received")) {
      const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
      const sd = Math.sqrt(known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / Math.max(1, known.length - 1));
      return known.length > 1 ? `${number(mean)} ± ${Number(sd.toPrecision(2))}` : number(mean);
    }
    return `${kinds.size} values`;
  }
  return {
    rows, columns, value, take, names, differs, isNumeric, isSetting, isScore, passing, lines, text, summary,
    get asked() { return `/rows?start=${start}&after=${version}&parts=${parts.length}`; },
  };
})();
