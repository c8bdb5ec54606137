"use strict";
// Charts over rounds: a drag across the plot shows its rounds alone, a double click or the button below all of them again.
const zoom = (() => {
  const LEAST = 8; // pixels of a drag; less is a click

  const isLabel = (layer) => layer.mark?.type === "text" || JSON.stringify(layer.encoding || {}).includes('"end_x"');
  /** The chart of some rounds, without the names that stand at the ends of lines. */
  function part(spec, [from, to]) {
    const near = (channel) => ({ ...channel, scale: { ...channel.scale, nice: false, domain: [from, to] }, axis: { ...channel.axis, values: undefined, tickCount: 6, tickMinStep: 1 } });
    const layer = spec.layer.filter((one) => !isLabel(one)).map((one) => ({
      ...one, mark: { ...one.mark, clip: true }, encoding: { ...one.encoding, ...(one.encoding?.x ? { x: near(one.encoding.x) } : {}) },
    }));
    return { ...spec, layer };
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
