"use strict";
// The hardware usage: bars for the current values, lines for the history, in percent.

// Steps of the time axis in seconds, up to weeks, so that no two ticks have the same label.
const TIME_STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2419200];

class ResourcesPanel {
  constructor(run) {
    Object.assign(this, { run, styles: new LineStyles(), hasSelection: false });
    this.chart = new LineChart(byId("resources-chart"), {
      axisLabel: (x) => formatMoment(x, this.isDated()),
      xAxis: { incrs: TIME_STEPS, values: (plot, ticks) => this.formatTicks(ticks), space: 84 },
      yRange: () => [0, 100],
      yTick: (value) => `${Math.round(value)}%`,
    });
    this.legend = new Legend(byId("resources-legend"), this.chart, { onChange: () => (this.hasSelection = true) });
  }

  isDated() {
    const { x } = Object.values(this.run.resources.lines)[0] ?? { x: [] };
    return x.length > 0 && spansDays(x[0], x[x.length - 1]);
  }

  formatTicks(ticks) {
    const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
    const digits = step >= 60 ? 5 : 8;
    const dated = this.isDated();
    return ticks.map((tick) => {
      const clock = formatTime(tick).slice(0, digits);
      if (!dated) return clock;
      const date = formatMoment(tick, true).slice(0, -9);
      return step >= 86400 ? date : `${date} ${clock}`;
    });
  }

  // The label of each gauge, its series, and the series of its limit.
  gauges() {
    const { lines } = this.run.resources;
    const found = [];
    const add = (label, used, total = null) => lines[used]?.x.length && (!total || lines[total]?.x.length) && found.push({ label, used, total });
    add("CPU", "cpu_pct");
    add("RAM", "ram_used_bytes", "ram_total_bytes");
    const count = this.run.resources.devices.length;
    for (let at = 0; at < count; at++) {
      const name = count > 1 ? `GPU ${at}` : "GPU";
      add(name, `gpus.${at}.util_pct`);
      const used = lines[`gpus.${at}.vram_used_bytes`] ? "vram_used_bytes" : "vram_reserved_bytes";
      add(`${name} memory`, `gpus.${at}.${used}`, `gpus.${at}.vram_total_bytes`);
    }
    return found;
  }

  show() {
    const gauges = this.gauges();
    byId("resources").hidden = !gauges.length;
    if (!gauges.length) return;
    const { facts = {} } = this.run.status;
    const devices = [...new Set(this.run.resources.devices.filter(Boolean))];
    byId("hardware").textContent = [facts.hardware, ...devices].filter(Boolean).join(" · ");
    byId("bars").replaceChildren(...gauges.map((gauge) => this.bar(gauge)));
    const lines = gauges.map(({ label, used, total }) => {
      const { x, y } = this.run.resources.lines[used];
      const limit = total ? this.last(total) : 100;
      const shares = y.map((value) => (typeof value === "number" ? (100 * value) / limit : null));
      return makeLine(label, label, x, shares, this.styles.of(label), { group: "", label });
    });
    this.chart.show(lines);
    this.legend.show(lines);
    // With many devices, show only their utilization until the user selects lines.
    if (!this.hasSelection && lines.length > MANY_LINES) this.legend.showInitially(new Set(gauges.filter(({ total }) => !total).map(({ label }) => label)));
  }

  last(name) {
    const { y } = this.run.resources.lines[name];
    return y[y.length - 1];
  }

  bar({ label, used, total }) {
    const value = this.last(used);
    const share = total ? (100 * value) / this.last(total) : value;
    const box = element("div");
    const head = element("div", "bar-head");
    const text = total ? `${formatBytes(value)} of ${formatBytes(this.last(total))}` : `${Math.round(value)}%`;
    head.append(element("span", "", label), element("span", "number", text));
    const track = element("div", "track");
    // Only memory is a problem when it is nearly full.
    if (total && share > 80) track.dataset.level = share > 95 ? "bad" : "warn";
    const fill = element("span");
    fill.style.width = `${Math.min(Math.max(share, 0), 100)}%`;
    fill.style.setProperty("--color", `var(${this.styles.of(label).color})`);
    track.append(fill);
    box.append(head, track);
    return box;
  }
}
