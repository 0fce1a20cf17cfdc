"use strict";
// The timeline of the ranks: one lane for each, with the zoom, keys and touch input of a chart.

const LANE_HEIGHT = 46;
const ACTIVITIES = [
  ["computing", "--series-0"],
  ["reducing", "--series-4"],
  ["waiting", "--series-6"],
  ["paused", "--edge", "paused (evaluation, saving)"],
];
const SYNC_COLOR = "--series-5";
const PACE_COLOR = "--series-2";
const MAX_SYNC_LINES = 60;
const NUM_POSITIONS = 200;
const SECOND_STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, ...TIME_STEPS];

// Seconds since the start, as precise as the ticks need.
function formatSince(seconds, step = 1) {
  if (step < 1) return `${Number(seconds.toFixed(3))} s`;
  return seconds < 60 ? `${Math.round(seconds)} s` : formatDuration(seconds).replace(/ 00s$/, "");
}

function formatSinceTicks(plot, ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  return ticks.map((tick) => formatSince(tick, step));
}

class LanesChart extends LineChart {
  constructor(host, { onZoom }) {
    super(host, {
      axisLabel: (x) => formatSince(x, 0.1),
      xAxis: { incrs: SECOND_STEPS, values: formatSinceTicks, space: 70 },
      yRange: () => [0, Math.max(this.lanes?.length ?? 1, 1)],
      onZoom,
    });
    this.lanes = [];
    this.syncs = [];
  }

  // lanes: { label, slices, pace, joined, ended, lost } with times in seconds since the start.
  showLanes(lanes, syncs, end) {
    const height = `${lanes.length * LANE_HEIGHT + 48}px`;
    if (this.host.style.height !== height) this.host.style.height = height;
    Object.assign(this, { lanes, syncs });
    this.mostBatches = Math.max(1, ...lanes.flatMap(({ pace }) => pace.map(([, batches]) => batches)));
    const x = Array.from({ length: NUM_POSITIONS }, (_, at) => (at * end) / (NUM_POSITIONS - 1));
    // The lanes are drawn by hand; the lines give the axes their extent.
    this.show([{ key: lanes.map(({ label }) => label).join(), x, y: x.map(() => null), special: {}, color: "--quiet" }]);
  }

  plotOptions() {
    const options = super.plotOptions();
    const axis = options.axes[1];
    axis.splits = () => this.lanes.map((_, at) => at + 0.5);
    axis.values = () => this.lanes.map((_, at) => this.lanes[this.lanes.length - 1 - at].label);
    axis.grid = axis.ticks = { show: false };
    options.cursor.y = false;
    options.cursor.points = { show: false };
    return options;
  }

  // Move by a part of the visible range, however far it is zoomed.
  step(side) {
    const width = this.plot.over.clientWidth;
    const { left } = this.plot.cursor;
    const from = left >= 0 ? left : side > 0 ? 0 : width;
    const to = Math.min(Math.max(from + (side * width) / 100, 0), width - 1);
    this.plot.setCursor({ left: to, top: this.plot.over.clientHeight / 3 });
    byId("spoken").textContent = this.readout.innerText.replace(/\s*\n\s*/g, ", ");
  }

  read() {
    const { left, top } = this.plot.cursor;
    this.readout.hidden = left === undefined || left < 0;
    if (this.readout.hidden) return;
    this.fillReadout(this.plot.posToVal(left, "x"));
    this.placeReadout(left, top);
  }

  fillReadout(x) {
    const rows = this.lanes.slice(0, MAX_READINGS).map((lane) => {
      const reading = element("div", "reading");
      const { text, color } = describeMoment(lane, x);
      reading.append(swatch(color, "point"), element("span", "label", lane.label), element("span", "number", text));
      return reading;
    });
    if (this.lanes.length > MAX_READINGS) rows.push(element("p", "", `and ${this.lanes.length - MAX_READINGS} more`));
    const near = (this.plot.scales.x.max - this.plot.scales.x.min) / Math.max(this.plot.over.clientWidth, 1);
    const count = this.syncs.filter(([time]) => Math.abs(time - x) <= 3 * near).reduce((sum, [, number]) => sum + number, 0);
    const { min, max } = this.plot.scales.x;
    const heading = `${formatSince(x, (max - min) / 20)}${count ? ` · ${plural(count, "sync")}` : ""}`;
    this.readout.replaceChildren(element("h3", "", heading), ...rows);
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 8 * devicePixelRatio, bbox.width, bbox.height + 8 * devicePixelRatio);
    ctx.clip();
    const colors = ACTIVITIES.map(([, variable]) => drawnColor(this.host, variable));
    this.lanes.forEach((lane, at) => this.drawLane(plot, lane, bbox.top + (at * bbox.height) / this.lanes.length, colors));
    this.drawSyncs(plot);
    ctx.restore();
  }

  // The parts of a slice are on top of each other: their height is their share of its time.
  drawLane(plot, lane, top, colors) {
    const { ctx } = plot;
    const ratio = devicePixelRatio;
    const { min, max } = plot.scales.x;
    const high = 20 * ratio;
    const y = top + 6 * ratio;
    const position = (time) => plot.valToPos(time, "x", true);
    const visible = lane.slices.filter(([start, end]) => end >= min && start <= max);
    for (const [start, end, ...parts] of mergeSlices(visible, ((max - min) / plot.bbox.width) * 1.5)) {
      const whole = Math.max(end - start, parts[0] + parts[1] + parts[2]) || 1;
      const left = position(start);
      const width = Math.max(position(end) - left, 0.5);
      let low = y + high;
      [...parts, whole - parts[0] - parts[1] - parts[2]].forEach((spent, kind) => {
        const height = (high * spent) / whole;
        ctx.fillStyle = colors[kind];
        ctx.fillRect(left, low - height, width, height);
        low -= height;
      });
    }
    this.drawPace(plot, lane, top + 42 * ratio);
    if (this.syncs.length && lane.joined > this.syncs[0][0]) this.drawJoined(ctx, position(lane.joined), y);
    if (lane.lost) this.drawLost(ctx, position(lane.ended), y + high / 2);
  }

  // The number of batches between two syncs, as a line with steps.
  drawPace(plot, { pace, end }, low) {
    if (!pace.length) return;
    const { ctx } = plot;
    const y = (batches) => low - 12 * devicePixelRatio * (batches / this.mostBatches);
    ctx.strokeStyle = drawnColor(this.host, PACE_COLOR);
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    pace.forEach(([time, batches], at) => {
      const x = plot.valToPos(time, "x", true);
      if (at) ctx.lineTo(x, y(pace[at - 1][1]));
      ctx[at ? "lineTo" : "moveTo"](x, y(batches));
    });
    ctx.lineTo(plot.valToPos(end, "x", true), y(pace[pace.length - 1][1]));
    ctx.stroke();
  }

  drawJoined(ctx, x, y) {
    const size = 5 * devicePixelRatio;
    ctx.fillStyle = drawnColor(this.host, "--good");
    ctx.beginPath();
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y - size);
    ctx.lineTo(x, y + size);
    ctx.fill();
  }

  drawLost(ctx, x, y) {
    const size = 6 * devicePixelRatio;
    ctx.strokeStyle = drawnColor(this.host, "--bad");
    ctx.lineWidth = 2.5 * devicePixelRatio;
    ctx.beginPath();
    for (const side of [-1, 1]) {
      ctx.moveTo(x - size, y - side * size);
      ctx.lineTo(x + size, y + side * size);
    }
    ctx.stroke();
  }

  // Lines through all lanes if there are few of them, ticks at the top otherwise.
  drawSyncs(plot) {
    const { ctx, bbox } = plot;
    const { min, max } = plot.scales.x;
    const visible = this.syncs.filter(([time]) => time >= min && time <= max);
    const bottom = visible.length <= MAX_SYNC_LINES ? bbox.top + bbox.height : bbox.top;
    ctx.strokeStyle = drawnColor(this.host, SYNC_COLOR, visible.length <= MAX_SYNC_LINES ? 70 : 100);
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    for (const [time] of visible) {
      const x = Math.round(plot.valToPos(time, "x", true)) + 0.5;
      ctx.moveTo(x, bbox.top - 7 * devicePixelRatio);
      ctx.lineTo(x, bottom);
    }
    ctx.stroke();
  }
}

// What a rank did at a moment, in words, with the color of it.
function describeMoment({ slices, pace, ended, lost }, x) {
  const found = slices.find(([start, end]) => start <= x && x <= end);
  if (!found) return lost && x >= ended ? { text: "lost", color: "--bad" } : { text: "—", color: "--edge" };
  const [start, end, ...parts] = found;
  const whole = end - start || 1;
  const shares = [...parts, whole - parts[0] - parts[1] - parts[2]].map((spent) => spent / whole);
  const most = shares.indexOf(Math.max(...shares));
  const [name, color] = ACTIVITIES[most];
  const batches = pace.findLast(([time]) => time <= x)?.[1];
  const share = shares[most] < 0.995 ? `${Math.round(100 * shares[most])}% ` : "";
  return { text: `${share}${name}${batches ? ` · ${plural(batches, "batch").replace("batchs", "batches")}` : ""}`, color };
}
