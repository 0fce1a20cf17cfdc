"use strict";
// What is known of a run: the state that was read once, and what has come since.

const MOST_KEPT = 12000;
const MOST_EVENTS = 1500;
// A run that says nothing for so long, and for so many times its usual pause, may hang.
const QUIET_S = 5;
const QUIET_TIMES = 5;
const MOST_PAUSES = 20;
const SAME_MOMENT_S = 0.1;

class Run {
  constructor(state) {
    this.svg = state.svg ?? null;
    this.offset_s = state.status.now_s - Date.now() / 1000;
    this.read_ms = performance.now();
    Object.assign(this, state);
    this.history = state.history.map(withNames);
    this.ranks = state.ranks.map(withNames);
    // Without a prototype, a metric may have any name, `__proto__` too.
    this.metrics = Object.assign(Object.create(null), linesWithNames(state.metrics));
    this.resources.lines = Object.assign(Object.create(null), state.resources.lines);
    this.heard_ms = this.read_ms - 1000 * Math.max(state.status.now_s - state.status.last_s, 0);
    this.pauses = knownPauses(this);
  }

  hear() {
    const now_ms = performance.now();
    const pause_s = (now_ms - this.heard_ms) / 1000;
    this.heard_ms = now_ms;
    if (pause_s < SAME_MOMENT_S) return; // several messages of one moment are no rhythm
    this.pauses.push(pause_s);
    if (this.pauses.length > MOST_PAUSES) this.pauses.shift();
  }

  // Seconds of a silence that is longer than usual, or null.
  silence() {
    const silent_s = (performance.now() - this.heard_ms) / 1000;
    if (!this.running || !this.pauses.length) return null;
    return silent_s > Math.max(QUIET_S, QUIET_TIMES * median(this.pauses)) ? silent_s : null;
  }

  get running() {
    return this.status.state === "running";
  }

  now() {
    return this.running ? Date.now() / 1000 + this.offset_s : (this.status.ended_s ?? this.status.last_s);
  }

  // How long the run has taken: by a clock that nobody sets where that is known.
  elapsed() {
    const { elapsed_s, started_s } = this.status;
    if (typeof elapsed_s !== "number") return started_s === null ? null : Math.max(this.now() - started_s, 0);
    return this.running ? elapsed_s + (performance.now() - this.read_ms) / 1000 : elapsed_s;
  }

  addEpoch(told) {
    const record = withNames(told);
    const at = this.history.findIndex((other) => other.epoch >= record.epoch);
    if (at < 0) this.history.push(record);
    // One that comes again takes those after it away, as the server has it.
    else this.history.splice(at, this.history[at].epoch === record.epoch ? Infinity : 0, record);
    this.last_id = Math.max(this.last_id, record.id);
  }

  addTick({ points = {}, progress = null, resources = null }) {
    for (const [name, { x, y }] of Object.entries(linesWithNames(points))) {
      const line = (this.metrics[name] ??= { x: [], y: [] });
      extendLine(line, x, y);
      thinLine(line, MOST_KEPT);
    }
    if (progress) this.progress = progress;
    if (resources) this.addResources(resources);
  }

  addResources(data) {
    const { time_s, ...readings } = data;
    for (const [name, value] of leaves("", readings)) {
      const line = (this.resources.lines[name] ??= { x: [], y: [] });
      extendLine(line, [time_s], [value]);
      thinLine(line, MOST_KEPT / 4);
    }
    if (Array.isArray(data.gpus)) this.resources.devices = data.gpus.map((gpu) => gpu?.name ?? "");
  }

  addTold(record) {
    if (this.events.some((other) => other.id === record.id)) return;
    this.events.push(record);
    if (this.events.length > MOST_EVENTS) this.events.splice(0, this.events.length - MOST_EVENTS);
    if (record.kind === "run_end" && record.rank === this.rank) {
      Object.assign(this.status, { state: record.status ?? "finished", message: record.message, ended_s: record.time_s, elapsed_s: record.duration_s });
    }
  }

  // Seconds to the end: the recent epochs, less what has passed of this one.
  timeLeft() {
    const total = this.status.total_epochs;
    if (!total || !this.running) return null;
    const durations = this.history.map(({ duration }) => duration).filter((value) => typeof value === "number");
    const done = this.history.length ? this.history[this.history.length - 1].epoch : 0;
    if (done >= total) return null;
    const within = this.withinEpoch();
    const since = this.history.length ? this.history[this.history.length - 1].time_s : this.status.started_s;
    if (!durations.length) {
      return within > 0.02 ? ((this.now() - since) / within) * (total - within) : null;
    }
    const each = median(durations.slice(-5));
    const passed = within > 0 ? within * each : Math.min(Math.max(this.now() - since, 0), each);
    return Math.max((total - done) * each - passed, 0);
  }

  // How much of the present epoch is done, from 0 to 1.
  withinEpoch() {
    const { epoch, step, num_steps } = this.progress;
    const done = this.history.length ? this.history[this.history.length - 1].epoch : 0;
    if (typeof num_steps !== "number" || !num_steps || epoch < done) return 0;
    return Math.min(step / num_steps, 1);
  }

  fraction() {
    const total = this.status.total_epochs;
    const done = this.history.length ? this.history[this.history.length - 1].epoch : 0;
    return total ? Math.min((done + this.withinEpoch()) / total, 1) : this.withinEpoch();
  }
}

// The pauses between what a run told before the page was opened: its readings, or else its epochs.
function knownPauses({ resources, history }) {
  const readings = Object.values(resources.lines)[0]?.x ?? [];
  const times = (readings.length > 1 ? readings : history.map(({ time_s }) => time_s)).slice(-MOST_PAUSES);
  return times.slice(1).map((time_s, at) => time_s - times[at]);
}

// A number that is not finite comes as null, with its name beside: the name goes back to its place.
function withNames(record) {
  return { ...record, metrics: Object.assign(record.metrics ?? {}, record.not_finite) };
}

function linesWithNames(lines) {
  for (const line of Object.values(lines)) {
    for (const [word, places] of Object.entries(line.not_finite ?? {})) {
      for (const at of places) line.y[at] = word;
    }
  }
  return lines;
}

function* leaves(prefix, value) {
  if (typeof value === "number") yield [prefix, value];
  else if (value !== null && typeof value === "object") {
    for (const [name, item] of Object.entries(value)) yield* leaves(prefix ? `${prefix}.${name}` : name, item);
  }
}
