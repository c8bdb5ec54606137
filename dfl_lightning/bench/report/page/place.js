"use strict";
// An address brings its part of the page to the top of the screen and keeps it there while charts above it are drawn,
// whose heights are not known before; from the reader's first touch or next address on it stays where the reader puts it.
const place = (() => {
  let kept = null;
  const bring = () => kept?.scrollIntoView({ behavior: "instant" });
  function keep(part) {
    history.scrollRestoration = "manual";
    kept = part;
    bring();
  }
  new ResizeObserver(bring).observe(document.querySelector("main"));
  for (const touch of ["pointerdown", "wheel", "touchstart", "keydown", "hashchange"]) addEventListener(touch, () => (kept = null), { capture: true, passive: true });
  return { keep };
})();
