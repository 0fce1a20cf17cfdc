"use strict";
// The data of the chart: the embedded values, their groups and their text.

function readData() {
  const raw = JSON.parse(byId("data").textContent);
  const series = raw.series.map(({ name, values }, index) => {
    const cut = name.indexOf(".");
    const grouped = cut > 0 && cut < name.length - 1;
    const { numbers, special } = parted(values);
    return {
      index,
      name,
      group: grouped ? name.slice(0, cut) : "",
      label: grouped ? name.slice(cut + 1) : name,
      values: numbers,
      special,
      visible: true,
      ...look(index),
    };
  });
  return { epochs: raw.epochs, series };
}

// Points whose neighbors are both missing are not part of a line and need a marker.
function isolatedPoints(values) {
  const found = [];
  values.forEach((value, at) => {
    const before = at > 0 ? values[at - 1] : null;
    const after = at + 1 < values.length ? values[at + 1] : null;
    if (value != null && before == null && after == null) found.push(at);
  });
  return found;
}

function shownAt(metric, at) {
  return formatValue(metric.special[at] ?? metric.values[at]);
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
  const at = (index) => `${formatNumber(metric.values[index])} at epoch ${epochs[index]}`;
  return `min ${at(low)}, max ${at(high)}`;
}
