"use strict";
// The data of a run: the state that was loaded once, and the updates since.

const MAX_POINTS = 12000;
const MAX_EVENTS = 1500;
// A run is reported as silent after this time, and after this many times its usual pause.
const MIN_SILENCE_S = 5;
const SILENCE_FACTOR = 5;
const MAX_PAUSES = 20;
const MIN_PAUSE_S = 0.1;

class Run {
  constructor(state) {
    this.svg = state.svg ?? null;
    this.clock_offset_s = state.status.now_s - Date.now() / 1000;
    this.read_ms = performance.now();
    Object.assign(this, state);
    this.history = state.history.map(restoreNonFinite);
    this.ranks = state.ranks.map(restoreNonFinite);
    this.rank_work = state.rank_work ?? {};
    // Without a prototype, a metric may have any name, even `__proto__`.
    this.metrics = Object.assign(Object.create(null), restoreNonFiniteLines(state.metrics));
    this.resources.lines = Object.assign(Object.create(null), state.resources.lines);
    this.last_message_ms = this.read_ms - 1000 * Math.max(state.status.now_s - state.status.last_s, 0);
    this.pauses = initialPauses(this);
  }

  onMessage() {
    const now_ms = performance.now();
    const pause_s = (now_ms - this.last_message_ms) / 1000;
    this.last_message_ms = now_ms;
    if (pause_s < MIN_PAUSE_S) return; // messages of the same batch
    this.pauses.push(pause_s);
    if (this.pauses.length > MAX_PAUSES) this.pauses.shift();
  }

  // Seconds since the last message if that is unusually long, or null.
  silence() {
    const silent_s = (performance.now() - this.last_message_ms) / 1000;
    if (!this.running || !this.pauses.length) return null;
    return silent_s > Math.max(MIN_SILENCE_S, SILENCE_FACTOR * median(this.pauses)) ? silent_s : null;
  }

  get running() {
    return this.status.state === "running";
  }

  now() {
    return this.running ? Date.now() / 1000 + this.clock_offset_s : (this.status.ended_s ?? this.status.last_s);
  }

  // The duration of all starts of the run, from a monotonic clock if it is known.
  elapsed() {
    const { elapsed_s, started_s, earlier_s = 0 } = this.status;
    if (typeof elapsed_s !== "number") return started_s === null ? null : earlier_s + Math.max(this.now() - started_s, 0);
    return this.running ? elapsed_s + (performance.now() - this.read_ms) / 1000 : elapsed_s;
  }

  addEpoch(epoch) {
    const steps = Object.values(this.metrics).map(({ x }) => x[x.length - 1]).filter((step) => step !== undefined);
    const record = restoreNonFinite({ ...(steps.length ? { step: Math.max(...steps) } : {}), ...epoch });
    const at = this.history.findIndex((other) => other.epoch >= record.epoch);
    if (at < 0) this.history.push(record);
    // A repeated epoch replaces all epochs after it, as on the server.
    else this.history.splice(at, this.history[at].epoch === record.epoch ? Infinity : 0, record);
    this.last_id = Math.max(this.last_id, record.id);
  }

  addTick({ points = {}, progress = null, resources = null }) {
    for (const [name, { x, y }] of Object.entries(restoreNonFiniteLines(points))) {
      const line = (this.metrics[name] ??= { x: [], y: [] });
      extendLine(line, x, y);
      thinLine(line, MAX_POINTS);
    }
    if (progress) this.progress = progress;
    if (resources) this.addResources(resources);
  }

  addResources(data) {
    const { time_s, ...readings } = data;
    for (const [name, value] of leaves("", readings)) {
      const line = (this.resources.lines[name] ??= { x: [], y: [] });
      extendLine(line, [time_s], [value]);
      thinLine(line, MAX_POINTS / 4);
    }
    if (Array.isArray(data.gpus)) this.resources.devices = data.gpus.map((gpu) => gpu?.name ?? "");
  }

  addEvent(record) {
    if (this.events.some((other) => other.id === record.id)) return;
    this.events.push(record);
    if (this.events.length > MAX_EVENTS) this.events.splice(0, this.events.length - MAX_EVENTS);
    if (record.kind === "run_end" && record.rank === this.rank) {
      const elapsed_s = typeof record.duration_s === "number" ? (this.status.earlier_s ?? 0) + record.duration_s : undefined;
      Object.assign(this.status, { state: record.status ?? "finished", message: record.message, ended_s: record.time_s, elapsed_s });
    }
  }

  // Settings that became known after the start; a known path gets the new value.
  addSettings({ config = [], total_epochs, rank }) {
    if (rank !== this.rank) return;
    const added = new Map(config.map((setting) => [setting.path, setting]));
    this.config = [...this.config.filter(({ path }) => !added.has(path)), ...added.values()];
    this.status.total_epochs = total_epochs || this.status.total_epochs;
  }

  // Seconds until the end: based on recent epochs, minus the elapsed part of this one.
  remainingSeconds() {
    const total = this.status.total_epochs;
    if (!total || !this.running) return null;
    const durations = this.history.map(({ duration }) => duration).filter((value) => typeof value === "number");
    const done = this.history.length ? this.history[this.history.length - 1].epoch : 0;
    if (done >= total) return null;
    const within = this.epochFraction();
    const since = this.history.length ? this.history[this.history.length - 1].time_s : this.status.started_s;
    if (!durations.length) {
      return within > 0.02 ? ((this.now() - since) / within) * (total - within) : null;
    }
    const each = median(durations.slice(-5));
    const passed = within > 0 ? within * each : Math.min(Math.max(this.now() - since, 0), each);
    return Math.max((total - done) * each - passed, 0);
  }

  // The finished part of the current epoch, from 0 to 1.
  epochFraction() {
    const { epoch, step, num_steps } = this.progress;
    const done = this.history.length ? this.history[this.history.length - 1].epoch : 0;
    if (typeof num_steps !== "number" || !num_steps || epoch < done) return 0;
    return Math.min(step / num_steps, 1);
  }

  fraction() {
    const total = this.status.total_epochs;
    const done = this.history.length ? this.history[this.history.length - 1].epoch : 0;
    return total ? Math.min((done + this.epochFraction()) / total, 1) : this.epochFraction();
  }
}

// The pauses between events before the page was opened: between readings, or else between epochs.
function initialPauses({ resources, history }) {
  const readings = Object.values(resources.lines)[0]?.x ?? [];
  const times = (readings.length > 1 ? readings : history.map(({ time_s }) => time_s)).slice(-MAX_PAUSES);
  return times.slice(1).map((time_s, at) => time_s - times[at]);
}

// A number that is not finite is null in the data; put its name from `not_finite` in its place.
function restoreNonFinite(record) {
  return { ...record, metrics: Object.assign(record.metrics ?? {}, record.not_finite) };
}

function restoreNonFiniteLines(lines) {
  for (const line of Object.values(lines)) {
    for (const [name, indices] of Object.entries(line.not_finite ?? {})) {
      for (const at of indices) line.y[at] = name;
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
