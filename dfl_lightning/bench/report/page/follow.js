"use strict";
// Of the page of a run that lasts: the next page is loaded when it is written, unless the reader is at work, and shows
// the same round, client, theme, opened tables and place. The last page has no such script, so that this ends by itself.
(() => {
  const KEY = `following ${location.pathname}`, QUIET = 2, OLD = 60; // seconds
  const note = document.getElementById("live"), button = document.getElementById("follow");
  const written = Number(note.dataset.written), gap = Number(note.dataset.gap), loaded = Date.now() / 1000;
  const parts = () => [...document.querySelectorAll("details")];
  const anchors = () => [...document.querySelectorAll("main > section, figure, .pair, .controls")];
  const age = () => Date.now() / 1000 - written;

  // --- what the reader does ---
  let last = -Infinity, pressed = false;
  const active = () => (last = Date.now() / 1000);
  for (const name of ["pointermove", "keydown", "wheel", "touchmove", "scroll", "change"]) addEventListener(name, active, { passive: true });
  addEventListener("pointerdown", () => (pressed = true));
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => (pressed = false));
  const busy = () => pressed || Date.now() / 1000 - last < QUIET || document.getElementById("play")?.getAttribute("aria-pressed") === "true" || !getSelection().isCollapsed;

  // --- keep and restore ---
  function keep(follows) {
    const tops = anchors().map((part) => part.getBoundingClientRect().top);
    const place = tops.reduce((best, top, other) => (Math.abs(top) < Math.abs(tops[best]) ? other : best), 0);
    const state = {
      follows,
      theme: document.documentElement.dataset.theme,
      who: report.address(),
      newest: report.newest(),
      open: parts().map((part) => part.open),
      heights: Object.fromEntries([...document.querySelectorAll(".chart")].map((chart) => [chart.id, chart.offsetHeight])),
      anchor: scrollY > 0 ? [place, tops[place]] : null,
      focus: document.activeElement?.id,
    };
    sessionStorage.setItem(KEY, JSON.stringify(state));
  }
  const state = JSON.parse(sessionStorage.getItem(KEY) || "null");
  sessionStorage.removeItem(KEY);
  // What page.js begins with; a page that is opened for the first time shows the newest round.
  window.following = { kept: state ?? (location.hash.includes("?") ? null : { newest: true }), settled: !state };
  const toPlace = () => {
    if (!state?.anchor) return;
    const [place, top] = state.anchor, part = anchors()[place];
    if (part) scrollBy({ top: part.getBoundingClientRect().top - top, behavior: "instant" });
  };
  let following = state?.follows ?? true;
  if (state) {
    history.scrollRestoration = "manual";
    for (const [id, height] of Object.entries(state.heights)) if (document.getElementById(id)) document.getElementById(id).style.minHeight = `${height}px`;
    parts().forEach((part, place) => (part.open = state.open[place] ?? part.open));
    toPlace();
    whenDrawn(() => {
      toPlace();
      if (state.focus) document.getElementById(state.focus)?.focus({ preventScroll: true });
      last = -Infinity;
      window.following.settled = true;
    });
  }
  function whenDrawn(then) {
    if (window.report?.drawn) then();
    else setTimeout(() => whenDrawn(then), 20);
  }

  // --- follow ---
  button.hidden = false;
  function show() {
    button.textContent = following ? "Following" : "Follow";
    button.setAttribute("aria-pressed", String(following));
    note.classList.toggle("old", age() > Math.max(OLD, 5 * gap));
  }
  button.addEventListener("click", () => {
    following = !following;
    show();
  });
  setInterval(() => {
    show();
    // A run that was killed writes no last page: the older the page, the more rarely the next one is looked for.
    const due = Math.max(written + gap + 0.5, loaded + Math.max(gap, age() / 4));
    if (!following || document.hidden || !window.report?.drawn || busy() || Date.now() / 1000 < due) return;
    keep(following);
    location.reload();
  }, 500);
  show();
})();
