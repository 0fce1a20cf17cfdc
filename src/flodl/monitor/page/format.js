"use strict";
// How things are shown: elements from text alone, numbers, durations, sizes, times.

const byId = (id) => document.getElementById(id);

function element(tag, className = "", text = null) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}

function swatch(colour, shape = "") {
  const made = element("span", `swatch ${shape}`);
  made.style.setProperty("--colour", `var(${colour})`);
  return made;
}

const SPECIAL = { nan: "NaN", inf: "∞", "-inf": "−∞" };

// JSON has no NaN and no infinity: they come as words.
function shownValue(value) {
  if (value === null || value === undefined) return "—";
  return typeof value === "string" ? (SPECIAL[value] ?? value) : shownNumber(value);
}

function shownNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e6) return value.toExponential(2);
  return size < 100 ? value.toFixed(4) : value.toFixed(2);
}

function shownTick(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return Number(value.toPrecision(6)).toExponential().replace("e+", "e");
  return String(Number(value.toPrecision(6)));
}

function shownDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return "—";
  if (seconds < 0.01) return `${(seconds * 1000).toPrecision(2)}ms`;
  if (seconds < 1) return `${Math.floor(seconds * 1000)}ms`;
  if (seconds < 60) return `${Math.floor(seconds * 10) / 10}s`;
  const pad = (number) => String(number).padStart(2, "0");
  const whole = Math.floor(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${pad(Math.floor(whole / 60) % 60)}m`;
  return `${Math.floor(whole / 86400)}d ${pad(Math.floor(whole / 3600) % 24)}h`;
}

// A clock that counts: no tenths, so that it does not flicker.
function shownClock(seconds) {
  return seconds >= 1 && seconds < 60 ? `${Math.floor(seconds)}s` : shownDuration(seconds);
}

function shownBytes(count) {
  for (const [power, unit] of [[4, "TB"], [3, "GB"], [2, "MB"], [1, "KB"]]) {
    if (count >= 1024 ** power) return `${(count / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${unit}`;
  }
  return `${Math.round(count)} B`;
}

function shownCount(count) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (count >= size) return `${(count / size).toFixed(1)}${unit}`;
  }
  return String(count);
}

function shownTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

function spansDays(from, to) {
  return new Date(from * 1000).toDateString() !== new Date(to * 1000).toDateString();
}

// With the date where a run goes on for days.
function shownMoment(seconds, dated) {
  if (!dated) return shownTime(seconds);
  return `${new Date(seconds * 1000).toLocaleDateString([], { month: "short", day: "numeric" })} ${shownTime(seconds)}`;
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

function row(cells, tag = "td") {
  const made = element("tr");
  for (const [text, className] of cells) {
    const cell = element(tag, className ?? "", text);
    if (tag === "th") cell.scope = "col";
    made.append(cell);
  }
  return made;
}

function fillTable(table, heads, rows) {
  const head = element("thead");
  head.append(row(heads, "th"));
  const body = element("tbody");
  body.append(...rows);
  table.replaceChildren(head, body);
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}
