"use strict";
// Charts are drawn when they come near the screen, one at a time: a page of many methods can be used at once, and a chart
// that stays far from the screen costs nothing.
const near = (() => {
  const MARGIN = "600px 0px";
  const rest = () => new Promise((done) => setTimeout(done));

  /** Draw these elements when they are near, and again after each `renew`.
   *
   * @param elements of the charts, in the order in which they are drawn.
   * @param paint draws one; it may wait for promises, but for no timer, so that paper gets a whole page.
   * @param clear removes what is drawn in one that is out of date and far away.
   */
  function drawer(elements, paint, clear) {
    const close = new Set(), stale = new Set(elements);
    let line = Promise.resolve(), working = null, told;
    const seen = new Promise((done) => (told = done));
    const painted = (element) => {
      stale.delete(element);
      return (line = line.then(() => paint(element)));
    };
    async function work() {
      for (let next; (next = elements.find((one) => stale.has(one) && close.has(one))); await rest()) await painted(next);
    }
    const go = () => (working ??= work().finally(() => (working = null)));
    const observer = new IntersectionObserver((entries) => {
      for (const entry of entries) close[entry.isIntersecting ? "add" : "delete"](entry.target);
      told();
      go();
    }, { rootMargin: MARGIN });
    elements.forEach((element) => observer.observe(element));

    /** All are out of date: those near the screen are drawn again at once. */
    async function renew() {
      for (const element of elements) {
        if (!close.has(element) && !stale.has(element)) clear(element);
        stale.add(element);
      }
      if (elements.length) await seen;
      await go();
    }
    /** All that are out of date are drawn, near or not. */
    async function whole() {
      await Promise.all([...elements].filter((element) => stale.has(element)).map(painted));
    }
    /** All are drawn again, near or not, without a pause: for paper. */
    function again() {
      elements.forEach((element) => stale.add(element));
      return whole();
    }
    return { renew, whole, again };
  }
  return { drawer, MARGIN };
})();
