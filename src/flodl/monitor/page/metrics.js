"use strict";
// The metrics of one run or of several runs, over epochs or over steps.

const WHOLE_STEPS = [1, 2, 5].flatMap((unit) => [0, 1, 2, 3, 4, 5, 6, 7].map((power) => unit * 10 ** power)).sort((a, b) => a - b);

class MetricsPanel {
  // fetchPoints(window) returns more detailed lines for a window of steps, or null.
  constructor(runs, fetchPoints = null) {
    Object.assign(this, { runs, fetchPoints, axis: null, detail: null, styles: new LineStyles(), timer: 0, hasSelection: false, isComparison: false });
    this.chart = new LineChart(byId("metrics-chart"), {
      empty: () => (this.runs.some((run) => run.running) ? "The first epoch will appear here" : "No epoch was recorded"),
      axisLabel: (x) => `${this.axis === "step" ? "step" : "epoch"} ${x}`,
      xAxis: { incrs: WHOLE_STEPS, label: "epoch", labelSize: 20, labelFont: drawnFont(12), values: (plot, ticks) => this.formatTicks(ticks) },
      fullRange: () => this.fullRange(),
      maxAxes: () => (NARROW.matches ? 2 : 3),
      onZoom: (window) => this.onZoom(window),
      onRead: (x) => this.onRead(x),
    });
    this.legend = new Legend(byId("legend"), this.chart, { filter: byId("filter"), showAll: byId("show-all"), onChange: () => this.onPick() });
    for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => this.setAxis(button.dataset.axis));
    for (const button of document.querySelectorAll("[data-scale]")) button.addEventListener("click", () => this.setLog(button.dataset.scale === "log"));
    byId("reset").addEventListener("click", () => this.chart.resetZoom());
    byId("smoothing").addEventListener("input", ({ target }) => this.setSmoothing(Number(target.value)));
    this.restoreView(loadView());
  }

  // Restore the view from before a reload.
  restoreView({ axis, log, smoothing, hidden }) {
    if (axis === "epoch" || axis === "step") Object.assign(this, { axis, axisChosen: true });
    if (log === true) this.setLog(true);
    if (smoothing > 0 && smoothing < 1) {
      byId("smoothing").value = smoothing;
      this.setSmoothing(smoothing);
    }
    if (Array.isArray(hidden)) {
      this.chart.hidden = new Set(hidden);
      this.hasSelection = true;
    }
    this.storeView();
  }

  storeView() {
    const { log, smoothing, hidden } = this.chart;
    saveView({ axis: this.axisChosen ? this.axis : null, log, smoothing, hidden: this.hasSelection ? [...hidden] : null });
  }

  hasSteps() {
    return this.runs.some((run) => Object.keys(run.metrics).length > 0);
  }

  hasEpochs() {
    return this.runs.some((run) => run.history.length > 0);
  }

  show() {
    const hasBoth = this.hasSteps() && this.hasEpochs();
    // Show epochs once there are two of them; before that, steps show more.
    if (!this.axisChosen || !hasBoth) this.axis = this.hasSteps() && this.runs.every((run) => run.history.length < 2) ? "step" : "epoch";
    byId("axis").hidden = !hasBoth;
    for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === this.axis));
    this.lines = this.makeLines();
    // The lines hidden in a previous run may be all lines of this one.
    if (this.lines.length && !this.lines.some((line) => this.chart.isVisible(line))) this.chart.hidden = new Set();
    this.chart.setAxisName(this.axis);
    this.chart.show(this.lines);
    this.legend.show(this.lines);
    // Until the user selects lines, show only a few of many.
    if (!this.hasSelection && !this.isComparison) this.legend.showInitially(new Set(initialLines(this.lines).map(({ key }) => key)));
    this.updateNote();
  }

  // Show other runs of a comparison, with the same metrics as before, or only with this metric.
  setRuns(runs, metric) {
    const shown = new Set((this.lines ?? []).filter((line) => this.chart.isVisible(line)).map(({ name }) => name));
    const known = new Set((this.lines ?? []).map(({ key }) => key));
    Object.assign(this, { runs, isComparison: true });
    const isFirst = !this.lines;
    this.show();
    const names = new Set(this.lines.map(({ name }) => name));
    if (metric !== null && names.has(metric)) this.showMetrics(new Set([metric]));
    else if (isFirst && !this.hasSelection) this.legend.soloGroup((name) => name.includes("loss"));
    else if (shown.size) this.showMetrics(shown, known);
  }

  // Hide all other metrics; lines that the user has hidden stay hidden.
  showMetrics(names, known = new Set()) {
    const isHidden = ({ key, name }) => !names.has(name) || (known.has(key) && this.chart.hidden.has(key));
    const kept = this.lines.filter((line) => !isHidden(line));
    this.legend.showInitially(new Set((kept.length ? kept : this.lines).map(({ key }) => key)));
    this.legend.scrollTo(kept[0]);
    this.updateNote();
  }

  // No label before the first epoch or after the last one.
  formatTicks(ticks) {
    const [first, last] = this.fullRange();
    const format = (tick) => (tick >= 1e6 ? `${tick / 1e6}M` : tick >= 1e4 ? `${tick / 1e3}k` : String(tick));
    return ticks.map((tick) => (tick < first || tick > last ? "" : format(tick)));
  }

  onPick() {
    this.hasSelection = true;
    this.storeView();
    this.updateNote();
  }

  makeLines() {
    const { isComparison } = this;
    return this.runs.flatMap((run) => {
      const number = run.run ?? 0;
      const series = [...(this.axis === "step" ? this.stepSeries(run) : this.epochSeries(run))];
      if (series.length > MANY_LINES) series.sort(([a], [b]) => compareNatural(a, b));
      const split = chooseGrouping(series.map(([name]) => name));
      return series.map(([name, { x, y, full, unit }]) => {
        const key = `${number}\u0000${name}`;
        const grouped = isComparison ? { group: name, label: run.displayName } : split(name);
        const line = makeLine(key, name, x, y, this.styles.of(isComparison ? number : name), grouped);
        line.unit = unit;
        if (full) line.full = { x: full.x, y: parted(full.y).numbers };
        return isComparison ? { ...line, readName: `${name} · ${run.displayName}` } : line;
      });
    });
  }

  epochSeries(run) {
    return this.seriesOf(run.history, "epoch");
  }

  seriesOf(records, axis) {
    const series = new Map();
    for (const { metrics, [axis]: x } of records) {
      for (const [name, value] of Object.entries(metrics)) {
        if (!series.has(name)) series.set(name, { x: [], y: [] });
        series.get(name).x.push(x);
        series.get(name).y.push(value);
      }
    }
    return series;
  }

  // Metrics that were recorded once per epoch are shown at the last step of the epoch.
  stepSeries(run) {
    const finer = this.chart.window && this.detail && this.detail.run === run ? this.detail.lines : null;
    const series = new Map(Object.entries(finer ?? run.metrics));
    for (const [name, line] of finer ? series : []) series.set(name, { ...line, full: run.metrics[name] });
    const placed = run.history.filter(({ step }) => step !== undefined);
    // They are smoothed over as many steps as the others, and so hardly at all.
    const unit = Math.min(...Object.values(run.metrics).filter(({ x }) => x.length > 1).map(({ x }) => usualDistance(x)));
    for (const [name, line] of this.seriesOf(placed, "step")) if (!series.has(name)) series.set(name, { ...line, unit: Number.isFinite(unit) ? unit : undefined });
    return series;
  }

  // The first and the last position, even if only a part is loaded in detail.
  fullRange() {
    if (this.axis !== "step" || !this.detail) return this.chart.full();
    const lines = Object.values(this.detail.run.metrics).filter(({ x }) => x.length);
    return [Math.min(...lines.map(({ x }) => x[0])), Math.max(...lines.map(({ x }) => x[x.length - 1]))];
  }

  setAxis(axis) {
    this.axis = axis;
    this.axisChosen = true;
    this.storeView();
    this.detail = null;
    this.chart.window = null;
    this.show();
    this.chart.resetZoom();
  }

  setLog(log) {
    for (const button of document.querySelectorAll("[data-scale]")) button.setAttribute("aria-pressed", String((button.dataset.scale === "log") === log));
    this.chart.log = log;
    this.chart.build();
    this.storeView();
    this.updateNote();
  }

  setSmoothing(factor) {
    byId("smoothing-value").textContent = factor ? factor.toFixed(2) : "off";
    this.chart.smoothing = factor;
    this.chart.build();
    this.storeView();
  }

  onZoom(window) {
    byId("reset").disabled = window === null;
    if (this.axis !== "step" || !this.fetchPoints) return;
    clearTimeout(this.timer);
    if (window === null) {
      if (this.detail) {
        this.detail = null;
        setTimeout(() => this.show(), 0); // later: uPlot is still applying its own change
      }
      return;
    }
    const key = window.join();
    if (this.detail?.key === key) return;
    this.timer = setTimeout(async () => {
      const lines = await this.fetchPoints(window);
      if (lines && this.chart.window?.join() === key) {
        this.detail = { key, lines, run: this.runs[0] };
        this.show();
      }
    }, 200);
  }

  onRead(x) {
    byId("column").textContent = x === null ? "latest" : `${this.axis} ${x}`;
    if (this.lines) this.legend.showValues(x);
  }

  updateNote() {
    if (!this.lines) return;
    const shown = this.lines.filter((line) => this.chart.isVisible(line));
    const count = (test) => shown.reduce((sum, line) => sum + line.y.filter(test).length, 0);
    const special = shown.reduce((sum, line) => sum + line.special.filter((name) => name !== null).length, 0);
    const nonPositive = this.chart.log ? count((value) => value !== null && value <= 0) : 0;
    const names = [...new Set(shown.map(({ name }) => name))];
    byId("shown-name").hidden = !this.isComparison || names.length !== 1;
    byId("shown-name").textContent = names[0] ?? "";
    const parts = [];
    if (shown.length < this.lines.length) parts.push(`${shown.length} of ${plural(this.lines.length, "line")} shown.`);
    if (nonPositive) parts.push(`${plural(nonPositive, "value")} at or below zero cannot be shown on a log scale.`);
    if (special) parts.push(`× marks ${plural(special, "value")} that ${special === 1 ? "is" : "are"} NaN or infinite.`);
    byId("metrics-note").textContent = parts.join(" ");
  }
}

// The view is stored for this tab and this address; without storage, the page uses its defaults.
const VIEW = `flodl-view ${location.pathname}${location.search}`;

function loadView(part = "") {
  try {
    return JSON.parse(sessionStorage.getItem(`${VIEW} ${part}`)) ?? {};
  } catch {
    return {};
  }
}

function saveView(view, part = "") {
  try {
    sessionStorage.setItem(`${VIEW} ${part}`, JSON.stringify(view));
  } catch {
    // the view is not stored
  }
}
