"use strict";
// What the page shows, as its address: `#who?run=DPFL&seed=1&round=12&client=7` of "who learns from whom", and
// `method=DPFL` of the method that is singled out. A link or a reload shows the same again; what an address names and the
// page lacks is left as it was.
const address = (() => {
  const WHO = "who", FIRST = "verdict";
  let who = null, method = null, section = FIRST, others = () => [];

  /** The words of an address for the shown run, round and client. */
  function wordsOf(runs, { at, step, picked, shaded = "cluster" }) {
    const run = runs[at], words = new URLSearchParams({ run: run.method });
    if (runs.filter((other) => other.method === run.method).length > 1) words.set("seed", run.seed);
    words.set("round", run.rounds[step].round);
    if (picked !== null) words.set("client", picked);
    if (shaded !== "cluster") words.set("colour", shaded);
    return words;
  }
  /** The address for the shown run, round and client. */
  const text = (runs, shown) => `#${WHO}?${wordsOf(runs, shown)}`;

  /** What an address names of these runs: `at`, `step` and `picked`; null where it names nothing. */
  function read(runs, hash) {
    const words = wordsIn(hash, WHO), seed = words?.get("seed");
    const at = words ? runs.findIndex((run) => run.method === words.get("run") && (seed === null || String(run.seed) === seed)) : -1;
    if (at < 0) return null;
    const run = runs[at], rounds = run.rounds.map((entry) => entry.round), client = Number(words.get("client") ?? NaN);
    const step = words.has("round") ? rounds.findLastIndex((round) => round <= Number(words.get("round"))) : -1;
    const known = run.nodes.some((node) => !node.server && node.id === client);
    const found = { at, step: Math.max(0, step), picked: known ? client : null, shaded: shade.CHOICES.find((kind) => kind === words.get("colour")) ?? "cluster" };
    who = wordsOf(runs, found);
    return found;
  }
  function wordsIn(hash, wanted) {
    const [section, query] = hash.slice(1).split("?");
    return query && (!wanted || section === wanted) ? new URLSearchParams(query) : null;
  }
  /** The method that an address singles out; null where it names none. */
  function methodIn(hash) {
    const found = wordsIn(hash)?.get("method") ?? null;
    if (found !== null) section = hash.slice(1).split("?")[0];
    return found;
  }

  // Browsers refuse more than some hundred changes of an address in half a minute, and a slider makes more.
  let waiting = null;
  function later() {
    clearTimeout(waiting);
    waiting = setTimeout(() => {
      const words = new URLSearchParams(who ?? "");
      if (method !== null) words.set("method", method);
      for (const [name, value] of others()) words.set(name, value);
      history.replaceState(history.state, "", String(words) ? `#${who ? WHO : section}?${words}` : location.href.split("#")[0]);
    }, 250);
  }
  function write(runs, shown) {
    who = wordsOf(runs, shown);
    later();
  }
  /** Keep the method that is singled out; null: none. */
  function writeMethod(name) {
    method = name;
    later();
  }
  /** Keep further words: of the columns that the reader has picked.
   *
   * @param found returns pairs of a name and a value.
   */
  function writeOthers(found) {
    others = found;
    if (who === null) section = "columns";
    later();
  }
  /** A link to a section keeps the method that is singled out. */
  function enter(hash) {
    if (hash.includes("?")) return;
    [who, section] = [null, hash.slice(1) || FIRST];
    if (method !== null || others().length) later();
  }
  return { read, write, text, methodIn, writeMethod, writeOthers, wordsIn, enter };
})();
