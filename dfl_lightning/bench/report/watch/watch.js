"use strict";
// The table of runs: its rows near the screen, what the reader chooses, and the server that is asked for changes.
(() => {
  const byId = (id) => document.getElementById(id);
  const ROW = 34, AROUND = 12, MOST_PICKED = 500, GAP = 2000, OWN = 8;
  const state = { words: "", filters: [], sort: "changed", down: true, groups: [], columns: null };
  const picked = new Set(), closed = new Set();
  let lines = [], shown = [], last = null;
  const watched = (window.watched = { ready: false, drawn: 0 });

  const element = (name, words = {}, ...inner) => {
    const made = Object.assign(document.createElement(name), words);
    made.append(...inner);
    return made;
  };

  // --- the address keeps the state ---
  function write() {
    const words = new URLSearchParams();
    if (state.words) words.set("words", state.words);
    state.filters.forEach((filter) => words.append("only", JSON.stringify(filter)));
    state.groups.forEach((column) => words.append("group", column));
    if (state.sort !== "changed" || !state.down) words.set("sort", `${state.down ? "-" : ""}${state.sort}`);
    state.columns?.forEach((column) => words.append("column", column));
    history.replaceState(null, "", String(words) ? `#${words}` : location.pathname);
  }
  function read() {
    const words = new URLSearchParams(location.hash.slice(1));
    state.words = words.get("words") ?? "";
    state.filters = words.getAll("only").flatMap((text) => {
      try {
        const filter = JSON.parse(text);
        return Array.isArray(filter) && filter.length === 3 && filter.every((part) => typeof part === "string") ? [filter] : [];
      } catch {
        return []; // a reader has changed the address: this filter is left out
      }
    });
    state.groups = words.getAll("group").slice(0, 2);
    const sort = words.get("sort") ?? "-changed";
    [state.down, state.sort] = [sort.startsWith("-"), sort.replace(/^-/, "")];
    state.columns = words.has("column") ? words.getAll("column") : null;
    byId("words").value = state.words;
  }

  // --- columns ---
  /** The columns of the table: as chosen, or those of every run and the first settings that differ. */
  function columnsShown() {
    const names = table.names();
    if (state.columns) return ["run", ...state.columns.filter((name) => names.includes(name))];
    const settings = names.filter((name) => table.isSetting(name) && name !== "seed_everything" && !name.startsWith("trainer.default_root") && table.differs(name));
    return [...names.filter((name) => !table.isSetting(name)), ...settings.slice(0, OWN)];
  }
  function widthOf(name) {
    let longest = name.length + 2;
    for (const value of table.columns.get(name)?.keys() ?? []) longest = Math.max(longest, table.text(value, name).length);
    const extra = state.groups.length && table.isScore(name) ? 4 : 0;
    return Math.max(70, Math.min(name === "run" ? Math.min(420, innerWidth / 2) : 230, 8.2 * (longest + extra) + 20));
  }
  function heads() {
    const cells = shown.map((name) => {
      const button = element("button", { type: "button", textContent: name, title: name });
      const isSorted = name === state.sort, arrow = isSorted ? (state.down ? " ↓" : " ↑") : "";
      button.append(arrow);
      button.addEventListener("click", () => {
        const isText = !table.isNumeric(name);
        [state.down, state.sort] = [isSorted ? !state.down : !isText, name];
        renew();
        [...byId("heads").children].find((cell) => cell.dataset.of === name)?.firstChild.focus();
      });
      const cell = element("th", { scope: "col", className: table.isNumeric(name) ? "number" : "" }, button);
      cell.dataset.of = name;
      cell.style.width = `${widthOf(name)}px`;
      if (isSorted) cell.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      return cell;
    });
    const first = element("th", { scope: "col" }, element("span", { className: "hidden", textContent: "picked" }));
    byId("heads").replaceChildren(first, ...cells);
    byId("grid").firstChild.style.width = `${40 + shown.reduce((sum, name) => sum + widthOf(name), 0)}px`;
  }

  // --- rows ---
  function box(isOn, label, change) {
    const made = element("input", { type: "checkbox", checked: isOn });
    made.setAttribute("aria-label", label);
    made.addEventListener("click", (event) => change(made.checked, event.shiftKey));
    return element("td", {}, made);
  }
  function rowOf(id, at) {
    const row = table.rows.get(id), line = element("tr", { className: picked.has(id) ? "picked" : "" });
    line.append(box(picked.has(id), `Pick ${row.cells.run}`, (isOn, isRange) => {
      const from = isRange && last !== null ? lines.findIndex((other) => other.id === last) : at;
      const [low, high] = from < 0 ? [at, at] : [Math.min(from, at), Math.max(from, at)];
      lines.slice(low, high + 1).forEach((other) => other.id && picked[isOn ? "add" : "delete"](other.id));
      last = id;
      repaint();
    }));
    for (const name of shown) {
      const held = table.value(row, name), value = table.text(held, name), cell = element("td", { title: value });
      if (typeof held === "number") cell.className = "number";
      if (name === "run") cell.append(element("a", { href: `/page?runs=${id}`, target: "_blank", rel: "noopener", textContent: value }));
      else cell.textContent = value;
      if (name === "status") cell.classList.add(value === "running" ? "running" : value === "finished" ? "finished" : "bad");
      line.append(cell);
    }
    return line;
  }
  function groupOf(group) {
    const { key, ids, depth, column, value } = group, isOpen = !closed.has(key);
    const name = `${column} = ${value === undefined ? "–" : table.text(value, column)}`;
    const all = ids.every((id) => picked.has(id)), line = element("tr", { className: "group" });
    const first = box(all, `Pick all runs with ${name}`, (isOn) => {
      ids.forEach((id) => picked[isOn ? "add" : "delete"](id));
      repaint();
    });
    first.firstChild.indeterminate = !all && ids.some((id) => picked.has(id));
    const fold = element("button", { type: "button", textContent: `${isOpen ? "▾" : "▸"} ${name} (${ids.length})`, title: name });
    fold.setAttribute("aria-expanded", String(isOpen));
    fold.style.marginLeft = `${16 * depth}px`;
    fold.addEventListener("click", () => {
      closed[isOpen ? "add" : "delete"](key);
      renew();
    });
    line.append(first, element("td", {}, fold));
    for (const name of shown.slice(1)) {
      const text = table.summary(ids, name);
      line.append(element("td", { textContent: text, title: text, className: table.isNumeric(name) ? "number" : "" }));
    }
    return line;
  }
  function space(rows) {
    const cell = element("td", { colSpan: shown.length + 1 }), line = element("tr", { className: "space" }, cell);
    line.setAttribute("aria-hidden", "true");
    cell.style.setProperty("--height", `${rows * ROW}px`);
    return line;
  }
  /** Draw the lines near the screen, and empty space for all others. */
  function paint() {
    const grid = byId("grid"), from = Math.max(0, Math.floor(grid.scrollTop / ROW) - AROUND);
    const to = Math.min(lines.length, Math.ceil((grid.scrollTop + grid.clientHeight) / ROW) + AROUND);
    const body = lines.slice(from, to).map((line, at) => {
      const made = line.id ? rowOf(line.id, from + at) : groupOf(line);
      made.setAttribute("aria-rowindex", from + at + 2);
      return made;
    });
    const focus = focused();
    byId("rows").replaceChildren(...(from ? [space(from)] : []), ...body, ...(to < lines.length ? [space(lines.length - to)] : []));
    refocus(focus);
    grid.firstChild.setAttribute("aria-rowcount", lines.length + 1);
    watched.drawn += 1;
  }
  const focused = () => {
    const at = document.activeElement?.closest("#rows tr");
    return at ? [at.getAttribute("aria-rowindex"), document.activeElement.tagName] : null;
  };
  function refocus(focus) {
    if (focus) document.querySelector(`#rows tr[aria-rowindex="${focus[0]}"] ${focus[1].toLowerCase()}`)?.focus({ preventScroll: true });
  }
  let waiting = false;
  byId("grid").addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      paint();
    });
  }, { passive: true });
  addEventListener("resize", paint);

  // --- all of it ---
  const runs = (number) => `${number.toLocaleString("en")} run${number === 1 ? "" : "s"}`;
  let visible = [];
  function repaint() {
    for (const id of picked) if (!table.rows.has(id)) picked.delete(id);
    const total = table.rows.size, number = picked.size, link = byId("open");
    byId("count").textContent = `${visible.length < total ? `${visible.length.toLocaleString("en")} of ` : ""}${runs(total)}, ${number.toLocaleString("en")} picked`;
    byId("pick-shown").disabled = !visible.length;
    byId("pick-none").disabled = !number;
    const can = number > 0 && number <= MOST_PICKED;
    link.setAttribute("aria-disabled", String(!can));
    link.textContent = number ? `Open the page of ${runs(number)}` : "Open the page of the picked runs";
    if (can) link.href = `/page?runs=${[...picked].sort().join(",")}`;
    else link.removeAttribute("href");
    byId("limit").textContent = number > MOST_PICKED ? `A page has at most ${MOST_PICKED} runs.` : "";
    byId("none").hidden = lines.length > 0;
    byId("none").textContent = total ? "The filters leave no run." : "The folder has no runs yet; they appear here as they begin.";
    paint();
  }
  function renew() {
    shown = columnsShown();
    visible = table.passing(state);
    lines = table.lines(visible, state.groups, closed);
    heads();
    chips();
    write();
    repaint();
  }
  function chips() {
    const signs = Object.fromEntries([...byId("filter-how").options].map((option) => [option.value, option.textContent]));
    byId("filters").replaceChildren(...state.filters.map(([column, how, value], at) => {
      const words = `${column} ${signs[how] ?? how} ${value}`, button = element("button", { type: "button", textContent: `${words} ✕` });
      button.setAttribute("aria-label", `Remove the filter ${words}`);
      button.addEventListener("click", () => {
        state.filters.splice(at, 1);
        renew();
      });
      return element("li", {}, button);
    }));
  }

  // --- menus, which have the columns of the rows ---
  let known = "";
  function menus() {
    const names = table.names(), key = JSON.stringify([names, names.map(table.differs), state.groups, shown]);
    if (key === known) return;
    known = key;
    const differing = names.filter(table.differs), same = names.filter((name) => !table.differs(name));
    const options = (list) => list.map((name) => element("option", { value: name, textContent: name }));
    const grouped = (first) => [...first, element("optgroup", { label: "differ" }, ...options(differing)), element("optgroup", { label: "the same in all runs" }, ...options(same))];
    const column = byId("filter-column").value;
    byId("filter-column").replaceChildren(...grouped([]));
    byId("filter-column").value = names.includes(column) ? column : (differing.find((name) => name === "status") ?? differing[0] ?? names[0] ?? "");
    values();
    for (const [at, id] of ["group", "group-2"].entries()) {
      const lacking = state.groups.filter((name) => !names.includes(name)); // methods are named a moment later
      byId(id).replaceChildren(...grouped([element("option", { value: "", textContent: "nothing" }), ...options(lacking)]));
      byId(id).value = state.groups[at] ?? "";
    }
    byId("group-2").disabled = !state.groups.length;
    const check = (name) => {
      const made = element("input", { type: "checkbox", checked: shown.includes(name), disabled: name === "run" });
      made.addEventListener("change", () => {
        const chosen = new Set(shown.slice(1));
        chosen[made.checked ? "add" : "delete"](name);
        state.columns = table.names().filter((other) => chosen.has(other));
        renew();
      });
      return element("label", { title: name }, made, name);
    };
    const legend = document.querySelector("#columns legend");
    byId("columns").replaceChildren(legend, element("p", { textContent: "differ" }), ...differing.map(check), element("p", { textContent: "the same in all runs" }), ...same.map(check));
    narrow();
  }
  function narrow() {
    const wanted = byId("column-words").value.toLowerCase();
    for (const label of document.querySelectorAll("#columns label")) label.hidden = !label.title.toLowerCase().includes(wanted);
  }
  function values() {
    const found = [...(table.columns.get(byId("filter-column").value)?.keys() ?? [])].slice(0, 200);
    byId("filter-values").replaceChildren(...found.map((value) => element("option", { value: String(value) })));
  }
  byId("column-words").addEventListener("input", narrow);
  byId("filter-column").addEventListener("change", values);
  byId("adding").addEventListener("submit", (event) => {
    event.preventDefault();
    state.filters.push([byId("filter-column").value, byId("filter-how").value, byId("filter-value").value]);
    byId("filter-value").value = "";
    renew();
  });
  byId("words").addEventListener("input", () => {
    state.words = byId("words").value;
    renew();
  });
  for (const id of ["group", "group-2"]) {
    byId(id).addEventListener("change", () => {
      state.groups = [byId("group").value, byId("group-2").value].filter((name, at, all) => name && all.indexOf(name) === at);
      closed.clear();
      renew();
      menus();
    });
  }
  byId("pick-shown").addEventListener("click", () => {
    visible.forEach((id) => picked.add(id));
    repaint();
  });
  byId("pick-none").addEventListener("click", () => {
    picked.clear();
    repaint();
  });
  byId("choosing").addEventListener("toggle", menus);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && byId("choosing").open) {
      byId("choosing").open = false;
      byId("choosing").firstElementChild.focus();
    }
  });
  document.addEventListener("click", (event) => {
    if (!byId("choosing").contains(event.target) && event.target.isConnected) byId("choosing").open = false;
  });
  addEventListener("hashchange", () => {
    read();
    renew();
    known = "";
    menus();
  });

  // --- themes ---
  const system = matchMedia("(prefers-color-scheme: dark)");
  function nameTheme(change) {
    const dark = (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
    if (change) document.documentElement.dataset.theme = dark ? "light" : "dark";
    const is = change ? !dark : dark;
    byId("theme").textContent = is ? "Light" : "Dark";
    byId("theme").setAttribute("aria-pressed", String(Boolean(document.documentElement.dataset.theme)));
    byId("theme").setAttribute("aria-label", `${is ? "Light" : "Dark"} colours`);
  }
  byId("theme").addEventListener("click", () => nameTheme(true));
  system.addEventListener("change", () => nameTheme(false));
  nameTheme(false);

  // --- following ---
  let failures = 0;
  async function ask() {
    let wait = GAP;
    try {
      const response = await fetch(table.asked);
      if (!response.ok) throw new Error(await response.text());
      const answer = await response.json(), words = byId("following"), title = `Runs in ${answer.title}`;
      if (document.title !== title) document.title = document.querySelector("h1").textContent = title;
      if (table.take(answer) || !watched.ready) {
        renew();
        menus();
      }
      const text = answer.busy ? "reading …" : "follows the folder";
      if (words.textContent !== text) words.textContent = text;
      watched.ready = !answer.busy;
      failures = 0;
      if (answer.busy) wait = 0;
    } catch (error) {
      failures += 1;
      byId("following").textContent = "the server has ended, or does not answer; this is the table as it was";
      wait = Math.min(30000, GAP * 2 ** failures);
    }
    setTimeout(ask, document.hidden ? Math.max(wait, 10000) : wait);
  }
  document.addEventListener("visibilitychange", () => !document.hidden && watched.ready && repaint());
  read();
  ask();
})();
