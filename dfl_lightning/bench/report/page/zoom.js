"use strict";
// Charts over rounds: a drag across the plot shows its rounds alone, a double click or the button below all of them again.
const zoom = (() => {
  const LEAST = 8; // pixels of a drag; less is a click

  const isLabel = (layer) => layer.mark?.type === "text" || JSON.stringify(layer.encoding || {}).includes('"end_x"');
  /** The chart of some rounds, with names where its lines end then.
   *
   * @param spec of the chart.
   * @param range the first and the last round.
   * @param rows of the chart's lines.
   */
  function part(spec, [from, to], rows) {
    const near = (channel) => ({ ...channel, scale: { ...channel.scale, nice: false, domain: [from, to] }, axis: { ...channel.axis, values: undefined, tickCount: 6, tickMinStep: 1 } });
    const { y } = spec.layer.find((one) => one.mark?.type === "line").encoding, ends = new Map();
    const kept = rows.filter((row) => row.round >= from && row.round <= to && row[y.field] !== null).map((row) => row[y.field]);
    for (const row of rows) if (row.round >= from && row.round <= to && row[y.field] !== null) ends.set(row.method, row);
    const layer = spec.layer.map((one) => ({
      ...one, encoding: { ...one.encoding, ...(one.encoding?.x ? { x: near(one.encoding.x) } : {}), ...(one.encoding?.y?.axis?.title ? { y: titled(one.encoding.y, kept) } : {}) },
      ...(isLabel(one) ? { data: { values: moved(crosshair.held(spec, one), ends, y, to, spec.height - 50) } } : { mark: { ...one.mark, clip: true } }),
    }));
    return { ...spec, layer };
  }
  /** The vertical axis, whose title names the cuts of the values that are shown, as the page's other axes do. */
  function titled(y, values) {
    const [low, high] = y.scale.domain, cuts = [];
    if (values.some((value) => value < low)) cuts.push(`below ${low}`);
    if (values.some((value) => value > high)) cuts.push(`above ${high}`);
    const plain = y.axis.title.replace(/, cut (below|above) .*$/, "");
    return { ...y, axis: { ...y.axis, title: cuts.length ? `${plain}, cut ${cuts.join(" and ")}` : plain } };
  }
  /** The names of lines, beside these ends, and spread from the highest to the lowest so that none covers another. */
  function moved(labels, ends, { field, scale: { domain: [low, high] } }, to, height) {
    const gap = (16 * (high - low)) / height;
    const found = labels.filter(({ method }) => ends.has(method)).map((label) => {
      const end = ends.get(label.method), value = end[field];
      const number = (text) => text.replace(/ {2}[−-]?\d+(\.\d*)?$/, (_, part = ".") => `  ${value.toFixed(part.length - 1).replace("-", "−")}`);
      return { ...label, label: number(label.label), brief: number(label.brief), end_x: end.round, end_y: value, label_x: to, inside: value >= low && value <= high };
    }).sort((a, b) => b.end_y - a.end_y);
    let free = high;
    for (const label of found) free = (label.label_y = Math.min(label.end_y, free)) - gap;
    free = low;
    for (const label of found.reverse()) free = (label.label_y = Math.max(label.label_y, free)) + gap;
    return found;
  }

  /** Let a chart be zoomed.
   *
   * @param element of the chart, drawn.
   * @param view of Vega.
   * @param rounds all that the chart has, in order.
   * @param show draws the chart with these rounds, `[from, to]`, or with all: null.
   * @param range that it shows; null: all.
   */
  function attach(element, view, rounds, show, range) {
    const inside = (event) => {
      const frame = element.querySelector("svg").getBoundingClientRect(), [left, top] = [view.origin()[0] + view.padding().left, view.origin()[1] + view.padding().top];
      return { x: event.clientX - frame.left - left, y: event.clientY - frame.top - top, left, top };
    };
    const mark = Object.assign(document.createElement("div"), { className: "zoomed", hidden: true });
    element.append(mark);
    let begun = null;
    element.onpointerdown = (event) => {
      const { x, y } = inside(event);
      begun = event.button === 0 && x >= 0 && y >= 0 && x <= view.signal("width") && y <= view.signal("height") ? x : null;
    };
    const reach = (event) => Math.max(0, Math.min(view.signal("width"), inside(event).x));
    element.addEventListener("pointermove", (event) => {
      if (begun === null || !mark.isConnected) return;
      const to = reach(event), { left, top } = inside(event);
      mark.hidden = Math.abs(to - begun) < LEAST;
      Object.assign(mark.style, { left: `${left + Math.min(to, begun)}px`, width: `${Math.abs(to - begun)}px`, top: `${top}px`, height: `${view.signal("height")}px` });
    });
    element.onpointerup = (event) => {
      const from = begun, to = reach(event), scale = view.scale("x");
      begun = null;
      mark.hidden = true;
      if (from === null || Math.abs(to - from) < LEAST) return;
      const nearest = (x) => rounds.reduce((best, one) => (Math.abs(one - scale.invert(x)) < Math.abs(best - scale.invert(x)) ? one : best));
      const ends = [nearest(Math.min(from, to)), nearest(Math.max(from, to))];
      if (ends[0] < ends[1]) show(ends);
    };
    element.ondblclick = () => range && show(null);
    const menu = element.parentElement.querySelector(".save");
    menu?.querySelector(".all-rounds")?.remove();
    if (!range || !menu) return;
    const button = Object.assign(document.createElement("button"), { type: "button", className: "all-rounds", textContent: `Rounds ${range[0]} to ${range[1]}: show all` });
    button.addEventListener("click", () => show(null));
    menu.append(button);
  }
  return { part, attach };
})();
