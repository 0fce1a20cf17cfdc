"use strict";
// The lines of a run: their names and groups, their places on the axis, and how they grow.

// The look of a line belongs to its name, so that it stays when others come and go.
class Looks {
  constructor() {
    this.order = new Map();
  }

  of(key) {
    if (!this.order.has(key)) this.order.set(key, this.order.size);
    return look(this.order.get(key));
  }
}

const COLLATOR = new Intl.Collator("en", { numeric: true });

// layer2 before layer10
function natural(a, b) {
  return COLLATOR.compare(a, b);
}

const MANY = 12;
const FEW = 8;
const TELLING = /loss|acc|err|score|perplexity|f1|auc|reward|lr/i;

// The few of many lines to begin with: those whose names people look at first, short names before long ones.
function firstLines(lines) {
  if (lines.length <= MANY) return lines;
  const depth = ({ name }) => name.split(/[./]/).length;
  const telling = lines.filter(({ name }) => TELLING.test(name));
  return [...(telling.length ? telling : lines)].sort((a, b) => depth(a) - depth(b) || natural(a.name, b.name)).slice(0, FEW);
}

// How names are put into groups: by all but the last part, or, where that gives a crowd of groups with hardly
// anything in them (layer1.norm, layer2.norm, …), by the last part.
function grouping(names) {
  const count = (of) => new Set(names.map((name) => of(name).group)).size;
  const crowded = names.length > MANY && count(placed) > names.length / 2;
  return crowded && count(placedByLast) <= names.length / 2 ? placedByLast : placed;
}

const LOSS = /loss|perplexity|nll/i;

// Groups in the order of the legend: those with a loss before the others, then names without a group. So names
// that stand alone are two groups if there are losses among them.
function groupsOf(lines) {
  const losses = new Set(lines.filter(({ name }) => LOSS.test(name)));
  const withLoss = new Set([...losses].map(({ group }) => group));
  const groups = new Map();
  for (const line of lines) {
    const isFirst = line.group ? withLoss.has(line.group) : losses.has(line);
    const key = `${isFirst ? 0 : 1}${line.group}`;
    if (!groups.has(key)) groups.set(key, { name: line.group, isFirst, members: [] });
    groups.get(key).members.push(line);
  }
  for (const { members } of groups.values()) members.sort((a, b) => losses.has(b) - losses.has(a));
  return [...groups.values()].sort((a, b) => b.isFirst - a.isFirst || (b.name === "") - (a.name === "") || natural(a.name, b.name));
}

function placedByLast(name) {
  const { group, label } = placed(name);
  return group ? { group: label, label: group } : { group: "", label };
}

// `encoder.scan.loss` belongs to the group `encoder.scan`; a name without dots stands alone.
function placed(name) {
  const cut = name.lastIndexOf(".");
  const grouped = cut > 0 && cut < name.length - 1;
  return { group: grouped ? name.slice(0, cut) : "", label: grouped ? name.slice(cut + 1) : name };
}

function makeLine(key, name, x, y, style, place = placed(name)) {
  const { numbers, special } = parted(y);
  return { key, name, ...place, ...style, x, y: numbers, special };
}

const SMOOTHED_PLACES = 2000;
const MOST_GAPS = 200;

// An exponential mean over the distance between points, not over their number: it hardly depends on how many of
// them are kept. `factor` is what remains after the usual distance of two points, or a small part of all.
function smoothedOver(x, y, factor) {
  const gaps = x.slice(1).map((place, at) => place - x[at]);
  // An odd stride: where peaks and dips were kept, short and long distances take turns.
  const stride = Math.floor(gaps.length / MOST_GAPS) | 1;
  const some = gaps.filter((_, at) => at % stride === 0);
  const unit = gaps.length ? Math.max(median(some), (x[x.length - 1] - x[0]) / SMOOTHED_PLACES) : 1;
  let mean = 0;
  let weight = 0;
  let last = null;
  return y.map((value, at) => {
    if (value === null || value === undefined) return null;
    const kept = last === null ? 0 : factor ** ((x[at] - last) / unit);
    last = x[at];
    // A point stands for half of the way to each side: a peak and a dip side by side count the same.
    const before = gaps[at - 1] ?? gaps[at] ?? unit;
    const share = 1 - factor ** ((before + (gaps[at] ?? before)) / 2 / unit);
    mean = kept * mean + share * value;
    weight = kept * weight + share;
    return mean / weight;
  });
}

// The values of a line at other places: on it, between two of its points, and at its ends as there.
function valuesAt(x, y, places) {
  const known = x.map((_, at) => at).filter((at) => y[at] !== null);
  let next = 0;
  return places.map((place) => {
    while (next < known.length && x[known[next]] < place) next += 1;
    const [left, right] = [known[next - 1] ?? known[next], known[next] ?? known[next - 1]];
    if (left === undefined) return null;
    if (left === right || x[right] === place) return y[right];
    return y[left] + ((place - x[left]) / (x[right] - x[left])) * (y[right] - y[left]);
  });
}

// The place of the value nearest to `at` in sorted `xs`.
function nearest(xs, at) {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low > 0 && at - xs[low - 1] <= xs[low] - at ? low - 1 : low;
}

// Lines with different places on the axis, as columns over all of those places.
function joinedColumns(lines) {
  if (!lines.length) return [[]];
  const same = lines.every(({ x }) => x === lines[0].x || (x.length === lines[0].x.length && x.every((v, i) => v === lines[0].x[i])));
  if (same) return [lines[0].x, ...lines.map(({ y }) => y)];
  return uPlot.join(lines.map(({ x, y }) => [x, y]));
}

// Add points to a line. A run that went back passes some places twice: the second time counts.
function extendLine(line, x, y) {
  for (let at = 0; at < x.length; at++) {
    while (line.x.length && line.x[line.x.length - 1] >= x[at]) {
      line.x.pop();
      line.y.pop();
    }
    line.x.push(x[at]);
    line.y.push(y[at]);
  }
}

// Halve a line that has grown too long: of every four points the lowest and the highest stay.
function thinLine(line, most) {
  if (line.x.length <= most) return;
  const keep = [];
  const value = (at) => (typeof line.y[at] === "number" ? line.y[at] : Infinity);
  for (let start = 0; start < line.x.length; start += 4) {
    let low = start;
    let high = start;
    for (let at = start; at < Math.min(start + 4, line.x.length); at++) {
      if (value(at) < value(low)) low = at;
      if (value(at) > value(high)) high = at;
    }
    keep.push(...(low === high ? [low] : [Math.min(low, high), Math.max(low, high)]));
  }
  line.x = keep.map((at) => line.x[at]);
  line.y = keep.map((at) => line.y[at]);
}
