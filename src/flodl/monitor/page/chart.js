"use strict";
// A line chart on top of uPlot: a readout at the pointer, zoom, pan, log scale, smoothing.

const MAX_READINGS = 12;

class LineChart {
  // options: empty() returns the text of an empty chart, axisLabel(value) the heading of the readout, fullRange()
  // the ends of the axis; xAxis, yTick and yRange() configure the axes; onZoom(window) and onRead(x) are callbacks.
  constructor(host, options) {
    Object.assign(this, { host, options, lines: [], hidden: new Set(), log: false, smoothing: 0, plot: null, window: null });
    this.readout = element("div", "readout");
    this.readout.hidden = true;
    host.append(this.readout);
    new ResizeObserver(() => this.plot?.setSize(this.size())).observe(host);
    host.addEventListener("keydown", (event) => this.onKey(event));
    host.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    host.addEventListener("pointerdown", (event) => this.onPan(event), { capture: true });
    enableTouch(this);
    host.addEventListener("mousedown", (event) => event.shiftKey && event.stopPropagation(), { capture: true });
  }

  size() {
    return { width: Math.max(this.host.clientWidth, 160), height: Math.max(this.host.clientHeight, 120) };
  }

  show(lines) {
    const same = this.plot && lines.length === this.lines.length && lines.every(({ key }, at) => key === this.lines[at].key);
    this.lines = lines;
    if (!same || this.hasOtherAxes()) {
      this.build();
      return;
    }
    this.columns = this.makeColumns();
    this.plot.setData(this.columns, this.window === null);
    if (this.window) this.plot.setScale("x", { min: this.window[0], max: this.window[1] });
    if (!this.readout.hidden) this.read();
  }

  setAxisName(name) {
    if (this.options.xAxis.label === name) return;
    this.options.xAxis.label = name;
    this.lines = []; // forces a rebuild
  }

  build() {
    this.plot?.destroy();
    this.plot = null;
    this.host.querySelector(".empty")?.remove();
    if (!this.lines.some(({ x }) => x.length)) {
      this.readout.hidden = true;
      this.host.append(element("p", "empty", this.options.empty?.() ?? "No data yet"));
      return;
    }
    this.columns = this.makeColumns();
    this.axes = this.assignAxes();
    this.plot = new uPlot(this.plotOptions(), this.columns, this.host);
    if (this.window) this.plot.setScale("x", { min: this.window[0], max: this.window[1] });
  }

  makeColumns() {
    const prepared = this.lines.map((line) => (this.log ? { ...line, y: positiveOnly(line.y) } : line));
    const [xs, ...raw] = alignColumns(prepared);
    this.smooth = raw.map((values, at) => (this.smoothing ? this.smoothColumn(xs, values, this.lines[at]) : null));
    return [xs, ...raw.flatMap((values, at) => [values, this.smooth[at] ?? values.map(() => null)])];
  }

  // A zoomed line is smoothed over its full length, so that zooming does not change the smoothed values.
  smoothColumn(xs, values, line) {
    const { x, y } = line.full ?? line;
    const own = smoothByDistance(x, this.log ? positiveOnly(y) : y, this.smoothing, line.unit);
    if (!line.full && x.length === xs.length) return own;
    const smooth = interpolate(x, own, xs);
    return values.map((value, at) => (value === null || value === undefined ? value : smooth[at]));
  }

  // The axes of the visible lines, from left to right; lines of different magnitude have different axes.
  assignAxes() {
    if (!this.options.maxAxes) return [[]];
    return splitByMagnitude(this.lines.filter((line) => this.isVisible(line)), { log: this.log, maxAxes: this.options.maxAxes() });
  }

  hasOtherAxes() {
    const names = (axes) => JSON.stringify(axes);
    return this.options.maxAxes !== undefined && names(this.assignAxes()) !== names(this.axes);
  }

  scaleOf(line) {
    return SCALES[Math.max((this.axes ?? []).findIndex((names) => names.includes(line.name)), 0)];
  }

  isVisible(line) {
    return !this.hidden.has(line.key);
  }

  plotOptions() {
    const shared = {
      stroke: drawnColor(this.host, "--quiet"),
      font: drawnFont(12),
      grid: { stroke: drawnColor(this.host, "--grid"), width: 1 },
      ticks: { stroke: drawnColor(this.host, "--grid"), width: 1, size: 5 },
    };
    return {
      ...this.size(),
      padding: [10, 20, 0, 0],
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: { drag: { x: true, y: false, dist: 5 }, points: { size: 7 }, dataIdx: (plot, series, at) => this.nearestValue(series, at) },
      scales: {
        x: { time: false, range: (plot, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
        ...Object.fromEntries(this.axes.map((_, at) => [SCALES[at], this.options.yRange ? { range: this.options.yRange } : valueScale(this.log)])),
      },
      axes: [{ ...shared, size: 30, ...this.options.xAxis }, ...this.axes.map((names, at) => this.valueAxis(names, at, shared))],
      series: [{}, ...this.lines.flatMap((line) => this.strokes(line))],
      hooks: {
        setCursor: [() => this.read()],
        setScale: [(plot, key) => key === "x" && this.onScale(plot)],
        draw: [(plot) => this.drawMarks(plot)],
      },
    };
  }

  valueAxis(names, at, shared) {
    const values = (plot, ticks) => ticks.map((tick) => (tick === null ? "" : (this.options.yTick ?? formatTick)(tick)));
    const label = this.axes.length > 1 ? { label: listNames(names), labelSize: 20, labelGap: 2, labelFont: drawnFont(12) } : {};
    const side = at ? { side: 1, grid: { show: false } } : {};
    const own = this.lines.filter((line) => this.isVisible(line) && names.includes(line.name));
    // The axis of a single line has its color.
    if (this.axes.length > 1 && own.length === 1) side.stroke = drawnColor(this.host, own[0].color);
    return { ...shared, ...label, ...side, scale: SCALES[at], size: (plot, ticks) => this.axisWidth(plot, ticks), values };
  }

  axisWidth(plot, values) {
    const longest = Math.max(...(values ?? [""]).map((value) => value.length));
    return Math.max(44, 18 + 7 * longest);
  }

  strokes(line) {
    const color = drawnColor(this.host, line.color);
    const shared = { stroke: color, scale: this.scaleOf(line), dash: line.dash, show: this.isVisible(line), spanGaps: false, points: { size: 5, fill: color, width: 0, show: (plot, series) => this.isSparse(series) } };
    const faint = { ...shared, width: 1, alpha: 0.28, points: { show: false } };
    const strong = { ...shared, width: 1.75 };
    return this.smoothing ? [faint, strong] : [strong, { ...shared, show: false }];
  }

  // Draw points if the line has few of them.
  isSparse(series) {
    const line = this.lines[Math.floor((series - 1) / 2)];
    return line !== undefined && line.x.length <= 24;
  }

  nearestValue(series, at) {
    if (series === 0) return at;
    const values = this.columns[series];
    for (let away = 0; away < 400; away++) {
      if (values[at - away] !== null && values[at - away] !== undefined) return at - away;
      if (values[at + away] !== null && values[at + away] !== undefined) return at + away;
    }
    return null;
  }

  setVisible(hidden) {
    this.hidden = hidden;
    if (!this.plot) return;
    if (this.hasOtherAxes()) {
      this.build();
      return;
    }
    this.plot.batch(() => {
      this.lines.forEach((line, at) => {
        this.plot.setSeries(1 + 2 * at, { show: this.isVisible(line) });
        this.plot.setSeries(2 + 2 * at, { show: this.isVisible(line) && this.smoothing > 0 });
      });
    });
  }

  highlight(line) {
    const at = this.lines.indexOf(line);
    this.plot?.setSeries(at < 0 ? null : (this.smoothing ? 2 : 1) + 2 * at, { focus: at >= 0 });
  }

  full() {
    const xs = this.columns?.[0] ?? [];
    return [xs[0], xs[xs.length - 1]];
  }

  onScale(plot) {
    const { min, max } = plot.scales.x;
    const [first, last] = this.full();
    const zoomed = min !== null && first !== last && (min > first || max < last);
    this.window = zoomed ? [min, max] : null;
    this.options.onZoom?.(this.window);
  }

  zoomTo(low, high) {
    const [first, last] = this.options.fullRange?.() ?? this.full();
    const span = Math.min(high - low, last - first);
    const start = Math.min(Math.max(low, first), last - span);
    if (span <= 0) return;
    this.plot?.setScale("x", { min: start, max: start + span });
  }

  resetZoom() {
    this.window = null;
    const [first, last] = this.full();
    this.plot?.setScale("x", { min: first, max: last });
    this.options.onZoom?.(null);
  }

  shift(share) {
    if (!this.window) return;
    const [low, high] = this.window;
    this.zoomTo(low + share * (high - low), high + share * (high - low));
  }

  scaleBy(factor, center = null) {
    if (!this.plot) return;
    const { min, max } = this.plot.scales.x;
    const middle = center ?? (min + max) / 2;
    this.zoomTo(middle - (middle - min) * factor, middle + (max - middle) * factor);
  }

  onWheel(event) {
    if (!this.plot || !(event.ctrlKey || event.metaKey || event.shiftKey)) return;
    event.preventDefault();
    if (event.shiftKey) this.shift((event.deltaY || event.deltaX) / 1200);
    else this.scaleBy(Math.exp(event.deltaY / 300), this.plot.posToVal(event.clientX - this.plot.over.getBoundingClientRect().left, "x"));
  }

  onPan(event) {
    if (!event.shiftKey || !this.window) return;
    event.preventDefault();
    event.stopPropagation();
    const [low, high] = this.window;
    const width = this.plot.over.clientWidth;
    const move = (moved) => this.zoomTo(...[low, high].map((edge) => edge - ((moved.clientX - event.clientX) / width) * (high - low)));
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }

  onKey(event) {
    if (!this.plot) return;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") this.resetZoom();
    else if (event.key === "+" || event.key === "=") this.scaleBy(0.6);
    else if (event.key === "-") this.scaleBy(1 / 0.6);
    else if (side && event.shiftKey) this.shift(side * 0.25);
    else if (side) this.step(side);
    else if (event.key === "Home") this.step(-Infinity);
    else if (event.key === "End") this.step(Infinity);
    else return;
    event.preventDefault();
  }

  step(side) {
    const xs = this.columns[0];
    const { left } = this.plot.cursor;
    const { min, max } = this.plot.scales.x;
    const [first, last] = [xs.findIndex((x) => x >= min), xs.findLastIndex((x) => x <= max)];
    const from = left >= 0 ? this.plot.posToIdx(left) : side > 0 ? first - 1 : last + 1;
    const at = Math.min(Math.max(from + side, first), last);
    this.plot.setCursor({ left: this.plot.valToPos(xs[at], "x"), top: this.plot.over.clientHeight / 3 });
    byId("spoken").textContent = this.readout.innerText.replace(/\s*\n\s*/g, ", ");
  }

  read() {
    const { left, top } = this.plot.cursor;
    const away = left === undefined || left < 0;
    // From the position: the index in the cursor may belong to the previous data.
    const x = away ? null : this.columns[0][this.plot.posToIdx(left)];
    this.readout.hidden = away;
    this.options.onRead?.(x);
    if (!away) {
      this.fillReadout(x, top);
      this.placeReadout(left, top);
    }
  }

  fillReadout(x, top) {
    const found = [];
    this.lines.forEach((line, number) => {
      if (!this.isVisible(line) || !line.x.length) return;
      const at = nearestIndex(line.x, x);
      const raw = line.special[at] ?? line.y[at];
      if (raw === null || raw === undefined) return;
      const column = this.smooth[number];
      const smooth = column ? column[this.nearestValue(2 + 2 * number, nearestIndex(this.columns[0], line.x[at]))] : null;
      const value = smooth ?? raw;
      const height = typeof value === "number" ? this.plot.valToPos(value, this.scaleOf(line)) : 0;
      found.push({ line, raw, height, smooth });
    });
    const closest = [...found].sort((a, b) => Math.abs(a.height - top) - Math.abs(b.height - top)).slice(0, MAX_READINGS);
    const rows = closest.sort((a, b) => a.height - b.height).map(({ line, smooth, raw }) => {
      const reading = element("div", "reading");
      const format = this.options.yTick ?? formatReading;
      reading.append(swatch(line.color, "point"), element("span", "label", line.readName ?? line.name));
      if (this.smoothing) reading.append(element("span", "number", format(smooth)));
      reading.append(element("span", this.smoothing ? "number measured" : "number", format(raw)));
      return reading;
    });
    if (found.length > closest.length) rows.push(element("p", "", `and ${found.length - closest.length} more`));
    const heading = `${this.options.axisLabel(x)}${this.smoothing ? " · smoothed, measured" : ""}`;
    this.readout.replaceChildren(element("h3", "", heading), ...rows);
  }

  placeReadout(left, top) {
    const { over } = this.plot;
    const frame = over.getBoundingClientRect();
    const home = this.host.getBoundingClientRect();
    const width = this.readout.offsetWidth;
    const right = left + 16 + width < over.clientWidth;
    const x = frame.left - home.left + (right ? left + 16 : Math.max(left - 16 - width, 0));
    const lowest = Math.max(over.clientHeight - this.readout.offsetHeight, 0);
    const y = frame.top - home.top + Math.min(Math.max(top - this.readout.offsetHeight / 2, 0), lowest);
    this.readout.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
  }

  drawMarks(plot) {
    for (const line of this.lines.filter((each) => this.isVisible(each))) {
      drawCrosses(plot, { x: line.x, special: line.special, color: drawnColor(this.host, line.color) });
    }
  }
}
