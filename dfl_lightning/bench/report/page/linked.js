"use strict";
// The graph and the matrix of a round, each on a canvas, as charts/links.py has them: Vega takes half a second for a step
// of the slider, since it computes each mark by expressions that it interprets.
// Lines are laid on pixels here: without a GPU a browser takes three times as long for a thousand lines with dashes.
const linked = (() => {
  const MARGIN = 5, TURN = 2 * Math.PI;

  /** A square canvas that fills an element, in pixels of the screen. */
  function paper(element, colours) {
    const size = Math.max(240, Math.floor(element.clientWidth)), sharp = Math.min(2, window.devicePixelRatio || 1);
    const canvas = document.createElement("canvas");
    canvas.width = canvas.height = Math.round(size * sharp);
    canvas.style.width = canvas.style.height = `${size}px`;
    element.replaceChildren(canvas);
    const pen = canvas.getContext("2d", { alpha: false });
    pen.scale(canvas.width / size, canvas.height / size);
    const clear = () => {
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      pen.fillStyle = colours.card;
      pen.fillRect(0, 0, size, size);
    };
    return { canvas, pen, size, clear, sharp: canvas.width / size };
  }

  const rgb = (colour) => [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  const share = (value) => Math.max(0, Math.min(1, value));

  /** A picture of lines over a background, as `ImageData`.
   *
   * A pixel is covered as far as its middle is within the line, and within a dash of it, half a pixel more or less.
   *
   * @param side width and height in pixels.
   * @param background a colour, "#rrggbb".
   * @param lines x and y of both ends, width, colour, opacity and dashes (their lengths and the gaps', or null) each.
   */
  function lined(side, background, lines) {
    const image = new ImageData(side, side), bytes = image.data, words = new Uint32Array(bytes.buffer);
    const [red, green, blue] = rgb(background);
    [bytes[0], bytes[1], bytes[2], bytes[3]] = [red, green, blue, 255];
    words.fill(words[0]);
    for (const { ends, width, colour, opacity, dashes } of lines) {
      const [x0, y0, x1, y1] = ends, length = Math.hypot(x1 - x0, y1 - y0);
      if (!(length > 0)) continue;
      const ux = (x1 - x0) / length, uy = (y1 - y0) / length, steep = Math.abs(uy) > Math.abs(ux);
      const [r, g, b] = colour, half = width / 2, most = Math.min(1, width), on = dashes ? dashes[0] : 0, period = dashes ? on + dashes[1] : 0;
      const [from, beside, run, rise] = steep ? [y0, x0, uy, ux] : [x0, y0, ux, uy];  // along the longer axis, and across it
      const reach = (half + 0.5) / Math.abs(run), over = Math.abs(rise) * (half + 0.5) + 1;
      const first = Math.max(0, Math.floor(Math.min(from, from + run * length) - over));
      const last = Math.min(side - 1, Math.ceil(Math.max(from, from + run * length) + over));
      for (let i = first; i <= last; i++) {
        const past = i + 0.5 - from, middle = past / run, whole = middle > over && middle < length - over;
        let part = opacity;
        if (period) {
          const phase = middle - period * Math.floor(middle / period);
          part *= share(Math.min(phase, on - phase) + 0.5) + share(phase - period + 0.5);
          if (part === 0) continue;
        }
        const centre = beside + middle * rise, end = Math.min(side - 1, Math.floor(centre + reach));
        for (let j = Math.max(0, Math.floor(centre - reach)); j <= end; j++) {
          const off = j + 0.5 - beside, far = past * rise - off * run;
          let cover = half + 0.5 - (far < 0 ? -far : far);
          if (!whole) cover = Math.min(cover, past * run + off * rise + 0.5, length - past * run - off * rise + 0.5);
          if (cover <= 0) continue;
          const mixed = (cover < most ? cover : most) * part, at = 4 * (steep ? i * side + j : j * side + i);
          bytes[at] += (r - bytes[at]) * mixed;
          bytes[at + 1] += (g - bytes[at + 1]) * mixed;
          bytes[at + 2] += (b - bytes[at + 2]) * mixed;
        }
      }
    }
    return image;
  }

  /** A symbol of an area, around (0, 0). */
  function symbol(shape, area) {
    const path = new Path2D(), half = Math.sqrt(area) / 2;
    if (shape === "circle") path.arc(0, 0, half, 0, TURN);
    else if (shape === "square") path.rect(-half, -half, 2 * half, 2 * half);
    else path.addPath(new Path2D(shape), new DOMMatrix([half, 0, 0, half, 0, 0]));
    return path;
  }
  function at(pen, x, y, paint) {
    pen.translate(x, y);
    paint();
    pen.translate(-x, -y);
  }
  function write(pen, words, x, y, size, weight, colour, align = "center") {
    pen.font = `${weight} ${size}px ${getComputedStyle(document.body).fontFamily}`;
    pen.textAlign = align;
    pen.fillStyle = colour;
    pen.fillText(words, x, y + 0.3 * size);
  }

  /** Colours between those of a ramp, for numbers from 0 to 1. */
  function ramp(stops) {
    const parts = stops.map(rgb);
    return (value) => {
      const along = share(value) * (parts.length - 1), first = Math.min(Math.floor(along), parts.length - 2);
      const mixed = parts[first].map((low, place) => Math.round(low + (along - first) * (parts[first + 1][place] - low)));
      return `rgb(${mixed.join(",")})`;
    };
  }

  /** Links between nodes, from the sender to the receiver.
   *
   * A view has `draw(round)`, which takes `links`, the set `absent`, the client `picked`, or null, and `fill`, the colour of a
   * client that is not its cluster's, and of its name, and `under(x, y)`, what stands there. `drawn` is what the last call has drawn.
   */
  function graph(element, run, look, colours) {
    const { canvas, pen, size, sharp } = paper(element, colours);
    const unit = (size - 2 * MARGIN) / (2 * look.span), around = look.around * Math.sqrt(run.area) + 2;
    const beside = Math.sqrt(look.server) / 2 + look.from_server;
    const places = run.nodes.map((node) => [MARGIN + (look.span + node.x) * unit, MARGIN + (look.span - node.y) * unit]);
    const clusters = [...new Set(run.nodes.filter((node) => !node.server).map((node) => node.cluster))].sort((a, b) => a - b);
    const place = new Map(clusters.map((cluster, index) => [cluster, index]));
    const active = clusters.map((_, index) => symbol(look.shapes[index % look.shapes.length], run.area));
    const hollow = clusters.map((_, index) => symbol(look.shapes[index % look.shapes.length], run.area * 0.8));
    const ring = symbol("circle", run.area * 2.1), server = symbol("square", look.server), head = symbol(look.triangle, look.head);
    const paints = Object.fromEntries(Object.keys(look.dashes).map((state) => [state, rgb(colours[state])]));
    const view = { canvas, drawn: { links: [], heads: [] }, draw, under };
    let ends = [];

    function draw({ links, absent, picked, fill = null }) {
      const shown = links.filter((link) => link.state !== "own");
      const faint = (link) => picked !== null && link.receiver !== picked && link.sender !== picked;
      const near = new Set([picked]);
      ends = shown.map((link) => {
        const [sx, sy] = places[link.sender], [rx, ry] = places[link.receiver];
        const length = Math.max(1e-6, Math.hypot(rx - sx, ry - sy)), x = (rx - sx) / length, y = (ry - sy) / length;
        const aside = [y * look.gap, -x * look.gap];  // two clients that learn from each other have two lines
        const [from, to] = [link.sender, link.receiver].map((id) => (run.nodes[id].server ? beside / Math.max(Math.abs(x), Math.abs(y)) : around));
        return [sx + x * from + aside[0], sy + y * from + aside[1], rx - x * to + aside[0], ry - y * to + aside[1], x, y];
      });
      const lines = shown.map((link, index) => ({
        ends: ends[index].slice(0, 4).map((number) => number * sharp),
        width: sharp * (look.widths[0] + share(link.weight) * (look.widths[1] - look.widths[0])),
        colour: paints[link.state],
        opacity: faint(link) ? 0.07 : 0.8,
        dashes: look.dashes[link.state][1] ? look.dashes[link.state].map((number) => number * sharp) : null,
      }));
      pen.putImageData(lined(canvas.width, colours.card, lines), 0, 0);
      for (const link of shown) if (!faint(link)) near.add(link.receiver).add(link.sender);
      const heads = shown.filter((link) => link.state !== "probed");
      shown.forEach((link, index) => {
        if (link.state === "probed") return;
        const [, , x1, y1, x, y] = ends[index];
        pen.globalAlpha = 0.7 * (faint(link) ? 0.07 : 0.8);
        pen.fillStyle = colours[link.state];
        pen.save();
        pen.transform(-y, x, -x, -y, x1, y1);  // its tip, which points up, along the line
        pen.fill(head);
        pen.restore();
      });
      const opacity = (node) => (picked !== null && !near.has(node.id) ? 0.25 : 1);
      const fills = fill && new Map(run.nodes.filter((node) => !node.server).map((node) => [node.id, fill(node.id)]));
      paintNodes(absent, opacity, fills);
      view.drawn = { links: shown, heads, fills };
    }
    function paintNodes(absent, opacity, fills) {
      const clients = run.nodes.filter((node) => !node.server);
      for (const node of clients) {
        pen.globalAlpha = opacity(node);
        const index = place.get(node.cluster);
        at(pen, ...places[node.id], () => {
          pen.setLineDash([]);
          pen.lineWidth = 1.5;
          pen.strokeStyle = colours.ink;
          if (node.falsified) pen.stroke(ring);
          if (absent.has(node.id)) {
            pen.setLineDash([2, 2]);
            pen.lineWidth = 2;
            pen.strokeStyle = colours.soft;
            pen.stroke(hollow[index]);
          } else {
            pen.fillStyle = fills ? fills.get(node.id)[0] : colours.category[index % colours.category.length];
            pen.fill(active[index]);
            pen.strokeStyle = fills ? colours.soft : colours.card;
            pen.stroke(active[index]);
          }
        });
      }
      pen.setLineDash([]);
      pen.globalAlpha = 1;
      for (const node of run.nodes.filter((node) => node.server)) {
        pen.fillStyle = colours.ink;
        at(pen, ...places[node.id], () => pen.fill(server));
        write(pen, run.nodes.length === clients.length + 1 ? "server" : `S${node.id - clients.length}`, ...places[node.id], 9, 700, colours.card);
      }
      if (run.nodes.length > look.named) return;
      for (const node of clients) {
        pen.globalAlpha = opacity(node);
        if (absent.has(node.id)) write(pen, `${node.id}`, ...places[node.id], 10, 400, colours.soft);
        else write(pen, `${node.id}`, ...places[node.id], 10.5, 700, fills ? fills.get(node.id)[1] : colours.card);
      }
    }
    function under(x, y) {
      const reach = Math.max(6, Math.sqrt(run.area) / 2);
      const far = (node) => Math.hypot(places[node.id][0] - x, places[node.id][1] - y) / (node.server ? Math.sqrt(look.server) / 2 : reach);
      const nearest = run.nodes.reduce((best, node) => (far(node) < far(best) ? node : best));
      if (far(nearest) <= 1) return { node: nearest };
      let link = null, least = 4;
      view.drawn.links.forEach((candidate, index) => {
        const [x0, y0, x1, y1, ux, uy] = ends[index];
        const along = (x - x0) * ux + (y - y0) * uy, beside = Math.abs((x - x0) * uy - (y - y0) * ux);
        if (beside < least && along >= 0 && along <= Math.hypot(x1 - x0, y1 - y0)) [link, least] = [candidate, beside];
      });
      return link ? { link } : {};
    }
    return view;
  }

  /** Receivers in rows, senders in columns; a view as `graph` gives it. */
  function matrix(element, run, look, colours) {
    const { canvas, pen, size, clear } = paper(element, colours), number = run.nodes.length, named = number <= look.listed;
    const left = named ? 22 : MARGIN, top = left, unit = (size - MARGIN - left) / number;
    const edge = number <= look.named ? 0.46 : 0.5, colour = ramp(colours.ramp);
    const marks = { new: symbol("square", run.marks.new), dropped: symbol(look.cross, run.marks.dropped), probed: symbol("circle", run.marks.probed) };
    const view = { canvas, drawn: { cells: [], marks: [] }, draw, under };
    const middle = (place) => left + (place + 0.5) * unit;
    let found = new Map();

    function draw({ links, picked }) {
      clear();
      const opacity = (link) => (picked !== null && link.receiver !== picked && link.sender !== picked ? 0.12 : 1);
      const of = (link) => [middle(run.nodes[link.sender].order), middle(run.nodes[link.receiver].order)];
      const cells = links.filter((link) => ["kept", "new", "substitute", "own"].includes(link.state));
      for (const link of cells) {
        const [x, y] = of(link);
        pen.globalAlpha = opacity(link);
        pen.fillStyle = colour(link.weight / run.most);
        pen.fillRect(x - edge * unit, y - edge * unit, 2 * edge * unit, 2 * edge * unit);
      }
      const over = links.filter((link) => link.state in marks);
      for (const link of over) {
        pen.globalAlpha = opacity(link);
        // A rim keeps marks of chosen links apart from cells that are as dark as they are.
        const rim = link.state === "new" ? [[look.rim, colours.card]] : [];
        for (const [width, colour] of [...rim, [1.6, colours[link.state]]]) {
          [pen.lineWidth, pen.strokeStyle] = [width, colour];
          at(pen, ...of(link), () => pen.stroke(marks[link.state]));
        }
      }
      pen.globalAlpha = 1;
      if (named)
        for (const node of run.nodes) {
          write(pen, `${node.id}`, middle(node.order), top - 8, 9, 400, colours.soft);
          write(pen, `${node.id}`, left - 6, middle(node.order), 9, 400, colours.soft, "right");
        }
      found = new Map([...cells, ...over].map((link) => [`${run.nodes[link.receiver].order} ${run.nodes[link.sender].order}`, link]));
      view.drawn = { cells, marks: over };
    }
    function under(x, y) {
      const link = found.get(`${Math.floor((y - top) / unit)} ${Math.floor((x - left) / unit)}`);
      return link ? { link } : {};
    }
    return view;
  }

  /** Shares between groups of clients; a view as `graph` gives it, whose rounds have `cells`. */
  function bins(element, run, look, colours) {
    const { canvas, pen, size, clear } = paper(element, colours), number = run.groups.length, colour = ramp(colours.ramp);
    pen.font = `400 12px ${getComputedStyle(document.body).fontFamily}`;
    const longest = Math.max(...run.groups.map((name) => pen.measureText(name).width));
    const left = Math.min(longest, size / 3) + 32, top = 44, across = (size - MARGIN - left) / number, down = (size - MARGIN - top) / number;
    const every = Math.max(1, Math.ceil(number / 20), Math.ceil((longest + 8) / across));
    const view = { canvas, drawn: { cells: [] }, draw, under };
    function draw({ cells }) {
      clear();
      for (const cell of cells) {
        pen.fillStyle = colour(cell.share / run.most);
        pen.fillRect(left + cell.sender * across, top + cell.receiver * down, across, down);
      }
      write(pen, "sender", left + (size - left) / 2, 10, 12, 400, colours.soft);
      at(pen, 10, top + (size - top) / 2, () => {
        pen.rotate(-TURN / 4);
        write(pen, "receiver", 0, 0, 12, 400, colours.soft);
        pen.rotate(TURN / 4);
      });
      run.groups.forEach((name, place) => {
        if (place % every === 0) write(pen, name, left + (place + 0.5) * across, top - 12, 12, 400, colours.soft);
        if (place % Math.ceil(number / 20) === 0) write(pen, name, left - 8, top + (place + 0.5) * down, 12, 400, colours.soft, "right");
      });
      view.drawn = { cells };
    }
    function under(x, y) {
      const [receiver, sender] = [Math.floor((y - top) / down), Math.floor((x - left) / across)];
      const cell = view.drawn.cells.find((one) => one.receiver === receiver && one.sender === sender);
      return cell ? { cell } : {};
    }
    return view;
  }

  /** Say beside the mouse what it points at.
   *
   * @param words what is said of a thing that `under` has found: pairs of a name and a value.
   */
  function explain(view, words) {
    const { canvas } = view;
    const box = document.getElementById("tip") || document.body.appendChild(Object.assign(document.createElement("div"), { id: "tip" }));
    box.hidden = true;
    const found = (event) => {
      const place = canvas.getBoundingClientRect();
      return view.under(event.clientX - place.left, event.clientY - place.top);
    };
    canvas.addEventListener("pointermove", (event) => {
      const said = words(found(event));
      box.hidden = !said.length;
      const rows = said.map(([name, value]) => {
        const row = document.createElement("tr");
        row.append(...[name, value].map((text, index) => Object.assign(document.createElement("td"), { textContent: text, className: index ? "value" : "key" })));
        return row;
      });
      const table = document.createElement("table");
      table.append(...rows);
      box.replaceChildren(table);
      box.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - box.offsetWidth - 4))}px`;
      box.style.top = `${Math.max(4, Math.min(event.clientY + 12, innerHeight - box.offsetHeight - 4))}px`;
    });
    canvas.addEventListener("pointerleave", () => (box.hidden = true));
    return found;
  }

  return { graph, matrix, bins, explain, ramp, rgb };
})();
