// What the reader's choices decide: computed by recommendation.py for every one that the page offers,
// looked up here, and put into its sentences with the sizes at this load.
const usable = () => S.limit === null ? null : S.limit * D.usable[S.axis];
function sizeOf(build) {
  if (S.axis === "disk") return build.disk;
  if (build.weights === null || D.kv === null) return null;
  return build.weights + build.rest + D.kv * S.context * S.sequences;
}
function fits(build) {
  if (usable() === null) return true;
  const size = sizeOf(build);
  return size !== null && size <= usable();
}
function longestContext(build) {
  if (S.axis === "disk" || usable() === null || build.weights === null || D.kv === null) return null;
  const tokens = Math.max(0, Math.floor((usable() - build.weights - build.rest) / (D.kv * S.sequences)));
  return D.context === null ? tokens : Math.min(tokens, D.context);
}
function difference(one, other) {
  const [a, b] = [builds.indexOf(one), builds.indexOf(other)];
  const [low, high] = [Math.min(a, b), Math.max(a, b)];
  const found = D.pairs[low * builds.length - low * (low + 1) / 2 + high - low - 1];
  return found ? [a < b ? found[0] : -found[0], found[1], found[2]] : null;
}

const tokensAt = () => S.axis === "disk" ? 0 : D.offered.tokens.indexOf(S.context * S.sequences);
const floorAt = () => D.offered.floors.indexOf(S.floor);
const meets = (build) => D.meets[floorAt()].includes(build.index);
const frontier = () => D.frontiers[S.axis][tokensAt()].map((index) => D.builds[index]);
const least = (items, of) => items.reduce((a, b) => of(b) < of(a) ? b : a);
const kl = (build) => build.kl.mean;
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

function choose() {
  const { limits, floors } = D.offered;
  const at = (tokensAt() * limits.length + limits.indexOf(S.limit)) * floors.length + floorAt();
  const [rule, ...indices] = D.outcomes[D.decisions[S.axis][at]];
  const [build, smaller, better] = indices.map((index) => index === null ? null : D.builds[index]);
  const others = [["smaller", smaller], ["better", better]].filter(([, other]) => other).map(([name, other]) => say(name, other, build));
  return { pick: rule === "pick" || rule === "original" ? build : null, verdict: say(rule, build), others };
}
const about = (build) => say("pick", build);
function say(rule, build, pick = null) {
  const [name, text] = D.sentences[rule];
  if (!build) return { name, text };
  const size = sizeOf(build) ?? 0, needs = D.needs[S.axis], own = pick && (sizeOf(pick) ?? 0);
  const room = rule === "none_fits" ? longestContext(build) : null, over = usable() === null ? 0 : size - usable();
  const values = {
    label: build.label, needs, size: bytes(size), usable: bytes(usable() ?? 0), kl: build.kl ? significant(kl(build)) : "",
    room: room !== null && room >= D.room ? fill(D.parts.room, { room }) : "", facts: rule === "pick" ? facts(build) : "",
    over: over > 0 ? fill(D.parts.over, { over: bytes(over) }) : "",
    saved: bytes(own - size), more: bytes(size - own), pick_kl: pick ? significant(kl(pick)) : "",
  };
  return { name: fill(name, values), text: fill(text, values) };
}
function facts(build) {
  const limited = S.axis === "memory" && usable() !== null && fits(build), found = [];
  if (sizeOf(build) !== null) found.push(fill(limited ? D.parts.fits : D.parts.size, { size: bytes(sizeOf(build)), needs: D.needs[S.axis] }));
  if (build.top1 !== null && build.top1 !== undefined) found.push(fill(D.parts.top1, { top1: percent(build.top1) }));
  else if (build.kl) found.push(fill(D.parts.kl, { kl: significant(kl(build)) }));
  return found.join(" and ") + (build.tasks ? `; ${build.tasks}` : "");
}
