"use strict";
// What is drawn: the embedded values, their groups, their smoothed form and how numbers are shown.

const SPECIAL = { nan: "NaN", inf: "∞", "-inf": "−∞" };
const PALETTE_SIZE = 12;
const DASHES = [[], [9, 5], [2, 4]];
const DASH_NAMES = ["solid", "dashed", "dotted"];

function readData() {
  const raw = JSON.parse(document.getElementById("data").textContent);
  const series = raw.series.map(({ name, values }, index) => {
    const cut = name.indexOf(".");
    const grouped = cut > 0 && cut < name.length - 1;
    const turn = Math.floor(index / PALETTE_SIZE) % DASHES.length;
    return {
      index,
      name,
      group: grouped ? name.slice(0, cut) : "",
      label: grouped ? name.slice(cut + 1) : name,
      values: values.map((value) => (typeof value === "number" ? value : null)),
      special: values.map((value) => (typeof value === "string" ? value : null)),
      colour: `--series-${index % PALETTE_SIZE}`,
      dash: DASHES[turn],
      dashName: DASH_NAMES[turn],
      visible: true,
    };
  });
  return { epochs: raw.epochs, series };
}

// An exponential mean that starts unbiased: without the correction the first points lean towards 0.
function smoothed(values, factor) {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = factor * mean + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    return mean / weight;
  });
}

function positiveOnly(values) {
  return values.map((value) => (value !== null && value > 0 ? value : null));
}

// Points whose neighbours are both missing have no line through them and need a mark of their own.
function isolatedPoints(values) {
  const found = [];
  values.forEach((value, at) => {
    const before = at > 0 ? values[at - 1] : null;
    const after = at + 1 < values.length ? values[at + 1] : null;
    if (value != null && before == null && after == null) found.push(at);
  });
  return found;
}

function shownNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e6) return value.toExponential(2);
  return size < 100 ? value.toFixed(4) : value.toFixed(2);
}

function shownTick(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}

function shownAt(metric, at) {
  if (metric.special[at] !== null) return SPECIAL[metric.special[at]];
  return metric.values[at] === null ? "—" : shownNumber(metric.values[at]);
}

function lastIndex(metric) {
  for (let at = metric.values.length - 1; at >= 0; at--) {
    if (metric.values[at] !== null || metric.special[at] !== null) return at;
  }
  return -1;
}

function extremes(metric, epochs) {
  let low = -1;
  let high = -1;
  metric.values.forEach((value, at) => {
    if (value === null) return;
    if (low < 0 || value < metric.values[low]) low = at;
    if (high < 0 || value > metric.values[high]) high = at;
  });
  if (low < 0) return "no finite value";
  const at = (index) => `${shownNumber(metric.values[index])} at epoch ${epochs[index]}`;
  return `min ${at(low)}, max ${at(high)}`;
}
