"use strict";
// In charts of lines a rule through the pointer's place, and beside it all methods there, the highest first: at a round
// or a rank, or with what they had reached for a cost.
const crosshair = (() => {
  const PLACES = { round: "round", rank: "place", cost: "" }, VALUES = ["mean", "value"], MOST = 16;
  const BANDS = ["p90", "p75", "median", "p25", "p10", "worst tenth"]; // what a round of a chart of one run's clients has
  const NEAR = 14; // pixels between the pointer and the line that it is said to be on
  const isInvisible = (layer) => layer.mark?.opacity === 0;
  const isLine = (layer) => layer.mark?.type === "line";

  /** The rows of a layer, which are in it or beside it. */
  const held = (spec, layer) => layer.data?.values ?? spec.datasets?.[layer.data?.name] ?? [];
  /** Where a chart's points stand and what they are worth: names of fields; null where lines have no places in common. */
  function fields(spec, rows) {
    const first = rows[0] || {}, { x, y, color, strokeDash } = spec.layer?.find(isLine)?.encoding ?? {}, at = x?.field;
    const value = VALUES.find((name) => name in first) ?? y?.field;
    const of = ["method", "client"].find((name) => name in first);
    if (!(at in PLACES && value in first && of && (at === "rank" || "round" in first))) return null;
    const flat = spec.layer.filter((layer) => layer.encoding?.x?.field === "from").flatMap((layer) => held(spec, layer));
    const percent = y.axis.title.includes(", %");
    const bands = BANDS[0] in first;
    return { at, of, value, bands, colour: bands ? null : color?.field, dash: strokeDash?.field, percent, title: PLACES[at] || x.axis.title.split(",")[0], flat: flat.map((row) => ({ ...row, [at]: row.from })) };
  }
  /** The chart without its invisible points, thousands of them, which only tooltips need. */
  const lighter = (spec) => ({ ...spec, layer: spec.layer.filter((layer) => !isInvisible(layer)) });

  /** Say beside the pointer what is at its place.
   *
   * @param element of the chart.
   * @param view of Vega.
   * @param rows of the chart, with a method or a client each.
   * @param found what `fields` says of it.
   */
  function attach(element, view, rows, { at, of, value, bands, colour, dash, percent, title, flat }) {
    const each = bands ? rows.flatMap((row) => BANDS.map((name) => ({ ...row, [of]: name, [value]: row[name] }))) : rows;
    const known = [...each, ...flat].filter((row) => row[value] !== null);
    const byPlace = known.reduce((map, row) => map.set(row[at], [...(map.get(row[at]) || []), row]), new Map());
    const places = [...byPlace.keys()].sort((a, b) => a - b);
    const rule = Object.assign(document.createElement("div"), { className: "crosshair", hidden: true });
    element.append(rule);
    const box = document.getElementById("tip") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
    const leave = () => {  // the words of another chart stay when this one is drawn
      rule.hidden = true;
      if ([undefined, element.id].includes(box.dataset.of)) box.hidden = true;
    };
    const reached = (cost) => [...known.reduce((map, row) => (row[at] <= cost ? map.set(row[of], row) : map), new Map()).values()];
    leave();
    element.onpointerleave = leave;
    element.onpointermove = (event) => {
      const svg = element.querySelector("svg"), frame = svg.getBoundingClientRect(), padding = view.padding();
      const left = view.origin()[0] + padding.left, top = view.origin()[1] + padding.top;
      const x = event.clientX - frame.left - left, y = event.clientY - frame.top - top;
      const width = view.signal("width"), height = view.signal("height");
      if (x < -4 || x > width + 4 || y < -4 || y > height + 4) return leave();
      const scale = view.scale("x"), wanted = scale.invert(Math.max(0, Math.min(width, x)));
      const place = at === "cost" ? wanted : places.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
      const here = at === "cost" ? reached(place) : [...byPlace.get(place)];
      Object.assign(rule.style, { left: `${left + scale(place)}px`, top: `${top}px`, height: `${height}px` });
      box.dataset.of = element.id;
      rule.hidden = box.hidden = false;
      say(at === "cost" ? Number(place.toPrecision(3)) : place, here.sort((a, b) => b[value] - a[value]), y);
      const before = event.clientX - 16 - box.offsetWidth, after = event.clientX + 16;  // names at the ends of lines stay free
      box.style.left = `${after + box.offsetWidth > innerWidth || (x > width / 2 && before > 0) ? Math.max(4, before) : after}px`;
      box.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - box.offsetHeight - 4))}px`;
    };
    /** A share with a digit after the point, another number with three that count, and its deviation with as many. */
    function numbers(number, sd) {
      const digits = percent ? 1 : Math.min(20, Math.max(0, 2 - Math.floor(Math.log10(Math.abs(number) || 1))));
      return [number, ...(typeof sd === "number" ? [sd] : [])].map((one) => one.toFixed(digits)).join(" ± ");
    }
    /** The methods at a place: of many those around the one that is singled out, or else around the pointer. */
    function say(place, here, y) {
      const away = here.map((row) => (row[of] === single.now() ? -1 : Math.abs(view.scale("y")(row[value]) - y)));
      const least = Math.min(...away), nearest = away.indexOf(least);
      const first = Math.max(0, Math.min(nearest - MOST / 2, here.length - MOST)), below = here.length - first - MOST;
      const table = document.createElement("table");
      const add = (name, text) => {
        const line = table.insertRow();
        [name, text].forEach((words, index) => Object.assign(line.insertCell(), { textContent: words, className: index ? "value" : "key" }));
        return line;
      };
      add(title, place);
      if (first > 0) add(`${first} above`, "");
      here.slice(first, first + MOST).forEach((row, index) => {
        const line = add(row[of], numbers(row[value], row.sd));
        if (colour) line.cells[0].prepend(key(row));
        line.classList.toggle("near", first + index === nearest && least <= NEAR);
      });
      if (below > 0) add(`${below} below`, "");
      box.replaceChildren(table);
    }
    /** A piece of a row's line. */
    function key(row) {
      const drawn = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(drawn.namespaceURI, "line");
      const look = { x2: 20, y1: 2, y2: 2, "stroke-width": 3, stroke: view.scale("color")(row[colour]), ...(dash ? { "stroke-dasharray": view.scale("strokeDash")(row[dash]) } : {}) };
      for (const [name, text] of Object.entries(look)) line.setAttribute(name, text);
      for (const [name, text] of Object.entries({ width: 20, height: 4, "aria-hidden": "true" })) drawn.setAttribute(name, text);
      drawn.append(line);
      return drawn;
    }
  }
  // What stands beside the pointer is of another place once the page has moved below it.
  let pointed = 0; // where the page was when the pointer last moved
  addEventListener("pointermove", () => (pointed = scrollY), { capture: true, passive: true });
  addEventListener("scroll", () => {
    if (scrollY === pointed) return;
    for (const part of document.querySelectorAll(".crosshair, #tip")) part.hidden = true;
    document.querySelector("#vg-tooltip-element")?.classList.remove("visible");
  }, { passive: true });
  return { held, fields, lighter, attach };
})();
