"use strict";
// Format durations, sizes, counts and times; build tables.

// In the readout, small numbers have four significant digits.
function formatReading(value) {
  const size = Math.abs(value);
  return typeof value === "number" && size >= 0.001 && size < 0.1 ? value.toPrecision(4) : formatValue(value);
}

function formatDuration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds) || seconds < 0) return "—";
  if (seconds > 0 && seconds < 0.01) return `${(seconds * 1000).toPrecision(2)}ms`;
  if (seconds < 1) return `${Math.floor(seconds * 1000)}ms`;
  if (seconds < 60) return `${Math.floor(seconds * 10) / 10}s`;
  const pad = (number) => String(number).padStart(2, "0");
  const whole = Math.floor(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)}m ${pad(whole % 60)}s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)}h ${pad(Math.floor(whole / 60) % 60)}m`;
  return `${Math.floor(whole / 86400)}d ${pad(Math.floor(whole / 3600) % 24)}h`;
}

// A running clock: without tenths, so that it does not flicker.
function formatClock(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)}s` : formatDuration(seconds);
}

function formatBytes(count) {
  for (const [power, unit] of [[4, "TB"], [3, "GB"], [2, "MB"], [1, "KB"]]) {
    if (count >= 1024 ** power) return `${(count / 1024 ** power).toFixed(power > 2 ? 1 : 0)} ${unit}`;
  }
  return `${Math.round(count)} B`;
}

function formatCount(count) {
  for (const [size, unit] of [[1e9, "B"], [1e6, "M"], [1e3, "K"]]) {
    if (count >= size) return `${(count / size).toFixed(1)}${unit}`;
  }
  return String(count);
}

function formatTime(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
}

function spansDays(from, to) {
  return new Date(from * 1000).toDateString() !== new Date(to * 1000).toDateString();
}

// With the date if a run takes several days.
function formatMoment(seconds, dated) {
  if (!dated) return formatTime(seconds);
  return `${new Date(seconds * 1000).toLocaleDateString([], { month: "short", day: "numeric" })} ${formatTime(seconds)}`;
}

function row(cells, tag = "td") {
  const line = element("tr");
  for (const [text, className] of cells) {
    const cell = element(tag, className ?? "", tag === "th" ? null : text);
    if (tag === "th") {
      cell.scope = "col";
      cell.append(longName(text));
    }
    line.append(cell);
  }
  return line;
}

// A name that may wrap after its dots; the tooltip shows the full name.
function longName(name) {
  const label = element("span", "name");
  name.split(/(?<=[._/])/).forEach((part, at) => label.append(...(at ? [element("wbr")] : []), part));
  label.title = name;
  return label;
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
