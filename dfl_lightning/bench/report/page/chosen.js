"use strict";
// Whom a client chose in one round, in words, and the field at the top of the page that opens a client.
const chosen = (() => {
  const byId = (id) => document.getElementById(id);
  const listed = (ids) => (ids.length > 1 ? `${ids.slice(0, -1).join(", ")} and ${ids.at(-1)}` : `${ids[0]}`);

  /** Whom a client chose, by ground-truth cluster where those are known, and what is new and no longer so.
   *
   * @param run whose links are known one by one.
   * @param step of the slider.
   * @param id of the client.
   */
  function words(run, step, id) {
    const of = (...states) => run.decoded[step].filter((link) => link.receiver === id && states.includes(link.state)).map((link) => link.sender).sort((a, b) => a - b);
    const all = of("kept", "new"), fresh = of("new"), gone = of("dropped"), clusters = run.nodes.map((node) => node.cluster);
    const out = run.rounds[step].absent.includes(id) ? " It dropped out." : "";
    const before = gone.length ? `; no longer ${listed(gone)}` : "";
    if (!all.length) return `In round ${run.rounds[step].round} it chose no other client${before}.${out}`;
    const isKnown = new Set(clusters).size > 1, [same, other] = [true, false].map((own) => all.filter((sender) => (clusters[sender] === clusters[id]) === own));
    const parts = isKnown ? [same.length && `${listed(same)} of its own cluster`, other.length && `${listed(other)} of other clusters`].filter(Boolean) : [listed(all)];
    return `In round ${run.rounds[step].round} it chose ${parts.join(", ")}${fresh.length ? `; new ${fresh.length > 1 ? "are" : "is"} ${listed(fresh)}` : ""}${before}.${out}`;
  }

  /** Say whom the shown client chose in the round of the slider, or why its links are not known one by one.
   *
   * @param run of the slider.
   * @param step of the slider.
   * @param id of the client; null for none.
   */
  function show(run, step, id) {
    byId("one-round").hidden = id === null || Boolean(run.unknown);
    byId("one-unknown").hidden = id === null || !run.unknown;
    byId("one-unknown").textContent = run.unknown || "";
    if (byId("one-round").hidden) return;
    Object.assign(byId("one-at"), { min: run.rounds[0].round, max: run.rounds.at(-1).round });
    if (document.activeElement !== byId("one-at")) byId("one-at").value = run.rounds[step].round;
    byId("one-chose").textContent = words(run, step, id);
  }

  /** Let both fields work.
   *
   * @param open opens a client by its number.
   * @param move goes to the last recorded round that is not after a round.
   */
  function offer(open, move) {
    byId("open").addEventListener("submit", (event) => {
      event.preventDefault();
      byId("open-id").blur();  // from now on it has the number of the client that is open
      open(byId("open-id").valueAsNumber);
    });
    byId("one-at").addEventListener("input", () => Number.isFinite(byId("one-at").valueAsNumber) && move(byId("one-at").valueAsNumber));
  }
  return { show, offer, words };
})();
