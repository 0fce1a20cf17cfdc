"use strict";
// The lines of a run: names, groups, smoothing and updates.

// Each line keeps its style, even if other lines are added or removed.
class LineStyles {
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
function compareNatural(a, b) {
  return COLLATOR.compare(a, b);
}

const MANY_LINES = 12;
const MAX_INITIAL_LINES = 8;
const IMPORTANT = /loss|acc|err|score|perplexity|f1|auc|reward|lr/i;

// The lines to show first if there are many: those with important names, short names first.
function initialLines(lines) {
  if (lines.length <= MANY_LINES) return lines;
  const depth = ({ name }) => name.split(/[./]/).length;
  const important = lines.filter(({ name }) => IMPORTANT.test(name));
  return [...(important.length ? important : lines)].sort((a, b) => depth(a) - depth(b) || compareNatural(a.name, b.name)).slice(0, MAX_INITIAL_LINES);
}

// Group names by all but the last part, or by the last part if that avoids many groups with few members
// (layer1.norm, layer2.norm, …).
function chooseGrouping(names) {
  const count = (of) => new Set(names.map((name) => of(name).group)).size;
  const crowded = names.length > MANY_LINES && count(splitName) > names.length / 2;
  return crowded && count(splitNameByLast) <= names.length / 2 ? splitNameByLast : splitName;
}

const LOSS = /loss|perplexity|nll/i;

// Groups in the order of the legend: those with a loss first, then names without a group. Names without a group form
// two groups if some of them are losses.
function groupLines(lines) {
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
  return [...groups.values()].sort((a, b) => b.isFirst - a.isFirst || (b.name === "") - (a.name === "") || compareNatural(a.name, b.name));
}

function splitNameByLast(name) {
  const { group, label } = splitName(name);
  return group ? { group: label, label: group } : { group: "", label };
}

// `encoder.scan.loss` belongs to the group `encoder.scan`; a name without dots has no group.
function splitName(name) {
  const cut = name.lastIndexOf(".");
  const grouped = cut > 0 && cut < name.length - 1;
  return { group: grouped ? name.slice(0, cut) : "", label: grouped ? name.slice(cut + 1) : name };
}

function makeLine(key, name, x, y, style, { group, label } = splitName(name)) {
  const { numbers, special } = parted(y);
  return { key, name, group, label, ...style, x, y: numbers, special };
}

const SMOOTHED_UNITS = 2000;
const MAX_GAPS = 200;

function distances(x) {
  return x.slice(1).map((next, at) => next - x[at]);
}

function usualDistance(x) {
  const gaps = distances(x);
  // An odd stride, because downsampling leaves alternating short and long distances.
  const stride = Math.floor(gaps.length / MAX_GAPS) | 1;
  const sample = gaps.filter((_, at) => at % stride === 0);
  return gaps.length ? Math.max(median(sample), (x[x.length - 1] - x[0]) / SMOOTHED_UNITS) : 1;
}

// An exponential moving average over the distance between points instead of their number, so that it hardly depends on
// downsampling. `factor` is the weight that remains after the usual distance between two points.
function smoothByDistance(x, y, factor, unit = usualDistance(x)) {
  const gaps = distances(x);
  let mean = 0;
  let weight = 0;
  let last = null;
  return y.map((value, at) => {
    if (value === null || value === undefined) return null;
    const kept = last === null ? 0 : factor ** ((x[at] - last) / unit);
    last = x[at];
    // A point represents half of the distance to each side, so that adjacent peaks and dips have equal weight.
    const before = gaps[at - 1] ?? gaps[at] ?? unit;
    const share = 1 - factor ** ((before + (gaps[at] ?? before)) / 2 / unit);
    mean = kept * mean + share * value;
    weight = kept * weight + share;
    return mean / weight;
  });
}

// Interpolate a line at other positions; beyond its ends, the last values are used.
function interpolate(x, y, positions) {
  const known = x.map((_, at) => at).filter((at) => y[at] !== null);
  let next = 0;
  return positions.map((position) => {
    while (next < known.length && x[known[next]] < position) next += 1;
    const [left, right] = [known[next - 1] ?? known[next], known[next] ?? known[next - 1]];
    if (left === undefined) return null;
    if (left === right || x[right] === position) return y[right];
    return y[left] + ((position - x[left]) / (x[right] - x[left])) * (y[right] - y[left]);
  });
}

// The index of the value nearest to `x` in sorted `xs`.
function nearestIndex(xs, x) {
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - xs[low - 1] <= xs[low] - x ? low - 1 : low;
}

// Lines with different positions on the axis, as columns over all of these positions.
function alignColumns(lines) {
  if (!lines.length) return [[]];
  const same = lines.every(({ x }) => x === lines[0].x || (x.length === lines[0].x.length && x.every((v, i) => v === lines[0].x[i])));
  if (same) return [lines[0].x, ...lines.map(({ y }) => y)];
  return uPlot.join(lines.map(({ x, y }) => [x, y]));
}

// Append points to a line. After a run went back, repeated steps replace the earlier points.
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

// Halve a line that is too long: of every four points, keep the lowest and the highest.
function thinLine(line, maxPoints) {
  if (line.x.length <= maxPoints) return;
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
