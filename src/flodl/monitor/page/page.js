"use strict";
// Puts the page together: panels, theme, and what is drawn when.

const COMPARE_EVERY_MS = 5000;
const RANKS_EVERY_MS = 2000;
const STATUS_EVERY_MS = 3000;

// One run: everything about it, live or from an archive.
class RunPage {
  constructor(state, { live }) {
    this.live = live;
    this.use(state);
    byId("rank").addEventListener("change", ({ target }) => this.chooseRank(Number(target.value)));
    setInterval(() => this.run.running && this.header.showNumbers(), 1000);
    if (live) setInterval(() => this.askRanks(), RANKS_EVERY_MS);
    if (live && this.run.status.followed) setInterval(() => this.askStatus(), STATUS_EVERY_MS);
  }

  use(state) {
    const isAnother = this.run && this.run.server !== state.server;
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
        metrics: new MetricsPanel([run], this.live ? (window) => this.finerPoints(window) : null),
        resources: new ResourcesPanel(run),
        epochs: new EpochsPanel(run),
        events: new EventsPanel(run),
      };
    }
    this.picture = run.svg ? URL.createObjectURL(new Blob([run.svg], { type: "image/svg+xml" })) : null;
    this.pictureOf = run.last_id;
    this.show(["epoch", "tick", "told", "graph"]);
    if (isAnother) panels.metrics.chart.resetZoom();
    if (this.live && run.running) {
      this.follower = new Follower(run, { onChange: (name) => this.soon(name), onReset: () => this.reload() });
    }
  }

  // All that changed since the last picture of the screen is drawn at once.
  soon(name) {
    this.changed ??= new Set();
    if (!this.changed.size) requestAnimationFrame(() => this.drawChanged());
    this.changed.add(name);
    if (name === "graph") this.pictureOf = this.run.last_id;
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
    if (has("epoch")) this.panels.epochs.show();
    if (has("told")) {
      this.panels.events.show();
      showTiers(this.run);
      showConfig(this.run);
    }
    if (has("graph")) showGraph(this.run, this.live ? `graph.svg?server=${this.run.server}&at=${this.pictureOf}` : this.picture);
    showRanks(this.run, this.live ? (rank) => this.chooseRank(rank) : null);
    arrange();
  }

  async reload(rank = this.run.rank) {
    try {
      this.use(await ask(`api/state?rank=${rank}`));
    } catch ({ status }) {
      // The run that is there now may not have this rank.
      setTimeout(() => this.reload(status === 404 ? 0 : rank), 1000);
    }
  }

  chooseRank(rank) {
    this.follower?.close();
    this.reload(rank);
  }

  async askRanks() {
    if (!this.run.running || this.run.ranks.length < 2) return;
    const ranks = await askOf(this.run, "api/ranks").catch(() => null);
    if (ranks) this.run.ranks = ranks.map(withNames);
    showRanks(this.run, (rank) => this.chooseRank(rank));
  }

  // A process that is killed says nothing; whoever follows it from outside has to look.
  async askStatus() {
    if (!this.run.running) return;
    const status = await askOf(this.run, "api/status").catch(() => this.run.status);
    if (status.state === "running") return;
    Object.assign(this.run.status, status);
    this.header.show();
  }

  async finerPoints([low, high]) {
    const lines = await askOf(this.run, "api/points", `&from=${low}&to=${high}`).catch(() => null);
    return lines && linesWithNames(lines);
  }

  recolour() {
    this.panels.metrics.chart.build();
    this.panels.resources.chart.build();
  }
}

// Several runs: their metrics over each other, and how they differ.
class ComparePage {
  constructor(states, { live }) {
    this.metrics = new MetricsPanel([]);
    this.use(states);
    if (!this.metrics.picked) this.metrics.legend.soloGroup((name) => name.includes("loss"));
    if (live) setInterval(() => this.refresh(), COMPARE_EVERY_MS);
  }

  use(states) {
    this.runs = states.map((state) => new Run(state));
    nameApart(this.runs);
    this.metrics.runs = this.runs;
    this.metrics.show();
    showComparisonHeader(this.runs);
    showRuns(this.runs, this.metrics.looks);
    showDifferences(this.runs);
  }

  async refresh() {
    if (!this.runs.some((run) => run.running)) return;
    try {
      this.use(await Promise.all(this.runs.map((_, at) => ask(`api/state?run=${at}`))));
    } catch {
      // the server is away for a moment; the next turn asks again
    }
  }

  recolour() {
    this.metrics.chart.build();
  }
}

let shownPage = null;

async function start() {
  followTheme(() => shownPage?.recolour());
  const packed = byId("data").textContent.trim();
  const live = !packed;
  const states = packed ? await unpacked(packed) : await readStates();
  shownPage = states.length > 1 ? new ComparePage(states, { live }) : new RunPage(states[0], { live });
  document.documentElement.dataset.ready = "true";
}

async function readStates() {
  const runs = await ask("api/runs");
  return Promise.all(runs.map((_, at) => ask(`api/state?run=${at}`)));
}

start().catch((error) => {
  byId("notice").hidden = false;
  byId("notice").textContent = `The page could not read the run: ${error.message}`;
});
