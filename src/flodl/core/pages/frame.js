"use strict";
// Functions for every page: creating elements, formatting numbers, light and dark themes.

const byId = (id) => document.getElementById(id);

function element(tag, className = "", text = null) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== null) made.textContent = text;
  return made;
}

function swatch(color, shape = "") {
  const made = element("span", `swatch ${shape}`);
  made.style.setProperty("--color", `var(${color})`);
  made.setAttribute("aria-hidden", "true");
  return made;
}

function formatNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 0.001 || size >= 1e6) return value.toExponential(2);
  return size < 100 ? value.toFixed(4) : value.toFixed(2);
}

function formatTick(value) {
  const size = Math.abs(value);
  const short = Number(value.toPrecision(6));
  return size !== 0 && (size < 0.001 || size >= 1e6) ? short.toExponential().replace("e+", "e") : String(short);
}

const SPECIAL = { nan: "NaN", inf: "∞", "-inf": "−∞" };

// JSON has neither NaN nor infinity: they arrive as strings.
function formatValue(value) {
  if (value === null || value === undefined) return "—";
  return typeof value === "string" ? (SPECIAL[value] ?? value) : formatNumber(value);
}

function plural(count, word) {
  return `${count} ${word}${count === 1 ? "" : "s"}`;
}

// A canvas cannot use CSS variables, so each color is read from the page, again for each theme.
function drawnColor(host, variable, percent = 100) {
  host.style.setProperty("outline-color", percent === 100 ? `var(${variable})` : `color-mix(in srgb, var(${variable}) ${percent}%, transparent)`);
  const found = getComputedStyle(host).outlineColor;
  host.style.removeProperty("outline-color");
  return found;
}

function drawnFont(size) {
  return `${size}px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif`;
}

const THEMES = [["", "Auto", "follow the system"], ["light", "Light", "light"], ["dark", "Dark", "dark"]];

function storedTheme() {
  try {
    return Math.max(THEMES.findIndex(([value]) => value === localStorage.getItem("flodl-theme")), 0);
  } catch {
    return 0; // a page opened from disk may have no storage
  }
}

function setTheme(at) {
  const [value, label, words] = THEMES[at];
  document.documentElement.dataset.theme = value;
  byId("theme").textContent = label;
  byId("theme").setAttribute("aria-label", `Colors: ${words}`);
  try {
    localStorage.setItem("flodl-theme", value);
  } catch {
    // the choice is not stored
  }
}

// Follow the theme button and the system; `redraw` redraws every canvas in the new colors.
function followTheme(redraw) {
  let now = storedTheme();
  setTheme(now);
  byId("theme").addEventListener("click", () => {
    setTheme((now = (now + 1) % THEMES.length));
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}
