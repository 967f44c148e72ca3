// The rules of verdict.py and frontier.py, for the loads that the reader chooses.
const Z95 = 1.96, SLACK = 1.01, SMALLER = 0.97, USABLE = 0.95;

const usable = () => S.limit === null ? null : S.limit * (S.axis === "memory" ? USABLE : 1);
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
function meets(build) {
  if (!build.kl || build.missed) return false;
  return S.floor === null || (build.kl.ci ? build.kl.ci[1] : build.kl.mean) <= S.floor;
}
function difference(one, other) {
  const [a, b] = [builds.indexOf(one), builds.indexOf(other)];
  const [low, high] = [Math.min(a, b), Math.max(a, b)];
  const found = D.pairs[low * builds.length - low * (low + 1) / 2 + high - low - 1];
  return found ? [a < b ? found[0] : -found[0], found[1], found[2]] : null;
}
function better(one, other) {
  if (one === other || !one.kl || !other.kl) return false;
  const found = difference(one, other);
  if (found) return found[2] === 1 && found[0] < 0;
  return one.kl.mean - other.kl.mean < -Z95 * Math.hypot(one.kl.error ?? 0, other.kl.error ?? 0);
}
function frontier() {
  const points = compared.filter((build) => sizeOf(build) !== null);
  const kept = points.filter((build) => !points.some(
    (rival) => sizeOf(rival) <= SLACK * sizeOf(build) && better(rival, build)));
  return kept.sort((a, b) => sizeOf(a) - sizeOf(b));
}

const least = (items, of) => items.reduce((a, b) => of(b) < of(a) ? b : a);
const size = (build) => sizeOf(build) ?? Infinity;
const kl = (build) => build.kl.mean;
const needs = () => S.axis === "memory" ? "needs" : "takes";
const say = (name, text) => ({ name, text });

function choose() {
  if (!compared.length) return { pick: null, verdict: say("Nothing to compare.", "No build has a KL measured."), others: [] };
  if (reference && usable() && sizeOf(reference) !== null && fits(reference)) {
    const tail = `It ${needs()} ${bytes(sizeOf(reference))} and fits, so quantization would only buy speed.`;
    return { pick: reference, verdict: say("Keep the original.", tail), others: [] };
  }
  const good = compared.filter(meets);
  if (!good.length) {
    const closest = least(compared, kl);
    const tail = `The closest, ${closest.label}, has KL ${significant(kl(closest))}.`;
    return { pick: null, verdict: say("No build meets the limits.", tail), others: [] };
  }
  const fitting = good.filter(fits);
  if (!fitting.length) return { pick: null, verdict: noneFits(good), others: [] };
  const best = least(fitting, kl);
  const equal = fitting.filter((build) => build === best || !better(best, build));
  const pick = equal.reduce((a, b) => size(b) < size(a) || (size(b) === size(a) && kl(b) < kl(a)) ? b : a);
  return { pick, verdict: about(pick), others: neighbours(pick, good) };
}
function about(build) {
  const verb = usable() === null || !fits(build) || S.axis === "disk" ? needs() : "fits in";
  const facts = sizeOf(build) === null ? [] : [`${verb} ${bytes(sizeOf(build))}`];
  if (build.top1 !== null && build.top1 !== undefined) facts.push(`keeps the top token on ${percent(build.top1)} of positions`);
  else if (build.kl) facts.push(`has KL ${significant(kl(build))}`);
  return say(build.label, facts.join(" and ") + (build.tasks ? `; ${build.tasks}.` : "."));
}
function noneFits(good) {
  const smallest = least(good, size);
  let text = `The smallest one that meets the limits, ${smallest.label}, ${needs()} ${bytes(sizeOf(smallest) ?? 0)} of ${bytes(usable())} usable.`;
  const room = longestContext(smallest);
  if (room !== null && room >= 256) text += ` It fits with at most ${room} tokens of context.`;
  return say("No build fits.", text);
}
function neighbours(pick, good) {
  const own = sizeOf(pick), told = [];
  if (own === null) return told;
  const smaller = good.filter((build) => size(build) < SMALLER * own);
  if (smaller.length) {
    const build = least(smaller, kl);
    told.push(say(`Smaller: ${build.label}`, `saves ${bytes(own - size(build))}; KL goes from ${significant(kl(pick))} to ${significant(kl(build))}.`));
  }
  const finer = compared.filter((build) => size(build) > own && size(build) < Infinity && better(build, pick));
  if (finer.length) {
    const build = least(finer, size), over = size(build) - (usable() ?? Infinity);
    told.push(say(`Better: ${build.label}`, `has KL ${significant(kl(build))} and ${needs()} ${bytes(size(build) - own)} more${over > 0 ? `, ${bytes(over)} over the limit.` : "."}`));
  }
  return told;
}
