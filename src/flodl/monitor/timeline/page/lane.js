"use strict";
// One lane: lines over time with marks and gaps, and the values at the cursor.

const MARK_COLORS = { gc: "--series-7", sync: "--series-4", save: "--series-2", epoch: "--quiet", data: "--series-1", alert: "--series-3", tier: "--series-5", note: "--series-8", evaluate: "--series-6" };
const PHASE_COLORS = { step: "--series-0", evaluate: "--series-6", data: "--series-1", sync: "--series-4", save: "--series-2", other: "--series-10" };

// A sample describes the time before it, so lines are steps that extend to the left.
const STEPPED = uPlot.paths.stepped({ align: -1 });
// More marks than this would cover the lines, so they become ticks at the top.
const MAX_TALL_MARKS = 120;

function markColor(kind) {
  return MARK_COLORS[kind] ?? "--series-9";
}

function formatSeconds(seconds) {
  const size = Math.abs(seconds);
  if (size < 1) return `${(seconds * 1000).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 60) return `${seconds.toFixed(size < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return `${minutes} m ${String(Math.floor(seconds % 60)).padStart(2, "0")} s`;
}

class Lane {
  constructor(lane, timeline) {
    Object.assign(this, { lane, timeline, plot: null });
    this.panel = element("section", lane.stacked ? "panel lane tall" : "panel lane");
    this.panel.setAttribute("aria-label", lane.title);
    this.host = element("div", "draw");
    this.panel.append(this.heading(), this.host);
    new ResizeObserver(() => this.plot && this.plot.setSize(this.size())).observe(this.host);
  }

  heading() {
    const head = element("header");
    const names = element("span", "names");
    this.numbers = this.lane.lines.map((line, at) => {
      const name = element("span", "name");
      const number = element("span", "number", "");
      name.append(swatch(this.variable(line, at), "point"), element("span", "", line.name), number);
      names.append(name);
      return number;
    });
    head.append(element("h2", "", this.lane.title), element("span", "note", this.lane.note), names);
    return head;
  }

  variable(line, at) {
    if (this.lane.stacked) return PHASE_COLORS[line.name] ?? `--series-${(at + 7) % 12}`;
    return `--series-${at}`;
  }

  size() {
    return { width: Math.max(this.host.clientWidth, 160), height: this.host.clientHeight };
  }

  // Stacked lines are drawn from top to bottom, each over the previous one.
  order() {
    const indices = this.lane.lines.map((line, at) => at);
    return this.lane.stacked ? indices.reverse() : indices;
  }

  columns() {
    const values = this.lane.lines.map((line) => line.values);
    if (!this.lane.stacked) return values;
    const below = new Array(this.timeline.data.times.length).fill(0);
    const sums = values.map((column) => column.map((value, at) => (below[at] += value ?? 0)));
    return this.order().map((at) => sums[at]);
  }

  build(window) {
    if (this.plot) this.plot.destroy();
    const axis = {
      stroke: drawnColor(this.host, "--quiet"),
      font: drawnFont(11),
      grid: { stroke: drawnColor(this.host, "--grid"), width: 1 },
      ticks: { stroke: drawnColor(this.host, "--grid"), width: 1, size: 4 },
    };
    const top = this.lane.top;
    const options = {
      ...this.size(),
      padding: [6, 20, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false, dist: 5 },
        points: { show: !this.lane.stacked, size: 6 },
        sync: { key: "timeline", setSeries: false, filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
      },
      scales: {
        x: { time: false, range: (plot, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
        y: { range: (plot, low, high) => [0, top || Math.max(high * 1.08, 1)] },
      },
      axes: [
        { ...axis, size: 24, values: (plot, ticks) => ticks.map((tick) => `${Number(tick.toFixed(3))} s`) },
        { ...axis, size: 52, space: 26, values: (plot, ticks) => ticks.map((tick) => `${tick} ${this.lane.unit}`) },
      ],
      series: [{}, ...this.order().map((at) => this.line(this.lane.lines[at], at))],
      hooks: {
        drawClear: [(plot) => this.drawGaps(plot)],
        draw: [(plot) => this.drawMarks(plot)],
        setCursor: [(plot) => this.read(plot.cursor.left < 0 ? null : plot.cursor.idx)],
        setScale: [(plot, key) => key === "x" && this.timeline.follow(this, plot.scales.x.min, plot.scales.x.max)],
      },
    };
    this.plot = new uPlot(options, [this.timeline.data.times, ...this.columns()], this.host);
    if (window) this.plot.setScale("x", { min: window[0], max: window[1] });
  }

  line(line, at) {
    const variable = this.variable(line, at);
    const fill = this.lane.stacked ? drawnColor(this.host, variable) : line.fill ? drawnColor(this.host, variable, 18) : undefined;
    return { stroke: drawnColor(this.host, variable), fill, width: this.lane.stacked ? 0 : 1.5, points: { show: false }, paths: STEPPED, spanGaps: false, pxAlign: 0 };
  }

  span(plot, start, length) {
    const { bbox } = plot;
    const left = plot.valToPos(start, "x", true);
    const right = plot.valToPos(start + length, "x", true);
    if (right < bbox.left || left > bbox.left + bbox.width) return null;
    return [Math.max(left, bbox.left), Math.min(right, bbox.left + bbox.width)];
  }

  drawGaps(plot) {
    if (this.lane.device === undefined) return;
    plot.ctx.save();
    plot.ctx.fillStyle = drawnColor(this.host, "--series-7", 14);
    for (const gap of this.timeline.data.gaps.filter(({ device }) => device === this.lane.device)) {
      const span = this.span(plot, gap.start, gap.end - gap.start);
      if (span) plot.ctx.fillRect(span[0], plot.bbox.top, span[1] - span[0], plot.bbox.height);
    }
    plot.ctx.restore();
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    const found = this.timeline.visibleMarks().map((mark) => ({ ...mark, span: this.span(plot, mark.start, mark.length) }));
    const marks = found.filter(({ span }) => span);
    const height = marks.length > MAX_TALL_MARKS ? 8 * devicePixelRatio : bbox.height;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    for (const { kind, length, span } of marks) {
      const width = span[1] - span[0];
      if (width > 1.5 * devicePixelRatio) {
        ctx.fillStyle = drawnColor(this.host, markColor(kind), 22);
        ctx.fillRect(span[0], bbox.top, width, height);
      }
      ctx.strokeStyle = drawnColor(this.host, markColor(kind));
      ctx.setLineDash(length ? [] : [3 * devicePixelRatio, 3 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(span[0], bbox.top);
      ctx.lineTo(span[0], bbox.top + height);
      ctx.stroke();
    }
    ctx.restore();
  }

  read(at) {
    this.numbers.forEach((number, line) => {
      const value = at === null || at === undefined ? null : this.lane.lines[line].values[at];
      number.textContent = value === null || value === undefined ? "" : `${value.toFixed(this.lane.unit === "%" ? 0 : 1)} ${this.lane.unit}`;
    });
    this.timeline.showTime(at);
  }
}
