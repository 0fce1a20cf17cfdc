"use strict";
// How things are shown: durations, sizes, counts, times, tables.

// Under the pointer a small number has four digits that count: there is room, and people look closely.
function shownReading(value) {
  const size = Math.abs(value);
  return typeof value === "number" && size >= 0.001 && size < 0.1 ? value.toPrecision(4) : shownValue(value);
}

function shownDuration(seconds) {
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

// A clock that counts: no tenths, so that it does not flicker.
function shownClock(seconds) {
  return seconds < 60 ? `${Math.floor(seconds)}s` : shownDuration(seconds);
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

function row(cells, tag = "td") {
  const made = element("tr");
  for (const [text, className] of cells) {
    const cell = element(tag, className ?? "", tag === "th" ? null : text);
    if (tag === "th") {
      cell.scope = "col";
      cell.append(longName(text));
    }
    made.append(cell);
  }
  return made;
}

// A name that may be broken after its dots; of a very long one the whole is told under the pointer.
function longName(name) {
  const made = element("span", "name");
  name.split(/(?<=[._/])/).forEach((part, at) => made.append(...(at ? [element("wbr")] : []), part));
  made.title = name;
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
