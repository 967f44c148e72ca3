// State, elements, numbers: what everything below uses. Names from results are only ever text nodes.
const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement;
root.dataset.script = "1";
const $ = (query, at = document) => at.querySelector(query);
const $$ = (query, at = document) => [...at.querySelectorAll(query)];
const reference = D.reference === null ? null : D.builds[D.reference];
D.builds.forEach((build, index) => { build.index = index; });
const builds = D.builds.filter((build) => build !== reference);
const compared = builds.filter((build) => build.kl);
const S = { axis: D.axis, selected: null };

function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const NB = "\u00a0";
const fixed = (value, decimals) => value.toFixed(decimals).replace("-", "\u2212");
const significant = (value, digits = 3) => value === 0 ? "0"
  : Math.abs(value) < 1e-4 ? value.toExponential(digits - 1).replace(/^-/, "\u2212")
  : fixed(value, Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value)))));
const percent = (fraction, digits = 3) => `${significant(100 * fraction, digits)}${NB}%`;
const plusMinus = (value) => `\u00b1${significant(value, 2).replace(/^0(?=\.)/, "")}`;
const grouped = (value) => String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f");
const bytes = (count) => `${significant(count / D.factor)}${NB}${D.unit}`;
const colour = (build) => `var(--m-${build.mark})`;
