"use strict";
// Connects the parts of the page: controls, readout next to the cursor, keys, theme.

const data = readData();
const readout = byId("readout");
const MOST_READINGS = 12;
let cursorAt = null;
let legend = null;

function describe() {
  const count = data.series.length;
  const [first, last] = [data.epochs[0], data.epochs[data.epochs.length - 1]];
  const span = first === last ? `epoch ${first}` : `epochs ${first}–${last}`;
  byId("summary").textContent = `${plural(count, "metric")} · ${span}`;
}

function noteHiddenValues() {
  const shown = data.series.filter((metric) => metric.visible);
  const count = (test) => shown.reduce((sum, metric) => sum + metric.values.filter(test).length, 0);
  const special = shown.reduce((sum, metric) => sum + metric.special.filter((value) => value !== null).length, 0);
  const hidden = chart.log ? count((value) => value !== null && value <= 0) : 0;
  const parts = [];
  if (hidden) parts.push(`${plural(hidden, "value")} at or below zero cannot be shown on a log scale.`);
  if (special) parts.push(`× marks ${plural(special, "value")} that ${special === 1 ? "is" : "are"} NaN or infinite.`);
  byId("note").textContent = parts.join(" ");
}

function readings(at, pointerTop) {
  const visible = data.series.filter(
    (metric) => metric.visible && (metric.values[at] !== null || metric.special[at] !== null),
  );
  const height = (metric) => (metric.values[at] === null ? 0 : chart.plot.valToPos(metric.values[at], "y"));
  const nearest = [...visible].sort((a, b) => Math.abs(height(a) - pointerTop) - Math.abs(height(b) - pointerTop));
  const chosen = nearest.slice(0, MOST_READINGS).sort((a, b) => height(a) - height(b));
  return { chosen, more: visible.length - chosen.length };
}

function fillReadout(at, pointerTop) {
  const { chosen, more } = readings(at, pointerTop);
  const rows = chosen.map((metric) => {
    const row = element("div", "reading");
    const smooth = chart.smoothedAt(metric, at);
    row.append(swatch(metric.color, "point"), element("span", "label", metric.name));
    if (smooth !== null) row.append(element("span", "number", formatNumber(smooth)));
    row.append(element("span", smooth === null ? "number" : "number measured", shownAt(metric, at)));
    return row;
  });
  if (!chosen.length) rows.push(element("p", "", "no value"));
  if (more) rows.push(element("p", "", `and ${more} more, further from the pointer`));
  const heading = `epoch ${data.epochs[at]}${chart.smoothing ? " · smoothed, measured" : ""}`;
  readout.replaceChildren(element("h2", "", heading), ...rows);
}

function placeReadout(left, top) {
  const { over } = chart.plot;
  const frame = over.getBoundingClientRect();
  const home = readout.offsetParent.getBoundingClientRect();
  const width = readout.offsetWidth;
  const right = left + 16 + width < over.clientWidth;
  const x = frame.left - home.left + (right ? left + 16 : Math.max(left - 16 - width, 0));
  const highest = Math.max(over.clientHeight - readout.offsetHeight, 0);
  const y = frame.top - home.top + Math.min(Math.max(top - readout.offsetHeight / 2, 0), highest);
  readout.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}

function onCursor(at, { left, top }) {
  cursorAt = left < 0 ? null : at;
  readout.hidden = cursorAt === null;
  if (legend) legend.read(cursorAt);
  if (cursorAt === null) return;
  fillReadout(at, top);
  placeReadout(left, top);
}

function spoken(rows) {
  const words = (row) => (row.children.length ? [...row.children].map((part) => part.textContent) : [row.textContent]);
  return rows.map((row) => words(row).join(" ").trim()).join(", ");
}

function onKey(event) {
  const last = data.epochs.length - 1;
  const from = cursorAt ?? (event.key === "ArrowLeft" ? last + 1 : -1);
  const target = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
  if (event.key === "Escape") chart.resetZoom();
  if (target === undefined) return;
  event.preventDefault();
  chart.moveTo(Math.min(Math.max(target, 0), last));
  byId("spoken").textContent = readout.hidden ? "" : spoken([...readout.children]);
}

function setScale(log) {
  byId("log").setAttribute("aria-pressed", String(log));
  byId("linear").setAttribute("aria-pressed", String(!log));
  chart.setLog(log);
  noteHiddenValues();
}

followTheme(() => chart.build());
const chart = new Chart(byId("chart"), data, onCursor, (zoomed) => {
  byId("reset").disabled = !zoomed;
});
legend = new Legend(data, chart);
describe();
noteHiddenValues();
byId("chart").setAttribute("aria-label", `Lines of ${data.series.length} metrics over the epochs`);
byId("chart").addEventListener("keydown", onKey);
byId("legend").addEventListener("click", noteHiddenValues);
byId("show-all").addEventListener("click", noteHiddenValues);
byId("linear").addEventListener("click", () => setScale(false));
byId("log").addEventListener("click", () => setScale(true));
byId("reset").addEventListener("click", () => chart.resetZoom());
byId("smoothing").addEventListener("input", ({ target }) => {
  byId("smoothing-value").textContent = Number(target.value) ? Number(target.value).toFixed(2) : "off";
  chart.setSmoothing(Number(target.value));
});
