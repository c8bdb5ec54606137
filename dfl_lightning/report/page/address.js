"use strict";
// What "who learns from whom" shows, as the address of the page: `#who?run=DPFL&seed=1&round=12&client=7`. A link or a
// reload shows the same again; what an address names and the page lacks is left as it was.
const address = (() => {
  const SECTION = "who";

  /** The words of an address for the shown run, round and client. */
  function text(runs, { at, step, picked }) {
    const run = runs[at], words = new URLSearchParams({ run: run.method });
    if (runs.filter((other) => other.method === run.method).length > 1) words.set("seed", run.seed);
    words.set("round", run.rounds[step].round);
    if (picked !== null) words.set("client", picked);
    return `#${SECTION}?${words}`;
  }

  /** What an address names of these runs: `at`, `step` and `picked`; null where it names nothing. */
  function read(runs, hash) {
    const [section, query] = hash.slice(1).split("?");
    if (section !== SECTION || !query) return null;
    const words = new URLSearchParams(query), seed = words.get("seed");
    const at = runs.findIndex((run) => run.method === words.get("run") && (seed === null || String(run.seed) === seed));
    if (at < 0) return null;
    const run = runs[at], rounds = run.rounds.map((entry) => entry.round), client = Number(words.get("client") ?? NaN);
    const step = words.has("round") ? rounds.findLastIndex((round) => round <= Number(words.get("round"))) : -1;
    const known = !run.groups && run.nodes.some((node) => !node.server && node.id === client);
    return { at, step: Math.max(0, step), picked: known ? client : null };
  }

  // Browsers refuse more than some hundred changes of an address in half a minute, and a slider makes more.
  let waiting = null;
  function write(runs, shown) {
    clearTimeout(waiting);
    waiting = setTimeout(() => history.replaceState(null, "", text(runs, shown)), 250);
  }
  return { read, write, text };
})();
