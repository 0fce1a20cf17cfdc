"use strict";
// The chart, drawn with uPlot: one faint raw line and one smoothed line per metric.

class Chart {
  constructor(host, data, onCursor, onZoom) {
    Object.assign(this, { host, data, onCursor, onZoom, log: false, smoothing: 0, plot: null });
    this.full = [data.epochs[0], data.epochs[data.epochs.length - 1]];
    if (this.full[0] === this.full[1]) this.full = [this.full[0] - 0.5, this.full[1] + 0.5];
    this.build();
    new ResizeObserver(() => this.plot.setSize(this.size())).observe(host);
  }

  size() {
    return { width: Math.max(this.host.clientWidth, 160), height: Math.max(this.host.clientHeight, 160) };
  }

  build() {
    const window = this.plot ? [this.plot.scales.x.min, this.plot.scales.x.max] : null;
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(), this.columns(), this.host);
    if (window && window[0] !== null) this.plot.setScale("x", { min: window[0], max: window[1] });
  }

  columns() {
    const columns = [this.data.epochs];
    for (const metric of this.data.series) {
      const values = this.log ? positiveOnly(metric.values) : metric.values;
      columns.push(values, this.smoothing ? smoothed(values, this.smoothing) : values.map(() => null));
    }
    return columns;
  }

  options() {
    return {
      ...this.size(),
      padding: [12, 14, 0, 0],
      legend: { show: false },
      focus: { alpha: 0.25 },
      cursor: {
        drag: { x: true, y: false, dist: 5 },
        points: { size: 8 },
        dataIdx: (plot, at, hovered) => (this.hasReading(at) ? hovered : null),
      },
      scales: {
        x: { time: false, range: (plot, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
        y: valueScale(this.log),
      },
      axes: this.axes(),
      series: [{}, ...this.data.series.flatMap((metric) => this.lines(metric))],
      hooks: {
        setCursor: [(plot) => this.onCursor(plot.cursor.idx ?? null, plot.cursor)],
        setScale: [(plot, key) => key === "x" && this.onZoom(this.zoomed())],
        draw: [(plot) => this.drawSpecial(plot)],
      },
    };
  }

  axes() {
    const shared = {
      stroke: drawnColor(this.host, "--quiet"),
      font: drawnFont(12),
      grid: { stroke: drawnColor(this.host, "--grid"), width: 1 },
      ticks: { stroke: drawnColor(this.host, "--grid"), width: 1, size: 6 },
    };
    const wholeSteps = [1, 2, 5].flatMap((unit) => [0, 1, 2, 3, 4, 5, 6].map((power) => unit * 10 ** power));
    return [
      {
        ...shared,
        space: 60,
        size: 30,
        incrs: wholeSteps.sort((a, b) => a - b),
        label: "epoch",
        labelSize: 22,
        labelFont: shared.font,
      },
      {
        ...shared,
        values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : formatTick(tick))),
        size: (plot, texts) => 22 + 7 * Math.max(3, ...(texts ?? []).map((text) => text.length)),
      },
    ];
  }

  lines(metric) {
    const stroke = drawnColor(this.host, metric.color);
    const isolated = (plot, at, show) => (show ? null : isolatedPoints(plot.data[at]));
    const shared = { stroke, dash: metric.dash, spanGaps: false, pxAlign: 0 };
    const few = this.data.epochs.length <= 40;
    return [
      {
        ...shared,
        show: metric.visible,
        width: this.smoothing ? 1 : 2,
        alpha: this.smoothing ? 0.3 : 1,
        points: { show: few, size: 6, fill: stroke, filter: isolated },
      },
      {
        ...shared,
        show: metric.visible && this.smoothing > 0,
        width: 2.25,
        points: { show: false, size: 6, fill: stroke, filter: isolated },
      },
    ];
  }

  hasReading(at) {
    return (at % 2 === 0) === (this.smoothing > 0);
  }

  drawSpecial(plot) {
    for (const { special, color } of this.data.series.filter(({ visible }) => visible)) {
      drawCrosses(plot, { x: this.data.epochs, special, color: drawnColor(this.host, color) });
    }
  }

  smoothedAt(metric, at) {
    return this.smoothing ? this.plot.data[2 * metric.index + 2][at] : null;
  }

  setLog(log) {
    this.log = log;
    this.build();
  }

  setSmoothing(smoothing) {
    this.smoothing = smoothing;
    this.build();
  }

  applyVisibility() {
    this.plot.batch(() => {
      for (const { index, visible } of this.data.series) {
        this.plot.setSeries(2 * index + 1, { show: visible });
        this.plot.setSeries(2 * index + 2, { show: visible && this.smoothing > 0 });
      }
    });
  }

  highlight(metric) {
    const at = metric && metric.visible ? 2 * metric.index + (this.smoothing ? 2 : 1) : null;
    this.plot.setSeries(at, { focus: at !== null });
  }

  zoomed() {
    const { min, max } = this.plot?.scales.x ?? {};
    return min != null && (min > this.full[0] || max < this.full[1]);
  }

  resetZoom() {
    this.plot.setScale("x", { min: this.full[0], max: this.full[1] });
  }

  // Move the cursor to an epoch inside the zoomed window, at half height.
  moveTo(at) {
    const { min, max } = this.plot.scales.x;
    const epoch = this.data.epochs[at];
    if (epoch < min || epoch > max) return;
    this.plot.setCursor({ left: this.plot.valToPos(epoch, "x"), top: this.plot.over.clientHeight / 2 });
  }
}
