"use strict";
// The page: creates the panels and decides when to draw them.

const RANKS_INTERVAL_MS = 2000;
const STATUS_INTERVAL_MS = 3000;

// The page of one run, live or from an archive.
class RunPage {
  constructor(state, { live, isOneOfMany = false }) {
    Object.assign(this, { live, isOneOfMany });
    this.setState(state);
    byId("rank").addEventListener("change", ({ target }) => this.chooseRank(Number(target.value)));
    setInterval(() => this.run.running && this.showTime(), 1000);
    if (live) setInterval(() => this.fetchRanks(), RANKS_INTERVAL_MS);
    if (live && isOneOfMany) setInterval(() => this.run.running && this.reload(), STATUS_INTERVAL_MS);
    else if (live && this.run.status.followed) setInterval(() => this.fetchStatus(), STATUS_INTERVAL_MS);
  }

  setState(state) {
    const isDifferentRun = this.run && this.run.server !== state.server;
    this.run = new Run(state);
    const { run } = this;
    const panels = this.panels;
    this.header = new Header(run, { isLive: this.live });
    byId("stats").replaceChildren();
    if (panels) {
      for (const panel of Object.values(panels)) panel.run = run;
      panels.metrics.runs = [run];
      panels.metrics.detail = null;
    } else {
      this.panels = {
        metrics: new MetricsPanel([run], this.live ? (window) => this.fetchPoints(window) : null),
        resources: new ResourcesPanel(run),
        epochs: new EpochsPanel(run),
        classes: new ClassesPanel(run),
        events: new EventsPanel(run),
        rankWork: new RankWorkPanel(run),
      };
    }
    this.picture = run.svg ? URL.createObjectURL(new Blob([run.svg], { type: "image/svg+xml" })) : null;
    this.pictureVersion = run.last_id;
    this.show(["epoch", "tick", "told", "graph", "ranks"]);
    if (isDifferentRun) for (const { chart } of [panels.metrics, panels.rankWork]) chart.resetZoom();
    if (this.live && run.running && !this.isOneOfMany) {
      this.follower = new Follower(run, { onChange: (name) => this.scheduleDraw(name), onReset: () => this.reload() });
    }
  }

  // Draw all changes since the last frame at once.
  scheduleDraw(name) {
    this.changed ??= new Set();
    if (!this.changed.size) requestAnimationFrame(() => this.drawChanged());
    this.changed.add(name);
    if (name === "graph") this.pictureVersion = this.run.last_id;
  }

  drawChanged() {
    const names = [...this.changed];
    this.changed.clear();
    this.show(names);
  }

  show(names) {
    const has = (name) => names.includes(name) || names.includes("complete");
    this.header.show();
    if (has("epoch") || has("tick")) this.panels.metrics.show();
    if (has("tick")) this.panels.resources.show();
    if (has("epoch")) {
      this.panels.epochs.show();
      this.panels.classes.show();
    }
    if (has("told")) {
      this.panels.events.show();
      showTiers(this.run);
    }
    if (has("told") || has("config")) showConfig(this.run);
    if (has("ranks") || has("told")) this.panels.rankWork.show();
    if (has("graph")) showGraph(this.run, this.live ? `graph.svg?server=${this.run.server}&run=${this.run.run}&at=${this.pictureVersion}` : this.picture);
    showRanks(this.run, this.live ? (rank) => this.chooseRank(rank) : null);
    arrange();
  }

  showTime() {
    this.header.showNumbers();
    this.panels.rankWork.show();
  }

  async reload(rank = this.run.rank) {
    try {
      this.setState(await fetchJson(`api/state?rank=${rank}&run=${this.run.run}`));
    } catch ({ status }) {
      // The run that is served now may not have this rank.
      setTimeout(() => this.reload(status === 404 ? 0 : rank), 1000);
    }
  }

  chooseRank(rank) {
    this.follower?.close();
    this.reload(rank);
  }

  async fetchRanks() {
    if (!this.run.running || this.run.ranks.length < 2) return;
    const ranks = await fetchForRun(this.run, "api/ranks").catch(() => null);
    if (ranks) this.run.ranks = ranks.map(restoreNonFinite);
    showRanks(this.run, (rank) => this.chooseRank(rank));
  }

  // A killed process sends no end event, so a page that follows it has to poll its status.
  async fetchStatus() {
    if (!this.run.running) return;
    const status = await fetchForRun(this.run, "api/status").catch(() => this.run.status);
    if (status.state === "running") return;
    Object.assign(this.run.status, status);
    this.header.show();
  }

  async fetchPoints([low, high]) {
    const lines = await fetchForRun(this.run, "api/points", `&from=${low}&to=${high}`).catch(() => null);
    return lines && restoreNonFiniteLines(lines);
  }

  redraw() {
    this.panels.metrics.chart.build();
    this.panels.resources.chart.build();
    this.panels.rankWork.redraw();
  }
}

let shownPage = null;

async function start() {
  followTheme(() => shownPage?.redraw());
  const packed = byId("data").textContent.trim();
  const live = !packed;
  const { comparison = null, states = null } = packed ? await decompress(packed) : await readRuns();
  const fetchState = live ? (run) => fetchJson(`api/state?run=${run}`) : async (run) => structuredClone(states[run]);
  const chosen = new URLSearchParams(location.search).get("run");
  if (comparison && chosen === null) {
    shownPage = new ComparePage(comparison, fetchState, { live });
    await shownPage.loading;
  } else {
    byId("all-runs").hidden = !comparison;
    byId("all-runs").href = "?";
    shownPage = new RunPage(await fetchState(Number(chosen ?? 0)), { live, isOneOfMany: comparison !== null });
  }
  document.documentElement.dataset.ready = "true";
}

// The comparison is null if the server shows a single run.
async function readRuns() {
  const comparison = await fetchJson("api/runs");
  return { comparison: comparison.is_comparison ? comparison : null };
}

start().catch((error) => {
  byId("notice").hidden = false;
  byId("notice").textContent = `The page cannot load the run: ${error.message}`;
});
