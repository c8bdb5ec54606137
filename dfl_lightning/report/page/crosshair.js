"use strict";
// In charts whose lines have points at the same places, rounds or ranks: a line through the pointer's place, and beside it
// all methods there, the highest first.
const crosshair = (() => {
  const PLACES = { round: "round", rank: "place" }, VALUES = ["mean", "value", "accuracy"], MOST = 16;
  const isInvisible = (layer) => layer.mark?.opacity === 0;
  const isLine = (layer) => layer.mark?.type === "line";

  /** Where a chart's points stand and what they are worth: names of fields; null where lines have no places in common. */
  function fields(spec, rows) {
    const first = rows[0] || {}, at = spec.layer?.find(isLine)?.encoding?.x?.field;
    const value = VALUES.find((name) => name in first);
    return at in PLACES && value && "method" in first ? { at, value } : null;
  }
  /** The chart without its invisible points, thousands of them, which only tooltips need. */
  const lighter = (spec) => ({ ...spec, layer: spec.layer.filter((layer) => !isInvisible(layer)) });

  /** Say beside the pointer what is at its place.
   *
   * @param element of the chart.
   * @param view of Vega.
   * @param rows of the chart, with a method each.
   * @param found what `fields` says of it.
   */
  function attach(element, view, rows, { at, value }) {
    const byPlace = Map.groupBy ? Map.groupBy(rows, (row) => row[at]) : rows.reduce((map, row) => map.set(row[at], [...(map.get(row[at]) || []), row]), new Map());
    const places = [...byPlace.keys()].sort((a, b) => a - b);
    const rule = Object.assign(document.createElement("div"), { className: "crosshair", hidden: true });
    element.append(rule);
    const box = document.getElementById("tip") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
    const leave = () => (box.hidden = rule.hidden = true);
    leave();
    element.onpointerleave = leave;
    element.onpointermove = (event) => {
      const svg = element.querySelector("svg"), frame = svg.getBoundingClientRect(), padding = view.padding();
      const left = view.origin()[0] + padding.left, top = view.origin()[1] + padding.top;
      const x = event.clientX - frame.left - left, y = event.clientY - frame.top - top;
      const width = view.signal("width"), height = view.signal("height");
      if (x < -4 || x > width + 4 || y < -4 || y > height + 4) return leave();
      const scale = view.scale("x"), wanted = scale.invert(x);
      const place = places.reduce((best, one) => (Math.abs(one - wanted) < Math.abs(best - wanted) ? one : best));
      const here = [...byPlace.get(place)].filter((row) => row[value] !== null).sort((a, b) => b[value] - a[value]);
      Object.assign(rule.style, { left: `${left + scale(place)}px`, top: `${top}px`, height: `${height}px` });
      rule.hidden = box.hidden = false;
      say(box, place, here);
      const right = event.clientX + 16 + box.offsetWidth > innerWidth;
      box.style.left = `${right ? Math.max(4, event.clientX - 16 - box.offsetWidth) : event.clientX + 16}px`;
      box.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - box.offsetHeight - 4))}px`;
    };
    const digits = (number) => (Math.abs(number) >= 1 ? number.toFixed(1) : number.toPrecision(3));
    function say(box, place, here) {
      const lines = here.slice(0, MOST).map((row) => [row.method, `${digits(row[value])}${row.sd ? ` ± ${row.sd.toFixed(1)}` : ""}`]);
      if (here.length > MOST) lines.push([`and ${here.length - MOST} more`, ""]);
      const table = document.createElement("table");
      for (const words of [[PLACES[at], place], ...lines]) {
        const line = table.insertRow();
        words.forEach((text, index) => Object.assign(line.insertCell(), { textContent: text, className: index ? "value" : "key" }));
      }
      box.replaceChildren(table);
    }
  }
  return { fields, lighter, attach };
})();
