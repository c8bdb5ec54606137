"use strict";
// The time line of trouble of the run that the reader chooses: a lane for each kind of event, its marks over the rounds.
const trouble = (() => {
  const STYLES = { diverged: "bad", "training loss explodes": "bad", "dropped out": "gone", "at chance level": "other", "no progress": "plateau", "links to adversaries": "bad", "links that are new": "same" };
  const LANE = 30, FRAME = 64, LEAST = 0.12; // pixels of a lane and of what is around them, and the least opacity of a mark
  let runs = [], at = 0;

  const nameOf = (run) => (run.seed === null ? run.method : `${run.method}, seed ${run.seed}`);
  const buttons = () => [...document.querySelectorAll("[data-trouble]")];

  /** Let the names in the table choose a run.
   *
   * @param found what `contents/trouble.py` has made.
   * @param again draws the time line.
   */
  function offer(found, again) {
    runs = found;
    for (const button of buttons()) button.addEventListener("click", () => {
      at = Number(button.dataset.trouble);
      again();
    });
    const all = document.getElementById("trouble-all");
    all?.addEventListener("click", () => {
      const open = document.querySelector("table.trouble").classList.toggle("whole");
      all.setAttribute("aria-expanded", String(open));
      all.textContent = open ? "Fewer" : `All ${runs.length} runs`;
    });
  }
  /** The chart of the chosen run in Vega-Lite, without a theme; null without runs. */
  function shown() {
    if (!runs.length) return null;
    const run = runs[at], lanes = [...new Set(run.events.map((event) => event.what))], title = `Time line of ${nameOf(run)}`;
    document.getElementById("trouble-title").textContent = title;
    document.getElementById("chart-trouble").closest("figure").dataset.title = title;
    for (const button of buttons()) button.setAttribute("aria-pressed", String(Number(button.dataset.trouble) === at));
    const values = run.events.map(({ clients, ...event }) => ({ ...event, client: clients[0] ?? null }));
    const x = (field) => ({ field, type: "quantitative", scale: { nice: false, domain: [0.5, run.last + 0.5] }, axis: { title: "round", format: "d", tickMinStep: 1, tickCount: 10 } });
    const y = { field: "what", type: "nominal", scale: { domain: lanes, paddingInner: 0.35 }, axis: { title: null, grid: false, labelLimit: 160 } };
    const tooltip = [{ field: "words", type: "nominal", title: "what" }, { field: "from", type: "quantitative", title: "round" }, { field: "to", type: "quantitative" }];
    const layer = lanes.map((lane) => ({
      data: { values }, transform: [{ filter: `datum.what === '${lane}' && datum.share > 0` }, { calculate: "datum.from - 0.5", as: "left" }, { calculate: "datum.to + 0.5", as: "right" }],
      mark: { type: "rect", style: STYLES[lane], clip: true, cursor: "pointer" },
      encoding: { x: x("left"), x2: { field: "right" }, y, tooltip, opacity: { field: "share", type: "quantitative", legend: null, scale: { domain: [0, 1], range: [LEAST, 1] } } },
    }));
    const said = Object.entries(run.summary).filter(([, words]) => words).map(([lane, words]) => `${lane}: ${words}`);
    return { height: FRAME + LANE * lanes.length, autosize: { type: "fit", contains: "padding" }, description: `${title}. ${said.join("; ")}.`, layer };
  }
  const now = () => runs[at];
  /** The clients of a mark of the shown time line, the first one first. */
  const clientsOf = (mark) => runs[at].events.find((event) => ["what", "from", "words"].every((name) => event[name] === mark[name]))?.clients ?? [];
  return { offer, shown, now, clientsOf };
})();
