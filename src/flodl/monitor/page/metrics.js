"use strict";
// The metrics of a run, or of several: over the epochs, or over the steps in as much detail as there is.

const WHOLE_STEPS = [1, 2, 5].flatMap((unit) => [0, 1, 2, 3, 4, 5, 6, 7].map((power) => unit * 10 ** power)).sort((a, b) => a - b);

class MetricsPanel {
  // fetchPoints(window) gives finer lines for a window of steps, or null where there are none to be had.
  constructor(runs, fetchPoints = null) {
    Object.assign(this, { runs, fetchPoints, axis: null, detail: null, looks: new Looks(), waiting: 0, picked: false });
    this.chart = new LineChart(byId("metrics-chart"), {
      empty: () => (this.runs.some((run) => run.running) ? "The first epoch will appear here" : "No epoch was told"),
      axisLabel: (x) => `${this.axis === "step" ? "step" : "epoch"} ${x}`,
      xAxis: { incrs: WHOLE_STEPS, label: "epoch", labelSize: 20, labelFont: drawnFont(12), values: (plot, ticks) => this.shownPlaces(ticks) },
      whole: () => this.whole(),
      onZoom: (window) => this.onZoom(window),
      onRead: (x) => this.onRead(x),
    });
    this.legend = new Legend(byId("legend"), this.chart, { filter: byId("filter"), showAll: byId("show-all"), onChange: () => this.onPick() });
    for (const button of document.querySelectorAll("[data-axis]")) button.addEventListener("click", () => this.setAxis(button.dataset.axis));
    for (const button of document.querySelectorAll("[data-scale]")) button.addEventListener("click", () => this.setLog(button.dataset.scale === "log"));
    byId("reset").addEventListener("click", () => this.chart.resetZoom());
    byId("smoothing").addEventListener("input", ({ target }) => this.setSmoothing(Number(target.value)));
    this.bringBack(rememberedView());
  }

  // What was chosen before the page was read again.
  bringBack({ axis, log, smoothing, hidden }) {
    if (axis === "epoch" || axis === "step") Object.assign(this, { axis, chosen: true });
    if (log === true) this.setLog(true);
    if (smoothing > 0 && smoothing < 1) {
      byId("smoothing").value = smoothing;
      this.setSmoothing(smoothing);
    }
    if (Array.isArray(hidden)) {
      this.chart.hidden = new Set(hidden);
      this.picked = true;
    }
    this.remember();
  }

  remember() {
    const { log, smoothing, hidden } = this.chart;
    rememberView({ axis: this.chosen ? this.axis : null, log, smoothing, hidden: this.picked ? [...hidden] : null });
  }

  hasSteps() {
    return this.runs.some((run) => Object.keys(run.metrics).length > 0);
  }

  hasEpochs() {
    return this.runs.some((run) => run.history.length > 0);
  }

  show() {
    const hasBoth = this.hasSteps() && this.hasEpochs();
    // Epochs as soon as there are two; before that, steps show more.
    if (!this.chosen || !hasBoth) this.axis = this.hasSteps() && this.runs.every((run) => run.history.length < 2) ? "step" : "epoch";
    byId("axis").hidden = !hasBoth;
    for (const button of document.querySelectorAll("[data-axis]")) button.setAttribute("aria-pressed", String(button.dataset.axis === this.axis));
    this.lines = this.makeLines();
    // What was hidden in another run may be all that there is in this one.
    if (this.lines.length && !this.lines.some((line) => this.chart.isVisible(line))) this.chart.hidden = new Set();
    this.chart.setAxisName(this.axis);
    this.chart.show(this.lines);
    this.legend.show(this.lines);
    // Until somebody picks, a few of many: hundreds of lines at once tell nothing.
    if (!this.picked && this.runs.length === 1) this.legend.begin(new Set(firstLines(this.lines).map(({ key }) => key)));
    this.note();
  }

  // There is no epoch before the first and none after the last.
  shownPlaces(ticks) {
    const [first, last] = this.whole();
    const shown = (tick) => (tick >= 1e6 ? `${tick / 1e6}M` : tick >= 1e4 ? `${tick / 1e3}k` : String(tick));
    return ticks.map((tick) => (tick < first || tick > last ? "" : shown(tick)));
  }

  onPick() {
    this.picked = true;
    this.remember();
    this.note();
  }

  makeLines() {
    const several = this.runs.length > 1;
    return this.runs.flatMap((run, number) => {
      const series = [...(this.axis === "step" ? this.stepSeries(run) : this.epochSeries(run))];
      if (series.length > MANY) series.sort(([a], [b]) => natural(a, b));
      const placedIn = grouping(series.map(([name]) => name));
      return series.map(([name, { x, y, whole }]) => {
        const key = `${number}\u0000${name}`;
        const place = several ? { group: name, label: run.shownName } : placedIn(name);
        const line = makeLine(key, name, x, y, this.looks.of(several ? number : name), place);
        if (whole) line.whole = { x: whole.x, y: parted(whole.y).numbers };
        return several ? { ...line, readName: `${name} · ${run.shownName}` } : line;
      });
    });
  }

  epochSeries(run) {
    const series = new Map();
    for (const { epoch, metrics } of run.history) {
      for (const [name, value] of Object.entries(metrics)) {
        if (!series.has(name)) series.set(name, { x: [], y: [] });
        series.get(name).x.push(epoch);
        series.get(name).y.push(value);
      }
    }
    return series;
  }

  stepSeries(run) {
    const finer = this.chart.window && this.detail && this.detail.run === run ? this.detail.lines : null;
    const series = new Map(Object.entries(finer ?? run.metrics));
    for (const [name, line] of finer ? series : []) series.set(name, { ...line, whole: run.metrics[name] });
    return series;
  }

  // From the first to the last place, also where only a part is shown in detail.
  whole() {
    if (this.axis !== "step" || !this.detail) return this.chart.full();
    const lines = Object.values(this.detail.run.metrics).filter(({ x }) => x.length);
    return [Math.min(...lines.map(({ x }) => x[0])), Math.max(...lines.map(({ x }) => x[x.length - 1]))];
  }

  setAxis(axis) {
    this.axis = axis;
    this.chosen = true;
    this.remember();
    this.detail = null;
    this.chart.window = null;
    this.show();
    this.chart.resetZoom();
  }

  setLog(log) {
    for (const button of document.querySelectorAll("[data-scale]")) button.setAttribute("aria-pressed", String((button.dataset.scale === "log") === log));
    this.chart.log = log;
    this.chart.build();
    this.remember();
    this.note();
  }

  setSmoothing(factor) {
    byId("smoothing-value").textContent = factor ? factor.toFixed(2) : "off";
    this.chart.smoothing = factor;
    this.chart.build();
    this.remember();
  }

  onZoom(window) {
    byId("reset").disabled = window === null;
    if (this.axis !== "step" || !this.fetchPoints) return;
    clearTimeout(this.waiting);
    if (window === null) {
      if (this.detail) {
        this.detail = null;
        setTimeout(() => this.show(), 0); // not now: uPlot is in the middle of its own change
      }
      return;
    }
    const key = window.join();
    if (this.detail?.key === key) return;
    this.waiting = setTimeout(async () => {
      const lines = await this.fetchPoints(window);
      if (lines && this.chart.window?.join() === key) {
        this.detail = { key, lines, run: this.runs[0] };
        this.show();
      }
    }, 200);
  }

  onRead(x) {
    byId("column").textContent = x === null ? "latest" : `${this.axis} ${x}`;
    if (this.lines) this.legend.read(x);
  }

  note() {
    if (!this.lines) return;
    const shown = this.lines.filter((line) => this.chart.isVisible(line));
    const count = (test) => shown.reduce((sum, line) => sum + line.y.filter(test).length, 0);
    const special = shown.reduce((sum, line) => sum + line.special.filter((word) => word !== null).length, 0);
    const below = this.chart.log ? count((value) => value !== null && value <= 0) : 0;
    const names = [...new Set(shown.map(({ name }) => name))];
    byId("shown-name").hidden = this.runs.length < 2 || names.length !== 1;
    byId("shown-name").textContent = names[0] ?? "";
    const parts = [];
    if (shown.length < this.lines.length) parts.push(`${shown.length} of ${plural(this.lines.length, "line")} shown.`);
    if (below) parts.push(`${plural(below, "value")} at or below zero cannot be shown on a log scale.`);
    if (special) parts.push(`× marks ${plural(special, "value")} that ${special === 1 ? "is" : "are"} NaN or infinite.`);
    byId("metrics-note").textContent = parts.join(" ");
  }
}

// The view is remembered for this tab and this address alone; where nothing may be stored, the page begins as ever.
const VIEW = `flodl-view ${location.pathname}`;

function rememberedView() {
  try {
    return JSON.parse(sessionStorage.getItem(VIEW)) ?? {};
  } catch {
    return {};
  }
}

function rememberView(view) {
  try {
    sessionStorage.setItem(VIEW, JSON.stringify(view));
  } catch {
    // it is not remembered
  }
}
