"use strict";
// Training on several ranks: the report, a table of ranks, their timeline, and their speed.

const RANK_STATES = {
  starting: "--quiet", joined: "--accent", running: "--good", waiting: "--series-6", paused: "--quiet",
  late: "--warn", lost: "--bad", finished: "--accent",
};

class RankWorkPanel {
  constructor(run) {
    Object.assign(this, { run, styles: new LineStyles() });
    this.chart = new LanesChart(byId("lanes-chart"), { onZoom: (window) => (byId("lanes-reset").disabled = !window) });
    this.speed = new LineChart(byId("speed-chart"), {
      empty: () => "No rank has finished any work yet",
      axisLabel: (x) => formatSince(x, 0.1),
      xAxis: { incrs: SECOND_STEPS, values: formatSinceTicks, space: 70 },
      yRange: (plot, low, high) => [0, (high || 1) * 1.08],
      yTick: (value) => (value >= 10 ? formatCount(Math.round(value)) : formatTick(value)),
    });
    this.legend = new Legend(byId("speed-legend"), this.speed);
    byId("lanes-reset").addEventListener("click", () => this.chart.resetZoom());
    byId("lanes-legend").replaceChildren(...this.legendItems());
  }

  legendItems() {
    const items = [...ACTIVITIES, ["sync", SYNC_COLOR], ["batches between two syncs", PACE_COLOR]];
    return items.map(([label, color, longer], at) => {
      const item = element("span");
      item.append(swatch(color, at < ACTIVITIES.length ? "point" : ""), document.createTextNode(longer ?? label));
      return item;
    });
  }

  show() {
    const work = this.run.rank_work;
    byId("rank-work").hidden = !work.ranks?.length;
    if (!work.ranks?.length) return;
    // Between two events, ranks continue with what they do.
    const now = this.run.running ? Math.max(this.run.now(), work.time_s) : work.time_s;
    const ranks = work.ranks.map((row) => withOpenSlice(row, this.run.running ? openSlice(row, now) : null));
    this.showFacts(work, ranks);
    this.showTable(ranks, now);
    this.showTimeline(work, ranks, now);
    this.showSpeed(work);
  }

  showFacts({ policy, totals }, ranks) {
    const sum = (name) => ranks.reduce((total, row) => total + row[name], 0);
    const whole = ranks.reduce((total, row) => total + wholeTime(row), 0);
    const facts = [
      ["Syncs", String(totals.syncs ?? 0)],
      ["Idle", formatShare(sum("wait_s") + sum("pause_s"), whole)],
      ["Waiting", formatShare(sum("wait_s"), whole)],
      ["Reducing", formatShare(sum("reduce_s"), whole)],
      ["Sent", formatBytes(sum("num_bytes"))],
      ["Divergence", totals.divergence === undefined ? "—" : formatValue(totals.divergence)],
      ["Coverage", formatCoverage(totals.coverage)],
      ...(totals.link ? [["Link", totals.link.split(":")[0]]] : []),
    ];
    byId("rank-facts").replaceChildren(
      ...facts.map(([name, text]) => {
        const box = element("div");
        box.append(element("dt", "", name), element("dd", "", text));
        return box;
      }),
    );
    const hosts = new Set(ranks.map(({ host }) => host));
    const where = hosts.size > 1 ? ` on ${plural(hosts.size, "host")}` : "";
    const lost = ranks.filter(({ state }) => state === "lost").length;
    byId("rank-work-aside").textContent = [`${plural(ranks.length, "rank")}${where}`, `policy ${policy}`, ...(lost ? [`${lost} lost`] : [])].join(" · ");
  }

  showTable(ranks, now) {
    const severalHosts = new Set(ranks.map(({ host }) => host)).size > 1;
    const samples = ranks.reduce((total, row) => total + row.samples, 0);
    const names = ["Batches per sync", "Updates", "Samples", "Share", "Speed", "Computing", "Reducing", "Idle", "Of it waiting", "Sent", "Last seen"];
    const heads = [["Rank"], ["Device"], ...(severalHosts ? [["Host"]] : []), ["State"], ...names.map((name) => [name, "number"])];
    const rows = ranks.map((row) => this.rankLine(row, { samples, now, severalHosts }));
    fillTable(byId("rank-table"), heads, rows);
  }

  rankLine(rank, { samples, now, severalHosts }) {
    const whole = wholeTime(rank);
    const since = Math.max(now - rank.seen_s, 0);
    const line = row([
      [`rank ${rank.rank}`],
      [rank.device],
      ...(severalHosts ? [[rank.host]] : []),
      ["", rank.lost ? "lost" : ""],
      [String(rank.batches), "number"],
      [String(rank.updates), "number"],
      [String(rank.samples), "number"],
      [formatShare(rank.samples, samples), "number"],
      [rank.train_s ? `${formatCount(Math.round(rank.samples / rank.train_s))}/s` : "—", "number"],
      ...["train_s", "reduce_s"].map((name) => [formatShare(rank[name], whole), "number"]),
      [formatShare(rank.wait_s + rank.pause_s, whole), "number"],
      [formatShare(rank.wait_s, whole), "number"],
      [formatBytes(rank.num_bytes), "number"],
      [since < 1 ? "now" : `${formatClock(since)} ago`, "number quiet"],
    ]);
    // A program that was killed could not record the end of its ranks.
    const state = this.run.running || rank.ended_s ? rank.state : "ended";
    const text = rank.lost ? `lost: ${rank.lost}` : state;
    line.children[severalHosts ? 3 : 2].append(swatch(RANK_STATES[state] ?? "--quiet", "point"), document.createTextNode(text));
    return line;
  }

  showTimeline({ slices, pace, syncs, ranks: rows }, ranks, now) {
    const origin = originOf({ slices, ranks: rows });
    const since = (time) => time - origin;
    const lanes = ranks.map((rank) => {
      const all = [...(slices[rank.rank] ?? []), ...(rank.open ? [rank.open] : [])];
      const end = rank.ended_s || now;
      return {
        label: `rank ${rank.rank}`,
        slices: all.map(([start, stop, ...parts]) => [since(start), since(stop), ...parts]),
        pace: (pace[rank.rank] ?? []).map(([time, batches]) => [since(time), batches]),
        joined: since(rank.joined_s),
        end: since(end),
        ended: since(rank.ended_s || now),
        lost: rank.lost,
      };
    });
    this.chart.showLanes(lanes, syncs.map(([time, count]) => [since(time), count]), Math.max(since(now), 0.001));
  }

  showSpeed({ slices, speed, ranks }) {
    const origin = originOf({ slices, ranks });
    const lines = ranks.map(({ rank, device }) => {
      const points = speed[rank] ?? [];
      const label = `rank ${rank} · ${device}`;
      return makeLine(label, label, points.map(([time]) => time - origin), points.map(([, value]) => value), this.styles.of(label), { group: "", label });
    });
    this.speed.show(lines);
    this.legend.show(lines);
  }

  redraw() {
    this.chart.build();
    this.speed.build();
  }
}

// The time axis starts when the first rank joined.
function originOf({ slices, ranks }) {
  const starts = ranks.map(({ rank, since_s }) => slices[rank]?.[0]?.[0] ?? since_s);
  return Math.min(...starts);
}

// A rank with the time of what it does now.
function withOpenSlice(rank, open) {
  if (!open || !rank.batches) return { ...rank, open };
  const [start, end, compute, , wait] = open;
  return { ...rank, open, train_s: rank.train_s + compute, wait_s: rank.wait_s + wait, pause_s: rank.pause_s + (end - start - compute - wait) };
}

function wholeTime({ train_s, reduce_s, wait_s, pause_s }) {
  return train_s + reduce_s + wait_s + pause_s;
}

function formatShare(part, whole) {
  return whole ? `${((100 * part) / whole).toFixed(1)}%` : "—";
}

function formatCoverage(coverage) {
  if (!coverage) return "—";
  const { num_samples, epochs = 0, partial = 0, missing = 0, repeated = 0 } = coverage;
  const wrong = [missing ? `${missing} samples missing` : "", repeated ? `${repeated} samples repeated` : ""].filter(Boolean);
  const parts = epochs || !partial ? [plural(epochs, "epoch")] : [];
  if (epochs) parts.push(...(wrong.length ? wrong : ["each sample once"]));
  if (partial) parts.push(epochs ? `and ${partial} of ${num_samples} samples of the next one` : `${partial} of ${num_samples} samples of an epoch`);
  return parts.join(", ");
}
