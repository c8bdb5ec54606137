"use strict";
// Hints that the bar of links and tables can be scrolled sideways, where they are wider than their place.
const more = (() => {
  const isWide = (part) => part.scrollWidth > part.clientWidth + 1;
  const atEnd = (part) => part.scrollLeft + part.clientWidth >= part.scrollWidth - 1;

  /** Show a hint while a part is wider than its place.
   *
   * @param part that scrolls.
   * @param hint that is shown.
   */
  function watch(part, hint) {
    const say = () => {
      hint.hidden = !isWide(part);
      hint.classList.toggle("at-end", atEnd(part));
    };
    const observer = new ResizeObserver(say);
    for (const one of [part, ...part.children]) observer.observe(one);
    part.addEventListener("scroll", say, { passive: true });
  }
  /** Begin with all tables and the bar of links. */
  function offer() {
    for (const part of document.querySelectorAll("main .scroll")) {
      const hint = Object.assign(document.createElement("p"), { className: "more-columns", textContent: "more columns →", hidden: true });
      hint.setAttribute("aria-hidden", "true");  // a screen reader reads all columns of the table
      part.before(hint);
      watch(part, hint);
    }
    const bar = document.querySelector("nav > div"), on = document.getElementById("more-links");
    on.addEventListener("click", () => bar.scrollBy({ left: (atEnd(bar) ? -1 : 0.7) * (atEnd(bar) ? bar.scrollWidth : bar.clientWidth), behavior: "smooth" }));
    watch(bar, on);
  }
  return { offer };
})();
