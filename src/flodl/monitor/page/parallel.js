"use strict";
// Parallel coordinates: an axis for each setting that differs and one for the metric, and a line for each run.

const PLOT_HEIGHT = 300;
const PLOT_MARGIN = { top: 34, bottom: 16, left: 76, right: 64 };
const MIN_AXIS_GAP = 112;
const MAX_AXES = 8;
const MAX_WORDS = 12;
const MIN_PLOTTED = 3;
const MANY_RUNS = 60;

class ParallelPlot {
  // onBrush(brushes) gets the ranges that the user has chosen, as {label, test(run)}; onHover(run) a run or null.
  constructor(host, { onBrush, onHover }) {
    Object.assign(this, { host, onBrush, onHover, axes: [], ranges: new Map(), paths: new Map() });
    this.readout = element("div", "readout");
    this.readout.hidden = true;
    byId("parallel-reset").addEventListener("click", () => this.setRanges(new Map()));
    new ResizeObserver(() => this.width !== host.clientWidth && this.draw()).observe(host);
  }

  show({ runs, comparison, metric, mode, order }) {
    const settings = comparison.columns.map((path) => makeAxis(path, path, runs, ({ settings: own }) => own[path])).filter(Boolean).slice(0, MAX_AXES);
    const result = metric === null ? null : makeAxis(`metric ${metric}`, `best ${metric}`, runs, ({ metrics }) => metrics[metric]?.best);
    const isShown = runs.length >= MIN_PLOTTED && settings.length > 0 && result !== null;
    byId("parallel").hidden = !isShown;
    if (!isShown) return;
    Object.assign(this, { runs, axes: [...settings, result], metric, matching: new Set(order.map(({ run }) => run)) });
    this.ranks = rankRuns(runs, metric, mode);
    byId("parallel-best").textContent = mode === "max" ? "best (high)" : "best (low)";
    this.draw();
  }

  draw() {
    if (!this.axes.length) return;
    this.width = this.host.clientWidth;
    const gaps = Math.max(this.axes.length - 1, 1);
    const { top, bottom, left, right } = PLOT_MARGIN;
    const width = Math.max(this.width, left + right + gaps * MIN_AXIS_GAP);
    const svg = drawn("svg", { width, height: PLOT_HEIGHT, viewBox: `0 0 ${width} ${PLOT_HEIGHT}` });
    this.height = PLOT_HEIGHT - top - bottom;
    this.axes.forEach((axis, at) => (axis.x = left + (at * (width - left - right)) / gaps));
    const lines = drawn("g", { class: this.runs.length > MANY_RUNS ? "many" : "few" });
    this.paths.clear();
    for (const run of [...this.runs].sort((a, b) => (this.ranks.get(a.run) ?? -1) - (this.ranks.get(b.run) ?? -1))) lines.append(this.makePath(run));
    svg.append(lines, ...this.axes.map((axis) => this.makeAxisDrawing(axis)));
    this.host.replaceChildren(svg, this.readout);
    byId("parallel-reset").disabled = this.ranges.size === 0;
  }

  y(position) {
    return PLOT_MARGIN.top + (1 - position) * this.height;
  }

  makePath(run) {
    const points = this.axes.map(({ x, position }) => [x, this.y(position(run))]);
    const d = points.map(([x, y], at) => {
      if (!at) return `M${x},${y}`;
      const [before, height] = points[at - 1];
      const middle = (before + x) / 2;
      return `C${middle},${height} ${middle},${y} ${x},${y}`;
    }).join("");
    const rank = this.ranks.get(run.run);
    const group = drawn("g", { class: `run${this.matching.has(run.run) ? "" : " faded"}${rank === undefined ? " unranked" : ""}` });
    group.style.setProperty("--rank", `${Math.round((rank ?? 0) * 100)}%`);
    const hit = drawn("path", { d, class: "hit" });
    hit.addEventListener("pointerenter", (event) => this.read(run, event));
    hit.addEventListener("pointerleave", () => this.read(null));
    group.append(drawn("path", { d, class: "line" }), hit);
    this.paths.set(run.run, group);
    return group;
  }

  makeAxisDrawing(axis) {
    const { top } = PLOT_MARGIN;
    const group = drawn("g", { class: "axis" });
    const isLast = axis === this.axes[this.axes.length - 1];
    const place = isLast ? { x: axis.x + PLOT_MARGIN.right - 4, "text-anchor": "end" } : { x: axis.x, "text-anchor": "middle" };
    const label = drawn("text", { ...place, y: 14, class: "label" }, shorten(axis.label, isLast ? 30 : 18));
    label.append(drawn("title", {}, axis.label));
    group.append(drawn("line", { x1: axis.x, x2: axis.x, y1: top, y2: top + this.height }), label);
    for (const { at, text } of axis.ticks) {
      const y = this.y(at);
      const side = isLast ? 1 : -1; // the last axis has its numbers on the right
      const tick = { x: axis.x + 7 * side, y: y + 4, "text-anchor": isLast ? "start" : "end" };
      group.append(drawn("line", { x1: axis.x, x2: axis.x + 4 * side, y1: y, y2: y }), drawn("text", tick, shorten(text, 11)));
    }
    const range = this.ranges.get(axis.id);
    if (range) group.append(drawn("rect", { class: "brush", x: axis.x - 8, width: 16, y: this.y(range[1]), height: Math.max(this.y(range[0]) - this.y(range[1]), 1) }));
    const grip = drawn("rect", { class: "grip", x: axis.x - 16, width: 32, y: top - 8, height: this.height + 16 });
    grip.addEventListener("pointerdown", (event) => this.startBrush(axis, event));
    group.append(grip);
    return group;
  }

  // Drag to choose a range, click to remove it.
  startBrush(axis, event) {
    event.preventDefault();
    const { top } = this.host.firstElementChild.getBoundingClientRect();
    const positionOf = ({ clientY }) => Math.min(Math.max(1 - (clientY - top - PLOT_MARGIN.top) / this.height, 0), 1);
    const first = positionOf(event);
    const preview = drawn("rect", { class: "brush", x: axis.x - 8, width: 16 });
    this.host.firstElementChild.append(preview);
    let range = null;
    const move = (moved) => {
      const now = positionOf(moved);
      range = Math.abs(now - first) * this.height < 4 ? null : [Math.min(first, now), Math.max(first, now)];
      const [low, high] = range ?? [first, first];
      preview.setAttribute("y", this.y(high));
      preview.setAttribute("height", this.y(low) - this.y(high));
    };
    const end = () => {
      removeEventListener("pointermove", move);
      for (const name of ["pointerup", "pointercancel"]) removeEventListener(name, end);
      const ranges = new Map(this.ranges);
      if (range) ranges.set(axis.id, range);
      else ranges.delete(axis.id);
      this.setRanges(ranges);
    };
    addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) addEventListener(name, end);
  }

  setRanges(ranges) {
    this.ranges = ranges;
    const brushes = [...ranges].map(([id, [low, high]]) => {
      const axis = this.axes.find((each) => each.id === id);
      return { label: axis?.label ?? id, test: (run) => !axis || (axis.position(run) >= low - 1e-9 && axis.position(run) <= high + 1e-9) };
    });
    this.onBrush(brushes);
  }

  read(run, event = null) {
    this.onHover(run);
    this.readout.hidden = run === null;
    if (run === null) return;
    const rows = this.axes.map(({ label, textOf }) => {
      const line = element("div", "reading");
      line.append(element("span", "label", label), element("span", "number", shorten(textOf(run), 40)));
      return line;
    });
    this.readout.replaceChildren(element("h3", "", run.displayName), ...rows);
    const home = this.host.getBoundingClientRect();
    const left = event.clientX - home.left + this.host.scrollLeft;
    const isRight = event.clientX - home.left + 16 + this.readout.offsetWidth < home.width;
    const top = Math.min(Math.max(event.clientY - home.top - 20, 0), Math.max(PLOT_HEIGHT - this.readout.offsetHeight, 0));
    this.readout.style.transform = `translate(${Math.round(isRight ? left + 16 : Math.max(left - 16 - this.readout.offsetWidth, 0))}px, ${Math.round(top)}px)`;
  }

  highlight(run) {
    for (const [number, group] of this.paths) {
      const isLit = run !== null && number === run.run;
      group.classList.toggle("lit", isLit);
      if (isLit) group.parentElement.append(group); // on top of the others
    }
  }
}

function drawn(tag, attributes, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  return made;
}

function shorten(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

// The place of each run among all: 1 for the best, 0 for the worst. Runs without a result have none.
function rankRuns(runs, metric, mode) {
  const known = runs.filter(({ metrics }) => typeof metrics[metric]?.best === "number");
  const sorted = sortRuns(known, ({ metrics }) => metrics[metric].best, mode === "min");
  return new Map(sorted.map(({ run }, at) => [run, sorted.length > 1 ? at / (sorted.length - 1) : 1]));
}

// An axis, or null if its values are too many different texts to draw. Runs without a value are at the bottom.
function makeAxis(id, label, runs, valueOf) {
  const values = runs.map(valueOf).filter((value) => value !== null && value !== undefined);
  if (!values.length) return null;
  const isNumeric = values.every((value) => typeof value === "number" && Number.isFinite(value));
  const distinct = new Map(values.map((value) => [axisText(value), value]));
  if (!isNumeric && distinct.size > MAX_WORDS) return null;
  const isMissing = values.length < runs.length;
  const isList = !isNumeric || (distinct.size <= MAX_WORDS / 2 && values.every(Number.isInteger));
  const { place, ticks } = isList ? listScale(distinct, isNumeric) : numberScale(values);
  const lowest = isMissing ? 0.1 : 0;
  const inner = (at) => lowest + at * (1 - lowest);
  return {
    id,
    label,
    textOf: (run) => axisText(valueOf(run)),
    position: (run) => {
      const value = valueOf(run);
      return value === null || value === undefined ? 0 : inner(place(value));
    },
    ticks: [...ticks.map(({ at, text }) => ({ at: inner(at), text })), ...(isMissing ? [{ at: 0, text: "—" }] : [])],
  };
}

function axisText(value) {
  return value === null || value === undefined ? "—" : typeof value === "number" ? formatTick(Number(value.toPrecision(4))) : formatSetting(value);
}

// Values at equal distances, as in a list of choices.
function listScale(distinct, isNumeric) {
  const texts = [...distinct.keys()].sort((a, b) => (isNumeric ? distinct.get(a) - distinct.get(b) : compareNatural(a, b)));
  const places = new Map(texts.map((text, at) => [text, texts.length > 1 ? at / (texts.length - 1) : 0.5]));
  return { place: (value) => places.get(axisText(value)), ticks: texts.map((text) => ({ at: places.get(text), text })) };
}

const LOG_RATIO = 50;
const LOG_MEDIAN = 0.25;

// A linear scale, or a log scale if the values span orders of magnitude and most of them are small.
function numberScale(values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const isLog = low > 0 && high / low >= LOG_RATIO && (median(values) - low) / (high - low) < LOG_MEDIAN;
  const to = isLog ? Math.log10 : (value) => value;
  const span = to(high) - to(low);
  const place = (value) => (span ? (to(value) - to(low)) / span : 0.5);
  const candidates = isLog ? powersOfTen(low, high) : roundNumbers(low, high);
  return { place, ticks: (span ? candidates : [low]).map((value) => ({ at: place(value), text: formatTick(value) })) };
}

function powersOfTen(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  const count = Math.floor(Math.log10(high) + 1e-9) - first + 1;
  const stride = Math.max(Math.ceil(count / 6), 1);
  return Array.from({ length: count }, (_, at) => 10 ** (first + at)).filter((_, at) => at % stride === 0);
}

function roundNumbers(low, high) {
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((unit) => unit * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-12) + step * 1e-9; at++) found.push(Number((at * step).toPrecision(12)));
  return found;
}
