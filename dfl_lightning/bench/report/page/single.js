"use strict";
// A method that is singled out: every chart shows the others faint. A click on a name does it, in a table, at the end of
// a line or at an axis; a second click, Escape, or the button of the note that says so takes it back.
const single = (() => {
  const parts = "svg path, svg text, svg line, svg rect";
  const charts = new Map(), changed = [];
  let chosen = null, note = null;

  const names = () => [...document.querySelectorAll("button[data-single]")];
  const isKnown = (name) => names().some((button) => button.dataset.single === name);

  /** The method that a mark of Vega's belongs to, or that a label of an axis names. */
  function methodOf(part) {
    const datum = part.__data__?.datum;
    if (datum?.method) return datum.method;
    return [datum?.row, part.tagName === "text" ? datum?.value : null].find(isKnown) ?? null;  // of a study's table, of an axis
  }

  /** Let a chart that has just been drawn take part.
   *
   * @param element of the chart.
   * @param view of Vega.
   * @param spec of the chart.
   * @param rows of the chart.
   */
  function attach(element, view, spec, rows) {
    charts.delete(element);
    if (!["method", "row"].some((field) => field in (rows[0] || {})) || element.closest("figure[data-method]")) return;
    const seen = [...element.querySelectorAll(parts)].filter((part) => part.__data__?.opacity !== 0);  // others are for tooltips
    const marks = seen.map((part) => [part, methodOf(part)]).filter(([, method]) => method);
    for (const [part, method] of marks) if (part.tagName === "text" || isLine(part)) {
      part.classList.add("choice");
      part.addEventListener("click", () => choose(method === chosen ? null : method));
    }
    charts.set(element, { marks, view, line: spec.layer?.find((layer) => layer.mark?.type === "line"), rows });
    paint(element);
  }
  const isLine = (part) => part.closest(".mark-line, .mark-rule") !== null;

  function paint(element) {
    const { marks, view, line, rows } = charts.get(element);
    for (const [part, method] of marks) part.classList.toggle("others", chosen !== null && method !== chosen);
    element.querySelector(".ended")?.remove();
    const last = line && chosen !== null && rows.filter((row) => row.method === chosen).at(-1);
    if (last && !marks.some(([part, method]) => method === chosen && part.tagName === "text")) label(element, view, line.encoding, last);
  }
  /** Write the method's name at the end of its line, where the chart has no room for it among the others. */
  function label(element, view, { x, y }, row) {
    const { left, top } = view.padding(), origin = view.origin();
    const at = Math.min(view.signal("height"), Math.max(0, view.scale("y")(row[y.field])));
    const words = Object.assign(document.createElement("span"), { className: "ended", textContent: chosen });
    element.append(words);
    const room = element.clientWidth - words.offsetWidth;
    words.style.left = `${Math.min(room, origin[0] + left + view.scale("x")(row[x.field]) + 8)}px`;
    words.style.top = `${origin[1] + top + at}px`;
  }

  /** Single a method out, or none: null. */
  function choose(name) {
    chosen = name;
    document.documentElement.classList.toggle("singled", chosen !== null);
    for (const button of names()) {
      const here = button.dataset.single === chosen;
      button.setAttribute("aria-pressed", String(here));
      button.closest("tr")?.classList.toggle("chosen", here && button.closest("thead") === null);
    }
    for (const figure of document.querySelectorAll("figure[data-method]")) figure.classList.toggle("others", chosen !== null && figure.dataset.method !== chosen);
    [...charts.keys()].forEach(paint);
    say();
    for (const tell of changed) tell(chosen);
  }
  function say() {
    note ??= document.body.appendChild(Object.assign(document.createElement("div"), { id: "single" }));
    if (!note.firstChild) {
      note.append(document.createElement("span"), Object.assign(document.createElement("button"), { type: "button", textContent: "Show all" }));
      note.firstChild.setAttribute("role", "status");
      note.lastChild.addEventListener("click", () => choose(null));
    }
    note.hidden = chosen === null;
    note.firstChild.textContent = chosen === null ? "" : `Singled out: ${chosen}`;
  }

  for (const button of names()) button.addEventListener("click", () => choose(button.dataset.single === chosen ? null : button.dataset.single));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && chosen !== null) choose(null);
  });
  return { attach, choose, isKnown, now: () => chosen, whenChanged: (tell) => changed.push(tell) };
})();
