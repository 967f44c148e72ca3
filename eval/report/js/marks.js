// Charts in the page: mounting, tooltips, and walking their marks by keyboard.
const tip = $("#tip");

function showTip(node, { title, facts = [], code }) {
  const list = el("dl", {}, ...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
  tip.replaceChildren(el("b", {}, title), list, ...(code ? [el("code", {}, code)] : []));
  const box = node.getBoundingClientRect();
  const left = box.right + 12 + tip.offsetWidth > innerWidth ? box.left - tip.offsetWidth - 12 : box.right + 12;
  const top = Math.min(Math.max(8, box.top + box.height / 2 - tip.offsetHeight / 2), innerHeight - tip.offsetHeight - 8);
  tip.style.transform = `translate(${Math.max(8, Math.min(left, innerWidth - tip.offsetWidth - 8))}px, ${top}px)`;
  tip.classList.add("on");
}
const hideTip = () => tip.classList.remove("on");

// One stop of the Tab key per chart; arrows go from mark to mark, Enter selects, Escape closes.
function walk(marks) {
  const goTo = (index) => {
    marks.forEach((mark, i) => mark.node.setAttribute("tabindex", i === index ? "0" : "-1"));
    marks[index].node.focus();
  };
  marks.forEach((mark, index) => {
    const { node, build } = mark;
    node.setAttribute("role", "img");
    node.setAttribute("aria-label", [mark.title, ...mark.facts.map((fact) => fact.join(" "))].join(", "));
    node.setAttribute("tabindex", index ? "-1" : "0");
    if (build) node.dataset.b = build.index;
    node.addEventListener("pointerenter", () => showTip(node, mark));
    node.addEventListener("pointerleave", hideTip);
    node.addEventListener("focus", () => showTip(node, mark));
    node.addEventListener("blur", hideTip);
    node.addEventListener("click", () => build && select(build));
    node.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (step) goTo((index + step + marks.length) % marks.length);
      else if (event.key === "Home") goTo(0);
      else if (event.key === "End") goTo(marks.length - 1);
      else if (event.key === "Enter" && build) select(build);
      else if (event.key === "Escape") hideTip();
      else return;
      event.preventDefault();
    });
  });
}

// `marks` tells of each datum of the Plot group `group` what its tooltip says.
function mount(id, svg, label, group, marks) {
  const chart = $(`#${id}`);
  const nodes = group ? $$(`g[aria-label="${group}"] > *`, svg).filter((node) => node.tagName !== "g") : [];
  const found = nodes.map((node) => ({ node, ...marks(node.__data__) }));
  $$("g[aria-label]", svg).forEach((each) => each.removeAttribute("aria-label"));
  svg.setAttribute("role", "group");
  svg.setAttribute("aria-label", label);
  walk(found);
  $$(":scope > g, :scope > text, :scope > line", svg).forEach((each) => {
    if (!$("[role=img]", each)) each.setAttribute("aria-hidden", "true");
  });
  const focused = $$("[role=img]", chart).indexOf(document.activeElement);
  chart.replaceChildren(svg);
  if (focused >= 0) $$("[role=img]", chart)[focused]?.focus();
  return svg;
}

const widthOf = (id) => Math.max(260, $(`#${id}`).clientWidth);
const plot = (options) => Plot.plot({ style: { background: "none", overflow: "visible" }, ...options });
const axis = { label: null, tickSize: 0 };
// Plot lets D3 leave out labels of a log axis; given as text they all stay
const logAxis = (Axis, ticks, text = tickText) => Axis(ticks, { text, ...axis });
const gridX = (ticks) => Plot.gridX(...(ticks ? [ticks] : []), { stroke: "var(--line)", strokeOpacity: 1 });
const gridY = (ticks) => Plot.gridY(...(ticks ? [ticks] : []), { stroke: "var(--line)", strokeOpacity: 1 });
const shapes = { ref: "square", gptq: "circle", awq: "triangle", int8: "square", fp8: "diamond", fp4: "wye", nf4: "star", rtn: "cross" };
const shape = (build) => shapes[build.mark];

// 1, 2, 5 within a decade or two; every power of ten beyond; even steps where the range is short.
function logTicks(low, high, count = 6) {
  if (high / low < 6) return d3.ticks(low, high, count);
  const steps = high / low < 300 ? [1, 2, 5] : high / low < 1e4 ? [1, 3] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const step of steps) found.push(step * 10 ** power);
  }
  return found.filter((tick) => tick >= low && tick <= high);
}
const tickText = (tick) => Number(tick.toPrecision(3)).toString();
const short = (text, most = 26) => text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;

const pen = document.createElement("canvas").getContext("2d");
function textWidth(text, weight = 400) {
  pen.font = `${weight} 12px ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text).width;
}

// A row a build, with room on the left for the longest name, cut where there is none.
function rowsOf(rows, width) {
  const room = Math.min(width * 0.36, 200);
  const cut = (text) => {
    for (let most = text.length; most > 4; most--) if (textWidth(short(text, most)) <= room) return short(text, most);
    return text.slice(0, 4);
  };
  const names = new Map(rows.map((build) => [build.index, cut(build.label)]));
  return {
    marginLeft: 12 + d3.max(names.values(), (name) => textWidth(name)), height: 40 + 20 * rows.length,
    y: { ...axis, domain: rows.map((b) => b.index), tickFormat: (i) => names.get(i), padding: 0.4 },
  };
}
