"use strict";
// The page: lanes that zoom together, lists, keyboard and theme.

class Timeline {
  constructor(data) {
    this.data = data;
    this.hidden = new Set();
    this.following = false;
    const last = data.times[data.times.length - 1] ?? 1;
    this.full = [Math.min(data.times[0] ?? 0, 0), last];
    this.window = this.full;
    this.lanes = data.lanes.map((lane) => new Lane(lane, this));
    byId("lanes").append(...this.lanes.map((lane) => lane.panel));
    this.build();
  }

  build() {
    this.following = true;
    for (const lane of this.lanes) lane.build(this.window);
    this.following = false;
  }

  // One lane was zoomed: the others follow, without triggering further updates.
  follow(leader, low, high) {
    if (this.following || low === null || low === undefined) return;
    if (leader.plot === null) return;
    this.setWindow(low, high, leader);
  }

  setWindow(low, high, leader) {
    const minWidth = (this.full[1] - this.full[0]) / 10000;
    const width = Math.max(high - low, minWidth);
    const start = Math.min(Math.max(low, this.full[0]), Math.max(this.full[1] - width, this.full[0]));
    this.window = [start, Math.min(start + width, this.full[1])];
    this.following = true;
    for (const lane of this.lanes) {
      if (lane !== leader || start !== low) lane.plot.setScale("x", { min: this.window[0], max: this.window[1] });
    }
    // uPlot reports a new scale in a microtask, so this has to wait for it.
    queueMicrotask(() => (this.following = false));
    byId("reset").disabled = this.window[0] <= this.full[0] && this.window[1] >= this.full[1];
  }

  goTo(start, end) {
    const room = Math.max((end - start) * 0.75, 0.25);
    this.setWindow(start - room, end + room);
  }

  resetZoom() {
    this.setWindow(...this.full);
  }

  visibleMarks() {
    return this.data.marks.filter(({ kind }) => !this.hidden.has(kind));
  }

  toggle(kind) {
    if (!this.hidden.delete(kind)) this.hidden.add(kind);
    for (const lane of this.lanes) lane.plot.redraw();
    return !this.hidden.has(kind);
  }

  showTime(at) {
    const { facts, times } = this.data;
    const summary = `${formatSeconds(facts.duration_s)} · ${plural(facts.num_steps, "step")} · ${plural(facts.num_samples, "sample")}`;
    const dropped = facts.num_dropped ? ` · the first ${facts.num_dropped} marks were dropped` : "";
    byId("summary").textContent = at === null || at === undefined ? summary + dropped : [`at ${formatSeconds(times[at])}`, ...this.notesAt(at)].join(" · ");
  }

  // The labels of the marks near a sample.
  notesAt(at) {
    const { times } = this.data;
    const [low, high] = [times[at - 1] ?? 0, times[at + 1] ?? times[at]];
    const near = this.visibleMarks().filter(({ start, length, label }) => label && start <= high && start + length >= low);
    return near.slice(0, 3).map(({ kind, label }) => `${kind}: ${label}`);
  }

  onKey(event) {
    const [low, high] = this.window;
    const width = high - low;
    const moves = {
      ArrowLeft: [low - width / 4, high - width / 4],
      ArrowRight: [low + width / 4, high + width / 4],
      "+": [low + width / 4, high - width / 4],
      "-": [low - width / 2, high + width / 2],
      Escape: this.full,
    };
    const target = moves[event.key];
    if (!target) return;
    event.preventDefault();
    this.setWindow(...target);
  }
}

const data = JSON.parse(byId("data").textContent);
followTheme(() => timeline.build());
const timeline = new Timeline(data);
const [bound, reason] = [data.verdict.bound, data.verdict.line.slice(data.verdict.bound.length + 1)];
byId("verdict").children[0].textContent = bound;
byId("verdict").children[1].textContent = reason;
timeline.showTime(null);
fillKinds(timeline);
fillGaps(timeline);
fillNotes(timeline);
fillLongest(timeline);
byId("reset").addEventListener("click", () => timeline.resetZoom());
byId("lanes").addEventListener("dblclick", () => timeline.resetZoom());
byId("lanes").addEventListener("keydown", (event) => timeline.onKey(event));
