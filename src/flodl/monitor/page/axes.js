"use strict";
// Which lines of a chart share an axis: on the axis of a large metric, a small one would be a flat line at zero.

const SCALES = ["y", "y2", "y3"];
// Metrics whose largest values differ by more than this have different axes.
const MAX_RATIO = 10;
const MAX_LOG_RATIO = 1000;
const MAX_AXIS_NAME = 44;

// Return the names of the metrics on each axis; the first line has the first axis. Runs share the axis of a metric.
function splitByMagnitude(lines, { log, maxAxes }) {
  const sizes = new Map();
  for (const { name, y } of lines) {
    const largest = y.reduce((most, value) => (value === null || value === undefined ? most : Math.max(most, Math.abs(value))), 0);
    sizes.set(name, Math.max(sizes.get(name) ?? 0, largest));
  }
  const known = [...sizes].filter(([, size]) => size > 0).sort(([, a], [, b]) => b - a);
  const groups = [];
  for (const [name, size] of known) {
    const last = groups[groups.length - 1];
    if (last && last.largest / size <= (log ? MAX_LOG_RATIO : MAX_RATIO)) Object.assign(last, { names: [...last.names, name], smallest: size });
    else groups.push({ names: [name], largest: size, smallest: size });
  }
  while (groups.length > maxAxes) joinNearest(groups);
  const first = lines[0]?.name;
  groups.sort((a, b) => b.names.includes(first) - a.names.includes(first));
  // A metric that is always zero fits everywhere.
  const zero = [...sizes].filter(([, size]) => size === 0).map(([name]) => name);
  const axes = groups.map(({ names }) => [...sizes.keys()].filter((name) => names.includes(name)));
  return axes.length ? [[...axes[0], ...zero], ...axes.slice(1)] : [zero];
}

// Join the two neighboring groups whose values are closest.
function joinNearest(groups) {
  const distance = (at) => groups[at].smallest / groups[at + 1].largest;
  const at = groups.slice(0, -1).map((_, index) => index).sort((a, b) => distance(a) - distance(b))[0];
  const [upper, lower] = groups.splice(at, 2);
  groups.splice(at, 0, { names: [...upper.names, ...lower.names], largest: upper.largest, smallest: lower.smallest });
}

function listNames(names) {
  const text = names.length > 2 ? `${names[0]} and ${names.length - 1} more` : names.join(", ");
  return text.length <= MAX_AXIS_NAME ? text : `${text.slice(0, MAX_AXIS_NAME)}…`;
}
