"use strict";
// The colours of the graph's nodes: their clusters, or by a number of each client at the slider's round, its score or its
// gain over training alone. The scale is that of the whole run, so that rounds can be compared.
const shade = (() => {
  const CHOICES = ["cluster", "score", "gain"], OUTSIDE = 0.04; // share of the numbers beyond an end of a scale

  /** A client's numbers: the score, and what it gains over training alone, positive where it is better off. */
  function numbers(run, clients) {
    const here = clients.runs[run.clients];
    if (!here?.curves) return {};
    const alone = here.local ? null : clients.runs.find((entry) => entry.data === here.data && entry.local && entry.curves);
    const score = (id, round) => client.at(here, id, round);
    const gain = (id, round) => {
      const [own, other] = [score(id, round), client.at(alone, id, round)];
      return own === null || other === null ? null : (run.score.higher ? 1 : -1) * (own - other);
    };
    return alone ? { score, gain } : { score };
  }

  /** The scale of a number; null for clusters, and where the run has no such number.
   *
   * @param kind one of the choices.
   * @param run of the slider.
   * @param clients of the page.
   * @param colours of the theme.
   */
  function scale(kind, run, clients, colours) {
    const value = numbers(run, clients)[kind];
    if (!value) return null;
    const nodes = run.nodes.filter((node) => !node.server), rounds = clients.runs[run.clients].rounds;
    const known = rounds.flatMap((round) => nodes.map((node) => value(node.id, round))).filter((one) => one !== null);
    known.sort((a, b) => a - b);
    if (!known.length) return null;
    const [low, high] = kind === "gain" ? around(known) : withoutWorst(known, run.score.higher), falls = kind === "score" && !run.score.higher;
    const stops = kind === "gain" ? colours.gain : colours.ramp, paint = linked.ramp(falls ? [...stops].reverse() : stops);
    const share = (one) => (one - low) / (high - low);
    const words = client.writing(run.score), write = (one) => (kind === "gain" ? words.signed(one) : words.text(one));
    const ends = [`${known[0] < low ? "≤ " : ""}${write(low)}`, `${known.at(-1) > high ? "≥ " : ""}${write(high)}`];
    return {
      value, low, high,
      colour: (id, round) => {
        const one = value(id, round);
        return one === null ? colours.absent : paint(share(one));
      },
      label: kind === "gain" ? `gain over training alone${run.score.percent ? ", points" : `, ${run.score.label.replace(/^test /, "")}`}` : run.score.axis,
      words: kind === "gain" ? [ends[0], "0", ends[1]] : ends,
      gradient: `linear-gradient(90deg, ${[0, 0.25, 0.5, 0.75, 1].map(paint).join(",")})`,
    };
  }
  const wide = (low, high) => (high > low ? [low, high] : [low - (Math.abs(low) || 1) / 100, high + (Math.abs(high) || 1) / 100]);
  function around(order) {
    const sizes = order.map(Math.abs).sort((a, b) => a - b), most = sizes[Math.floor((1 - OUTSIDE) * (sizes.length - 1))] || sizes.at(-1);
    return wide(-most, most);
  }
  function withoutWorst(order, higher) {
    const few = Math.floor(OUTSIDE * order.length);
    return higher ? wide(order[few], order.at(-1)) : wide(order[0], order[order.length - 1 - few]);
  }

  /** Black or white: what can be read on a colour, "rgb(r,g,b)" or "#rrggbb". */
  function readable(colour) {
    const light = ([r, g, b]) => {
      const [x, y, z] = [r, g, b].map((part) => (part <= 10 ? part / 3294 : ((part / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * x + 0.7152 * y + 0.0722 * z + 0.05;
    };
    const under = light(colour.startsWith("#") ? linked.rgb(colour) : colour.match(/\d+/g).map(Number));
    return under * under > 0.05 * 1.05 ? "#000000" : "#ffffff";  // the contrast to black is under / .05, to white 1.05 / under
  }

  /** A client's number in a round; null where it is not known. */
  const value = (kind, run, clients, id, round) => numbers(run, clients)[kind]?.(id, round) ?? null;
  /** Which choices a run has. */
  const known = (run, clients) => CHOICES.filter((kind) => kind === "cluster" || numbers(run, clients)[kind]);
  return { CHOICES, known, scale, value, readable };
})();
