"use strict";
// The cost of the front's axis: of the charts that differ in it only, one is shown.
const front = (() => {
  const NAME = /^front-by-(bytes|messages|time)(.*)$/, WORDS = { bytes: "bytes", messages: "messages", time: "simulated time" };

  /** Put a switch before each group of such charts.
   *
   * @param again draws a chart that has just become visible.
   */
  function offer(again) {
    const groups = new Map();
    for (const element of document.querySelectorAll("[data-chart^='front-by-']")) {
      const [, cost, tail] = element.dataset.chart.match(NAME);
      groups.set(tail, [...(groups.get(tail) || []), { cost, element, figure: element.closest("figure") }]);
    }
    for (const group of groups.values()) {
      const first = group[0].figure, select = document.createElement("select"), label = document.createElement("label");
      select.append(...group.map(({ cost }) => new Option(WORDS[cost], cost)));
      label.append("Cost ", select);
      const line = Object.assign(document.createElement("p"), { className: "controls wide front" });
      line.append(label);
      if (group.length > 1) first.before(line);
      const show = (cost) => group.forEach((one) => (one.figure.hidden = one.cost !== cost));
      show(group[0].cost);
      select.addEventListener("change", () => {
        show(select.value);
        again(group.find((one) => one.cost === select.value).element);
      });
    }
  }
  return { offer };
})();
