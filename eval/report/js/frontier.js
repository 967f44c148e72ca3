// KL against size: points with intervals, the frontier, the limits.
function frontierChart() {
  if (!$("#c-frontier")) return;
  const points = compared.filter((build) => sizeOf(build) && kl(build) > 0);
  if (!points.length) { $("#c-frontier").replaceChildren(); return; }
  const width = widthOf("c-frontier"), phone = width < 520, height = phone ? 340 : 430;
  const margin = { marginLeft: 52, marginRight: 16, marginTop: 24, marginBottom: 44 };
  const front = frontier(), known = reference && sizeOf(reference) ? [sizeOf(reference)] : [];
  const inUnit = (count) => count / D.factor;
  const sizes = [...points.map(sizeOf), ...known].map(inUnit);
  const x = [d3.min(sizes) / 1.06, d3.max(sizes) * 1.06];
  const ends = points.flatMap((b) => [b.kl.mean, ...range(b), ...(b.kl.ci ?? [])]).filter((v) => v > 0);
  const low = Math.min(d3.min(ends), nearNoise(d3.min(ends)), S.floor ?? Infinity) / 1.5;
  const y = [low, Math.max(d3.max(ends), S.floor ?? 0) * 1.4];
  const over = usable() === null ? null : inUnit(usable());
  const visible = over !== null && over > x[0] && over < x[1];
  const isFront = new Set(front), xTicks = logTicks(...x, phone ? 4 : 8), yTicks = logTicks(...y);
  const svg = plot({
    ...margin, width, height,
    x: { axis: null, type: "log", domain: x },
    y: { axis: null, type: "log", domain: y },
    marks: [
      over !== null && over < x[1] ? Plot.rect([0], { x1: Math.max(over, x[0]), x2: x[1], y1: y[0], y2: y[1], fill: "var(--bad-soft)", fillOpacity: 0.45 }) : null,
      D.noise && D.noise > y[0] ? Plot.rect([0], { x1: x[0], x2: x[1], y1: y[0], y2: Math.min(D.noise, y[1]), fill: "var(--sunk)" }) : null,
      gridY(yTicks), logAxis(Plot.axisX, xTicks), logAxis(Plot.axisY, yTicks),
      visible ? Plot.ruleX([over], { stroke: "var(--bad)", strokeDasharray: "4 3" }) : null,
      S.floor ? Plot.ruleY([S.floor], { stroke: "var(--good)", strokeDasharray: "2 3" }) : null,
      known.length ? Plot.ruleX([inUnit(known[0])], { stroke: "var(--m-ref)", strokeDasharray: "1 4" }) : null,
      Plot.line(staircase(front), { x: (b) => inUnit(sizeOf(b)), y: kl, curve: "step-after", stroke: "var(--edge)", strokeWidth: 2 }),
      Plot.ruleX(points.filter((b) => range(b).length), { x: (b) => inUnit(sizeOf(b)), y1: (b) => range(b)[0], y2: (b) => range(b)[1], stroke: colour, strokeOpacity: 0.55, strokeWidth: 1.3 }),
      Plot.ruleX(points.filter((b) => b.kl.ci && b.kl.ci[0] > 0), { x: (b) => inUnit(sizeOf(b)), y1: (b) => b.kl.ci[0], y2: (b) => b.kl.ci[1], stroke: colour, strokeWidth: 3.4 }),
      S.current?.kl && sizeOf(S.current) ? Plot.dot([S.current], { x: (b) => inUnit(sizeOf(b)), y: kl, r: 11, stroke: "var(--text)", strokeWidth: 1.6, ariaHidden: "true" }) : null,
      Plot.dot(points, {
        x: (b) => inUnit(sizeOf(b)), y: kl, symbol: (b) => shape(b), r: phone ? 5.5 : 6, stroke: colour, strokeWidth: 1.8,
        fill: (b) => meets(b) && fits(b) ? colour(b) : "var(--surface)", ariaDescription: "points",
      }),
    ],
  });
  const X = svg.scale("x").apply, Y = svg.scale("y").apply;
  const at = points.map((build) => ({ build, x: X(inUnit(sizeOf(build))), y: Y(kl(build)) }));
  const inner = { left: margin.marginLeft, right: width - margin.marginRight, top: margin.marginTop, bottom: height - margin.marginBottom };
  const note = (text, px, py, anchor, fill) => d3.select(svg).append("text").attr("x", px).attr("y", py)
    .attr("class", "halo").attr("text-anchor", anchor).style("fill", fill).text(text);
  note("KL from the original, nats per token (log)", 0, 12, "start", "var(--muted)");
  note(`${S.axis === "memory" ? "memory at this load" : "size on disk"}, ${D.unit} (log)`, inner.right, height - 6, "end", "var(--muted)");
  const fixedBoxes = [];
  if (visible) {
    const text = `over ${limitText()}`, wide = textWidth(text, 400) + 6, left = X(over) + wide > width;
    note(text, X(over) + (left ? -5 : 5), inner.top + 12, left ? "end" : "start", "var(--bad)");
    fixedBoxes.push([left ? X(over) - wide : X(over), inner.top, wide, 16]);
  }
  if (D.noise && D.noise > y[0]) { note("numerical noise of the original", inner.left + 6, inner.bottom - 5, "start", "var(--muted)"); fixedBoxes.push([inner.left, inner.bottom - 16, 190, 16]); }
  if (known.length) { note("original", X(inUnit(known[0])) - 5, inner.bottom - 5, "end", "var(--muted)"); fixedBoxes.push([X(inUnit(known[0])) - 56, inner.bottom - 16, 56, 16]); }
  const named = phone ? at.filter((p) => p.build === S.current || p.build === S.choice.pick) : at.filter((p) => points.length <= 16 || isFront.has(p.build) || p.build === S.current);
  const first = (p) => p.build === S.current ? 0 : isFront.has(p.build) ? 1 : 2;
  placeLabels(svg, named.sort((a, b) => first(a) - first(b)), at, inner, fixedBoxes, isFront);
  // the last group of dots: the ring of the selection comes before
  const groups = $$('g[aria-label="dot"]', svg);
  groups.slice(0, -1).forEach((group) => group.setAttribute("aria-label", "ring"));
  mount("c-frontier", svg, "KL from the original against size, one mark a build", "dot", (i) => tooltip(points[i]));
  legend(points);
  const others = front.length < points.length ? " Each other build has a rival at most 1 % larger that is better beyond chance." : "";
  const whole = known.length ? ` The original ${D.needs[S.axis]} ${bytes(sizeOf(reference))}${S.axis === "memory" ? " at this load" : ""}${fits(reference) ? "." : `, more than ${holds()}.`}` : "";
  $("#frontier-lede").replaceChildren(el("strong", {}, `${front.length} of ${points.length} builds ${front.length === 1 ? "is" : "are"} on the frontier.`), others + whole);
}
// Noise far below every build would leave the chart empty above it.
const nearNoise = (least) => D.noise && D.noise > least / 20 ? D.noise : Infinity;
const range = (build) => build.kl.domains.length > 1 ? d3.extent(build.kl.domains, (d) => d[1]) : [];
const holds = () => S.axis === "memory" ? `the ${bytes(usable())} usable of ${limitText()}` : limitText();
const limitText = () => $("#ask-limit").selectedOptions[0].textContent;
function staircase(front) {
  let best = Infinity;
  return front.filter((build) => kl(build) < best && ((best = kl(build)), true));
}
function tooltip(build) {
  const facts = [];
  const size = sizeOf(build);
  if (size !== null) facts.push([S.axis === "memory" ? "Memory" : "On disk", bytes(size) + (fits(build) ? "" : ", over the limit")]);
  if (build.kl) facts.push(["KL", `${significant(kl(build))}${build.kl.half === null ? "" : ` ${plusMinus(build.kl.half)}`} nats`]);
  if (build.top1 !== null && build.top1 !== undefined) facts.push(["Same top token", percent(build.top1)]);
  if (build.ppl !== undefined) facts.push(["Perplexity", `${build.ppl < 0 ? "" : "+"}${fixed(100 * build.ppl, 2)}${NB}%`]);
  if (build.decode) facts.push(["Decode", `${significant(build.decode)} tok/s`]);
  const room = longestContext(build);
  if (room !== null) facts.push(["Longest context", room ? grouped(room) : "none"]);
  const pick = S.choice.pick;
  const against = pick && pick !== build && pick !== reference && build !== reference && build.kl ? difference(build, pick) : null;
  if (against) facts.push([`KL against ${pick.label}`, `${against[0] < 0 ? "" : "+"}${significant(against[0], 2)} ${plusMinus(against[1])}`]);
  if (build.missed) facts.push(["Gates", "misses one"]);
  return { build, title: build.label, facts, code: build.command };
}

// Greedy: each label takes the place around its mark where it covers least.
function placeLabels(svg, named, points, inner, taken, isFront) {
  const boxes = [...taken, ...points.map((p) => [p.x - 7, p.y - 7, 14, 14])];
  const overlap = (a, b) => Math.max(0, Math.min(a[0] + a[2], b[0] + b[2]) - Math.max(a[0], b[0])) *
    Math.max(0, Math.min(a[1] + a[3], b[1] + b[3]) - Math.max(a[1], b[1]));
  for (const { build, x, y } of named) {
    const text = short(build.label), wide = textWidth(text, 700) + 4, places = [];
    for (const dy of [0, -16, 16, -30, 30, -44, 44]) for (const dx of [10, -10 - wide, -wide / 2]) {
      if (dx === -wide / 2 && Math.abs(dy) < 16) continue;
      const box = [x + dx, y + dy - 8, wide, 16];
      const outside = Math.max(0, inner.left - box[0]) + Math.max(0, box[0] + wide - inner.right) + Math.max(0, inner.top - box[1]) + Math.max(0, box[1] + 16 - inner.bottom);
      places.push({ box, dy, cost: 30 * outside + d3.sum(boxes, (other) => overlap(box, other)) + 1.5 * Math.abs(dy) + (dx < 0 ? 4 : 0) });
    }
    const best = least(places, (place) => place.cost);
    if (best.cost > 260 && build !== S.current) continue;
    boxes.push(best.box);
    if (Math.abs(best.dy) > 20) d3.select(svg).append("line").attr("x1", x).attr("y1", y + 7 * Math.sign(best.dy)).attr("x2", Math.max(best.box[0], Math.min(x, best.box[0] + wide))).attr("y2", best.box[1] + (best.dy < 0 ? 15 : 1)).style("stroke", "var(--edge)");
    d3.select(svg).append("text").attr("class", "label").attr("text-anchor", "start").attr("x", best.box[0] + 2).attr("y", best.box[1] + 12)
      .style("fill", isFront.has(build) || build === S.current ? "var(--text)" : "var(--faint)")
      .style("font-weight", build === S.current ? 700 : isFront.has(build) ? 560 : 400).text(text);
  }
}
function legend(points) {
  const seen = new Map(points.map((build) => [build.family, build]));
  const items = [...seen.values()].map((build) => keyItem(build.mark, build.family));
  const hollow = points.some((build) => !meets(build) || !fits(build)) ? [keyItem(null, "hollow: misses a limit")] : [];
  $("#legend").replaceChildren(...items, ...hollow);
}
function keyItem(mark, text) {
  const svg = d3.create("svg").attr("width", 14).attr("height", 14).attr("viewBox", "-8 -8 16 16").attr("aria-hidden", "true");
  const path = svg.append("path").attr("d", d3.symbol(d3[`symbol${{ square: "Square", circle: "Circle", triangle: "Triangle", diamond: "Diamond", wye: "Wye", star: "Star", cross: "Cross" }[shapes[mark] ?? "circle"]}`], 72)());
  if (mark) path.style("fill", `var(--m-${mark})`);
  else path.style("fill", "none").style("stroke", "var(--muted)").style("stroke-width", 1.6);
  return el("li", {}, svg.node(), text);
}
