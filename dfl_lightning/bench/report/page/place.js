"use strict";
// An address brings its part of the page to the top of the screen and keeps it there while charts above it are drawn,
// whose heights are not known before; from the reader's first touch or next address on it stays where the reader puts it.
const place = (() => {
  let kept = null;
  let offset = null;  // pixels below the top of the screen; null: where an address brings it
  function bring() {
    if (offset === null) kept?.scrollIntoView({ behavior: "instant" });
    else if (kept) scrollBy({ top: kept.getBoundingClientRect().top - offset, behavior: "instant" });
  }
  /** Put a part of the page back where it was on the screen, and keep it there in the same way.
   *
   * @param part an element that is still on the page.
   * @param top pixels below the top of the screen.
   */
  function back(part, top) {
    [kept, offset] = [part, top];
    bring();
  }
  function keep(part) {
    history.scrollRestoration = "manual";
    [kept, offset] = [part, null];
    bring();
  }
  new ResizeObserver(bring).observe(document.querySelector("main"));
  for (const touch of ["pointerdown", "wheel", "touchstart", "keydown", "hashchange"]) addEventListener(touch, () => (kept = null), { capture: true, passive: true });
  return { keep, back };
})();
