"use strict";
// The page that compares runs: the table, the plot of settings against a metric, and the metrics of some of the runs.

const COMPARE_INTERVAL_MS = 5000;

class ComparePage {
  // fetchState(run) returns the state of a run by its number.
  constructor(comparison, fetchState, { live }) {
    this.metrics = new MetricsPanel([]);
    // Until the user has chosen lines, the chart shows the metric of the table.
    Object.assign(this, { fetchState, live, states: new Map(), isFresh: !this.metrics.hasSelection });
    const onHover = (run) => this.highlight(run);
    this.table = new RunsTable(this.metrics.styles, { onChange: (what) => this.onTable(what), onHover });
    this.parallel = new ParallelPlot(byId("parallel-plot"), { onBrush: (brushes) => this.table.setBrushes(brushes), onHover });
    this.setComparison(comparison);
    if (live) setInterval(() => this.refresh(), COMPARE_INTERVAL_MS);
  }

  setComparison(comparison) {
    this.comparison = comparison;
    // Without a prototype, a setting or a metric may have any name, even `constructor`.
    for (const run of comparison.runs) {
      for (const part of ["settings", "metrics"]) run[part] = Object.assign(Object.create(null), run[part]);
    }
    assignDisplayNames(comparison.runs);
    byId("runs").hidden = false;
    this.table.show(comparison);
    showComparisonHeader(comparison.runs);
    showDifferences(comparison);
  }

  onTable(what) {
    this.loading = this.showPlots(what);
  }

  // The plots are below the table. When the page opens, the table is painted first.
  async showPlots(what) {
    if (!this.isOpen) await this.table.painted;
    this.isOpen = true;
    this.parallel.show(this.table);
    await this.showCharts({ isOtherMetric: what === "metric" });
  }

  highlight(run) {
    this.parallel.highlight(run);
    this.table.highlight(run);
  }

  // Only the runs in the chart are loaded, so that a table of many runs opens at once.
  async showCharts({ isOtherMetric = false } = {}) {
    const wanted = this.table.charted();
    const turn = (this.turn = (this.turn ?? 0) + 1);
    await Promise.all(wanted.filter(({ run }) => !this.states.has(run)).map((run) => this.load(run.run)));
    if (turn !== this.turn) return; // another choice was made in the meantime
    const runs = wanted.filter(({ run }) => this.states.has(run)).map((run) => Object.assign(this.states.get(run.run), { displayName: run.displayName }));
    this.metrics.setRuns(runs, isOtherMetric || this.isFresh ? this.table.metric : null);
    this.isFresh = false;
  }

  async load(run) {
    const state = await this.fetchState(run).catch(() => null);
    if (state) this.states.set(run, new Run(state));
  }

  async refresh() {
    try {
      const comparison = await fetchJson("api/runs");
      const growing = comparison.runs.filter(({ run }) => this.states.get(run)?.running).map(({ run }) => run);
      await Promise.all(growing.map((run) => this.load(run)));
      const isSame = JSON.stringify(comparison) === this.received;
      this.received = JSON.stringify(comparison);
      if (growing.length || !isSame) this.setComparison(comparison);
    } catch {
      // the server is unavailable; the next refresh tries again
    }
  }

  redraw() {
    this.metrics.chart.build();
  }
}

// A page in a background tab is not painted.
function nextPaint() {
  if (document.hidden) return Promise.resolve();
  return new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}
