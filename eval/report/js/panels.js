// The charts below the table: memory, tails, speed, modules.
const PARTS = [["linear", "Linear layers"], ["scales", "Scales and zeros"], ["unquantized", "Unquantized"], ["weights", "Weights"], ["kv", "KV cache"], ["activations", "Activations"], ["context", "Context"]];
const partName = (name) => PARTS.find((part) => part[0] === name)?.[1] ?? name;
const shade = (name) => `var(--p${{ linear: 0, weights: 0, scales: 1, unquantized: 2, kv: 3, activations: 4, context: 5 }[name] ?? 6})`;

function partsChart() {
  if (!$("#c-parts")) return;
  const cells = D.builds.filter((build) => build.parts && build.weights !== null).flatMap((build) => {
    const parts = build.split ? { ...build.parts } : { weights: build.weights, ...build.parts };
    if (D.kv !== null) parts.kv = D.kv * S.context * S.sequences;
    const order = (name) => { const i = PARTS.findIndex((part) => part[0] === name); return i < 0 ? PARTS.length : i; };
    let start = 0;
    return Object.keys(parts).sort((a, b) => order(a) - order(b)).map((name) => {
      const cell = { build, name, from: start / D.factor, to: (start += parts[name]) / D.factor, size: parts[name] };
      return cell;
    });
  });
  if (!cells.length) return;
  const totals = d3.rollup(cells, (own) => d3.max(own, (c) => c.to), (c) => c.build);
  const rows = [...totals.keys()].sort((a, b) => totals.get(b) - totals.get(a)), width = widthOf("c-parts");
  const most = d3.max(totals.values()), over = usable() === null || S.axis === "disk" ? null : usable() / D.factor;
  const svg = plot({
    width, ...rowsOf(rows, width), marginRight: 44, marginTop: 18, marginBottom: 26, x: { ...axis, domain: [0, most * 1.02], ticks: width < 420 ? 4 : 8 },
    marks: [
      gridX(),
      Plot.barX(cells, { x1: "from", x2: "to", y: (c) => c.build.index, fill: (c) => shade(c.name), stroke: "var(--surface)", strokeWidth: 0.6 }),
      Plot.text(rows, { x: (b) => totals.get(b), y: "index", text: (b) => significant(totals.get(b)), dx: 5, textAnchor: "start", stroke: "var(--surface)", strokeWidth: 3, fill: "var(--text)" }),
      over !== null && over < most ? Plot.ruleX([over], { stroke: "var(--bad)", strokeDasharray: "4 3" }) : null,
    ],
  });
  mount("c-parts", svg, `Stacked bars: ${D.unit} by part, one bar a build`, "bar", (i) => ({
    build: cells[i].build, title: cells[i].build.label, facts: [[partName(cells[i].name), bytes(cells[i].size)], ["Total", bytes(totals.get(cells[i].build) * D.factor)]],
  }));
  const names = [...new Set(cells.map((cell) => cell.name))];
  key("#parts-legend", names.map((name) => [shade(name), partName(name)]));
}
function key(where, items) {
  $(where).replaceChildren(...items.map(([fill, text]) => {
    const box = el("i");
    box.style.background = fill;
    return el("li", {}, box, text);
  }));
}

function blocksChart() {
  if (!$("#c-blocks")) return;
  const build = shown("blocks", (b) => b.blocks?.length);
  if (!build) return;
  const names = [...new Set(build.blocks.flatMap((block) => Object.keys(block)))].filter((name) => name.endsWith("_bytes") && build.blocks.some((block) => typeof block[name] === "number")).slice(0, 4);
  const cells = names.flatMap((name, i) => build.blocks.map((block, at) => ({ name, i, at, label: String(block.name ?? block.block ?? at), size: block[name] / D.factor })).filter((cell) => Number.isFinite(cell.size)));
  const width = widthOf("c-blocks");
  const svg = plot({
    width, height: 220, marginLeft: 46, marginRight: 12, marginTop: 10, marginBottom: 26,
    x: { ...axis, domain: [0, Math.max(1, build.blocks.length - 1)], ticks: Math.min(width < 420 ? 3 : 6, build.blocks.length), tickFormat: (i) => Number.isInteger(i) ? `block ${i}` : "" },
    y: { ...axis, domain: [0, d3.max(cells, (c) => c.size) * 1.05], ticks: 5 },
    marks: [gridY(), Plot.line(cells, { x: "at", y: "size", z: "name", stroke: (c) => `var(--p${[0, 3, 2, 4][c.i]})`, strokeWidth: 1.6 }),
      Plot.dot(cells, { x: "at", y: "size", r: 3, fill: (c) => `var(--p${[0, 3, 2, 4][c.i]})` })],
  });
  mount("c-blocks", svg, `Bytes block by block for ${build.label}`, "dot", (i) => ({ title: `block ${cells[i].label}`, facts: [[words(cells[i].name), bytes(cells[i].size * D.factor)]] }));
  key("#blocks-legend", names.map((name, i) => [`var(--p${[0, 3, 2, 4][i]})`, words(name)]));
}
const words = (name) => name.replace(/_bytes$/, "").replaceAll("_", " ");

const TAIL = [["median", "median"], ["mean", "mean"], ["p99", "p99"], ["p999", "p99.9"], ["max", "max"]];
function tailChart() {
  if (!$("#c-tail")) return;
  const rows = [...compared].sort((a, b) => kl(a) - kl(b)), width = widthOf("c-tail");
  const cells = rows.flatMap((build) => TAIL.map(([name, text]) => ({ build, name, text, value: build.kl[name] })).filter((c) => c.value > 0));
  const [low, high] = d3.extent(cells, (c) => c.value), x = [Math.min(low, nearNoise(low)) / 1.3, high * 1.2];
  const ticks = logTicks(...x).filter((tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9);
  const spans = rows.map((build) => ({ build, ends: d3.extent(cells.filter((c) => c.build === build), (c) => c.value) })).filter((s) => s.ends[0]);
  const svg = plot({
    width, ...rowsOf(rows, width), marginRight: 14, marginTop: 20, marginBottom: 26, x: { axis: null, type: "log", domain: x },
    marks: [
      D.noise && D.noise > x[0] ? Plot.rect([0], { x1: x[0], x2: D.noise, fill: "var(--sunk)" }) : null, gridX(ticks), logAxis(Plot.axisX, ticks),
      Plot.ruleY(spans, { x1: (s) => s.ends[0], x2: (s) => s.ends[1], y: (s) => s.build.index, stroke: "var(--edge)" }),
      Plot.tickX(cells.filter((c) => c.name !== "mean"), { x: "value", y: (c) => c.build.index, stroke: (c) => colour(c.build), strokeWidth: 2, insetTop: 1, insetBottom: 1 }),
      Plot.dot(rows, { x: kl, y: "index", symbol: shape, r: 4.5, fill: colour }),
    ],
  });
  let end = 0;
  for (const [name, text] of TAIL.filter((each) => rows[0].kl[each[0]] > 0)) {
    const at = svg.scale("x").apply(rows[0].kl[name]), half = textWidth(text) / 2;
    if (at - half < end) continue;
    end = at + half + 6;
    d3.select(svg).append("text").attr("x", at).attr("y", 12).attr("text-anchor", "middle").text(text);
  }
  mount("c-tail", svg, "KL per token on a log line: median, mean, 99th and 99.9th percentile, maximum", "dot", (i) => ({
    build: rows[i], title: rows[i].label, facts: TAIL.filter(([name]) => rows[i].kl[name] !== null).map(([name, text]) => [text, significant(rows[i].kl[name])]),
  }));
}

function localChart() {
  if (!$("#c-local")) return;
  const cells = builds.flatMap((build) => (build.local ?? []).flatMap((cell) => ["decode", "prefill"].filter((phase) => cell[phase]).map((phase) => ({ build, phase, value: cell[phase], ...cell }))));
  if (!cells.length) { $("#c-local").closest(".card").hidden = true; return; }
  const rows = [...new Set(cells.map((cell) => cell.build))], width = widthOf("c-local");
  const [low, high] = d3.extent(cells, (c) => c.value), x = [Math.min(low, 1) / 1.15, Math.max(high, 1) * 1.15], ticks = logTicks(...x, width < 380 ? 3 : 5);
  const svg = plot({
    width, ...rowsOf(rows, width), marginRight: 14, marginTop: 8, marginBottom: 26, x: { axis: null, type: "log", domain: x },
    marks: [gridX(ticks), logAxis(Plot.axisX, ticks, (t) => `${tickText(t)}\u00d7`), Plot.ruleX([1], { stroke: "var(--text)", strokeWidth: 1.2 }),
      Plot.dot(cells, { x: "value", y: (c) => c.build.index, symbol: (c) => shape(c.build), r: 4.5, stroke: (c) => colour(c.build), strokeWidth: 1.6, fill: (c) => c.phase === "decode" ? colour(c.build) : "var(--surface)" })],
  });
  mount("c-local", svg, "Speed relative to the original, one row a build", "dot", (i) => ({
    build: cells[i].build, title: cells[i].build.label, facts: [[cells[i].phase, `${fixed(cells[i].value, 2)} \u00d7 the original`], ["Batch", String(cells[i].batch)], ["Context", grouped(cells[i].context)], ["Kernel", cells[i].kernel]],
  }));
}

function engineCharts() {
  if (!$("#c-engine")) return;
  const has = D.builds.filter((build) => build.engine?.length);
  const cells = has.flatMap((build) => build.engine.map((cell) => ({ build, ...cell })));
  const strong = new Set([reference, S.current, S.choice.pick]);
  const stroke = (build) => strong.has(build) ? colour(build) : "var(--edge)";
  const width = widthOf("c-engine"), x = d3.extent(cells, (c) => c.concurrency);
  const [least, most] = d3.extent(cells, (c) => c.output), y = [least / 1.2, most * 1.2], ticks = logTicks(...y);
  const svg = plot({
    width, height: 280, marginLeft: 46, marginRight: 20, marginTop: 10, marginBottom: 40,
    x: { ...axis, type: "log", base: 2, domain: [x[0] / 1.1, x[1] * 1.1], ticks: [...new Set(cells.map((c) => c.concurrency))], tickFormat: String },
    y: { axis: null, type: "log", domain: y },
    marks: [gridY(ticks), logAxis(Plot.axisY, ticks), Plot.line(cells, { x: "concurrency", y: "output", z: (c) => c.build.index, stroke: (c) => stroke(c.build), strokeWidth: 1.8 }),
      Plot.dot(cells, { x: "concurrency", y: "output", symbol: (c) => shape(c.build), r: 4.2, fill: (c) => stroke(c.build) })],
  });
  mount("c-engine", svg, "Output tokens per second by requests in flight", "dot", (i) => {
    const { build, engine, concurrency, output, ttft } = cells[i];
    const base = reference?.engine?.find((cell) => cell.concurrency === concurrency);
    const facts = [["Requests", String(concurrency)], ["Output", `${significant(output)} tok/s`], ["Engine", engine]];
    if (base && build !== reference) facts.push(["Original", `${fixed(output / base.output, 2)} \u00d7`]);
    if (ttft[0] !== null) facts.push(["First token p50", `${significant(ttft[0])} ms`]);
    return { build, title: build.label, facts };
  });
  const last = has.map((build) => ({ build, itl: build.engine.at(-1).itl })).filter((row) => row.itl[0] && row.itl[1]).sort((a, b) => a.itl[0] - b.itl[0]);
  if (!last.length) { $("#c-latency").closest(".card").hidden = true; return; }
  const w = widthOf("c-latency"), mark = (row) => stroke(row.build);
  mount("c-latency", plot({
    width: w, ...rowsOf(last.map((row) => row.build), w), marginRight: 14, marginTop: 6, marginBottom: 26, x: { ...axis, nice: true, ticks: 5 },
    marks: [gridX(), Plot.ruleY(last, { x1: (r) => r.itl[0], x2: (r) => r.itl[1], y: (r) => r.build.index, stroke: mark, strokeWidth: 3 }),
      Plot.dot(last, { x: (r) => r.itl[0], y: (r) => r.build.index, r: 4, fill: mark })],
  }), "Inter-token latency, 50th to 99th percentile", "dot", (i) => ({ build: last[i].build, title: last[i].build.label, facts: [["p50", `${significant(last[i].itl[0])} ms`], ["p99", `${significant(last[i].itl[1])} ms`]] }));
}

const STEPS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3];
function modulesChart() {
  if (!$("#c-modules")) return;
  const build = shown("modules", (b) => b.modules);
  if (!build) return;
  const columns = D.moduleColumns, count = build.modules.length, width = widthOf("c-modules"), down = width < 620;
  const cells = build.modules.flatMap((row, layer) => row.map((value, i) => ({ layer, column: columns[i], value }))).filter((c) => c.value !== null && c.column !== undefined);
  const step = Math.max(1, Math.ceil(count / (down ? 24 : 18)));
  const layers = { ...axis, domain: d3.range(count), padding: 0.06, tickFormat: (i) => i % step ? "" : i }, kinds = { ...axis, domain: columns, padding: 0.05 };
  const svg = plot({
    width, height: down ? 40 + 14 * count : 36 + 26 * columns.length, marginLeft: down ? 30 : 20 + 6.8 * d3.max(columns, (c) => c.length), marginRight: 4, marginTop: down ? 24 : 6, marginBottom: down ? 6 : 26,
    x: down ? { ...kinds, axis: "top" } : layers, y: down ? layers : kinds,
    marks: [Plot.cell(cells, { x: down ? "column" : "layer", y: down ? "layer" : "column", rx: 2, fill: (c) => `var(--h${d3.bisectRight(STEPS, c.value)})` })],
  });
  mount("c-modules", svg, `Relative output error of ${build.label}: ${count} blocks by ${columns.length} kinds of linear`, "cell", (i) => ({ title: `block ${cells[i].layer}, ${cells[i].column}`, facts: [["Relative output error", significant(cells[i].value)]] }));
  key("#modules-legend", [`under ${STEPS[0]}`, ...STEPS.slice(1), `over ${STEPS.at(-1)}`].map((text, i) => [`var(--h${i})`, String(text)]));
}
