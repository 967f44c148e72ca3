// Controls, table and theme; `render` paints what depends on the load and the selection.
const asked = (name) => $(`#ask-${name}`);
const number = (node) => node && node.value ? Number(node.value) : null;

function readLoad() {
  S.limit = number(asked("limit"));
  S.context = number(asked("context")) ?? 0;
  S.sequences = number(asked("sequences")) ?? 1;
  S.floor = number(asked("floor"));
}
function select(build) {
  S.selected = build === S.selected ? null : build;
  S.picked = {};
  render();
}
// The build that a section shows: chosen in it, else the current one, else the first that has it.
function shown(section, has) {
  const wanted = S.picked?.[section] ?? S.current;
  const build = wanted && has(wanted) ? wanted : builds.find(has);
  const picker = $(`[data-pick="${section}"]`);
  if (picker && build) picker.value = String(build.index);
  return build;
}

function sayVerdict() {
  const { pick, verdict, others } = S.choice, own = S.selected && S.selected !== pick ? S.selected : null;
  const told = own ? about(own) : verdict;
  $("#eyebrow").textContent = own ? "Selected build" : pick ? "Recommended" : "Verdict";
  $("#verdict-text").replaceChildren(el("b", {}, told.name), ` ${told.text}`);
  const lines = own && pick ? [{ name: `Recommended instead: ${pick.label}`, text: about(pick).text }] : own ? [] : others;
  $("#others").replaceChildren(...lines.map((line) => el("li", {}, el("b", {}, line.name), ` ${line.text}`)));
  $("#tiles").replaceChildren(...tiles(own ?? pick));
}
function tiles(build) {
  if (!build || build === reference) return [];
  const tile = (figure, unit, label, detail) => el("div", { className: "tile" }, el("b", {}, figure, el("small", {}, unit)), el("span", {}, label), el("em", {}, detail));
  const found = [], whole = reference && sizeOf(reference), size = sizeOf(build);
  if (whole && size) {
    const saved = Math.round(100 * (1 - size / whole));
    found.push(tile(`${saved < 0 ? "+" : "\u2212"}${Math.abs(saved)}`, "%", S.axis === "memory" ? "Memory" : "Size", `${bytes(size)} instead of ${bytes(whole)}`));
  }
  if (build.kl) found.push(tile(significant(kl(build)), "nats", "Divergence", D.noise && kl(build) < 100 * D.noise ? `${significant(kl(build) / D.noise, 2)}\u00d7 the numerical noise of the original` : "mean KL per token"));
  if (build.decodeRatio) found.push(tile(fixed(build.decodeRatio, 2), "\u00d7", "Decode speed", `of the original's, in the same run`));
  else if (build.top1 !== null && build.top1 !== undefined) found.push(tile(significant(100 * build.top1), "%", "Same top token", "of positions"));
  return found;
}

const table = $("#t-builds"), heads = $$("thead th", table), column = (field) => heads.findIndex((head) => head.dataset.field === field);
function paintTable() {
  $$("tbody tr", table).forEach((row) => {
    const build = D.builds[row.dataset.b];
    write(row, "memory_bytes", memorySize(build), (size) => significant(size / D.factor));
    write(row, "longest_context_tokens", longestContext(build), (room) => room ? grouped(room) : "none");
    row.classList.toggle("over", !fits(build) || (build !== reference && !meets(build)));
    row.toggleAttribute("aria-current", build === S.current);
    if (build === S.current) row.setAttribute("aria-current", "true");
    flag(row, "pick", build === S.choice.pick && "accent", "pick");
    flag(row, "over", sizeOf(build) !== null && !fits(build) && "bad", "over");
  });
}
const memorySize = (build) => build.weights === null || D.kv === null ? null : build.weights + build.rest + D.kv * S.context * S.sequences;
function write(row, field, value, text) {
  const at = column(field);
  if (at < 0) return;
  row.cells[at].dataset.v = value ?? "";
  row.cells[at].textContent = value === null ? "" : text(value);
}
function flag(row, name, kind, text) {
  const old = $(`[data-flag="${name}"]`, row);
  if (!kind) old?.remove();
  else if (!old) {
    const pill = el("span", { className: `pill ${kind}` }, text);
    pill.dataset.flag = name;
    row.cells[0].append(pill);
  }
}
function sortBy(at, direction) {
  heads.forEach((head, i) => i === at ? head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
  const value = (row) => row.cells[at].dataset.v;
  const order = (a, b) => at === 0 ? value(a).localeCompare(value(b), "en", { numeric: true }) : Number(value(a)) - Number(value(b));
  const rows = $$("tbody tr", table);
  rows.sort((a, b) => (value(a) === "") - (value(b) === "") || direction * order(a, b));
  $("tbody", table).append(...rows);
}
function wireTable() {
  heads.forEach((head, at) => {
    const button = el("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort"), first = "falls" in head.dataset ? -1 : 1;
      sortBy(at, now === null ? first : now === "ascending" ? -1 : 1);
    });
  });
  const rows = $$("tbody tr", table);
  rows.forEach((row) => {
    row.tabIndex = 0;
    row.addEventListener("click", () => select(D.builds[row.dataset.b]));
    row.addEventListener("keydown", (event) => {
      const next = { ArrowDown: row.nextElementSibling, ArrowUp: row.previousElementSibling }[event.key];
      if (event.key === "Enter") select(D.builds[row.dataset.b]);
      else if (next) next.focus();
      else return;
      event.preventDefault();
    });
  });
  const verdicts = new Map($$("#t-recipes tbody tr").map((row) => [row.dataset.b, row.cells[1].firstChild.textContent]));
  $("#filter").addEventListener("input", (event) => {
    const wanted = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    rows.forEach((row) => {
      const text = `${D.builds[row.dataset.b].label} ${D.builds[row.dataset.b].family} ${row.cells[0].textContent} ${verdicts.get(row.dataset.b) ?? ""}`.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
    });
    const count = rows.filter((row) => !row.hidden).length;
    $("#shown").textContent = wanted.length ? `${count} of ${rows.length}` : "";
  });
}

// Tables with rows of every build show one at a time: all of them are there without script.
const OWN_ROWS = { tasks: ["#t-tasks"], speed: ["#t-local", "#t-engine"], modules: ["#t-worst"], gates: ["#t-gates"] };
function showRows() {
  for (const [section, tables] of Object.entries(OWN_ROWS)) {
    const rows = tables.flatMap((each) => $$(`${each} tbody tr`));
    if (!rows.length) continue;
    tables.forEach((each) => $(each)?.classList.add("one"));
    const present = new Set(rows.map((row) => row.dataset.b));
    const build = shown(section, (each) => present.has(String(each.index)));
    rows.forEach((row) => { row.hidden = build && row.dataset.b !== String(build.index); });
  }
  const commands = $$(".command"), all = S.allCommands;
  const own = commands.find((each) => S.current && each.dataset.b === String(S.current.index)) ?? commands[0];
  commands.forEach((each) => { each.hidden = !all && each !== own; });
  if ($("#more-commands")) $("#more-commands").hidden = all || commands.length < 2;
}

function render() {
  S.choice = choose();
  S.current = S.selected ?? S.choice.pick ?? (compared.length ? least(compared, kl) : null);
  sayVerdict();
  paintTable();
  showRows();
  frontierChart();
  draw();
}
// The charts further down are drawn one by one when the browser has nothing better to do.
const idle = window.requestIdleCallback ?? setTimeout;
let waiting = [];
function draw() {
  const begun = waiting.length > 0;
  waiting = [partsChart, blocksChart, tailChart, localChart, engineCharts, modulesChart];
  if (!begun) idle(drawNext);
}
function drawNext() {
  waiting.shift()?.();
  if (waiting.length) idle(drawNext);
  else root.dataset.drawn = "1";
}

function theme(name) {
  if (name === "auto") delete root.dataset.theme; else root.dataset.theme = name;
  $$("[data-theme]", document.body).forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.theme === name)));
}
const stored = (act) => { try { return act(localStorage); } catch { return null; } };

$$("[data-theme]", document.body).forEach((button) => button.addEventListener("click", () => {
  theme(button.dataset.theme);
  stored((storage) => storage.setItem("quantkit-theme", button.dataset.theme));
}));
$$("[data-axis]").forEach((button) => button.addEventListener("click", () => {
  S.axis = button.dataset.axis;
  $$("[data-axis]").forEach((each) => each.setAttribute("aria-pressed", String(each === button)));
  render();
}));
$$(".ask select").forEach((each) => each.addEventListener("change", () => { readLoad(); S.selected = null; render(); }));
$$("[data-pick]").forEach((each) => each.addEventListener("change", () => {
  S.picked = { ...S.picked, [each.dataset.pick]: D.builds[each.value] };
  showRows();
  draw();
}));
$$("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  const text = $("pre", button.parentElement);
  try {
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(text);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}));
$("#more-commands")?.addEventListener("click", () => { S.allCommands = true; showRows(); });
addEventListener("keydown", (event) => { if (event.key === "Escape") hideTip(); });
addEventListener("beforeprint", () => { while (waiting.length) waiting.shift()(); });
addEventListener("scroll", hideTip, { passive: true });
let lastWidth = innerWidth, timer = 0;
addEventListener("resize", () => {
  if (innerWidth === lastWidth) return;
  lastWidth = innerWidth;
  clearTimeout(timer);
  timer = setTimeout(render, 80);
});
theme(stored((storage) => storage.getItem("quantkit-theme")) ?? "auto");
readLoad();
wireTable();
render();
root.dataset.ready = "1";
