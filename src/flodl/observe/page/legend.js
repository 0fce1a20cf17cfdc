"use strict";
// The list of metrics: groups by dotted name, visibility, and the value under the cursor.

class Legend {
  constructor(data, chart) {
    Object.assign(this, { data, chart, entries: new Map(), groups: [] });
    this.host = byId("legend");
    this.column = byId("column");
    this.showAll = byId("show-all");
    this.showAll.addEventListener("click", () => this.show(data.series));
    const filter = byId("filter");
    filter.hidden = data.series.length <= 10;
    filter.addEventListener("input", () => this.filter(filter.value.toLowerCase()));
    this.build();
    this.read(null);
  }

  build() {
    const byGroup = new Map([["", []]]);
    for (const metric of this.data.series) {
      if (!byGroup.has(metric.group)) byGroup.set(metric.group, []);
      byGroup.get(metric.group).push(metric);
    }
    for (const [name, members] of byGroup) {
      if (!members.length) continue;
      const group = element("div", name ? "group nested" : "group");
      if (name) group.append(this.heading(name, members));
      for (const metric of members) group.append(this.entry(metric));
      this.groups.push({ group, members });
      this.host.append(group);
    }
  }

  heading(name, members) {
    const heading = element("h3");
    const button = element("button", "", name);
    button.type = "button";
    button.title = `Show ${name} alone`;
    button.addEventListener("click", () => this.solo(members));
    heading.append(button);
    return heading;
  }

  entry(metric) {
    const button = element("button", "entry");
    button.type = "button";
    button.title = `${metric.name}\n${extremes(metric, this.data.epochs)}`;
    const number = element("span", "number");
    button.append(swatch(metric.color, metric.dashName), element("span", "label", metric.label), number);
    button.addEventListener("click", (event) => {
      if (event.shiftKey || event.ctrlKey || event.metaKey) this.toggle(metric);
      else this.solo([metric]);
    });
    for (const arrive of ["pointerenter", "focus"]) button.addEventListener(arrive, () => this.chart.highlight(metric));
    for (const leave of ["pointerleave", "blur"]) button.addEventListener(leave, () => this.chart.highlight(null));
    this.entries.set(metric, { button, number });
    return button;
  }

  // Clicking metrics that are already shown alone shows everything again.
  solo(members) {
    const visible = this.data.series.filter((metric) => metric.visible);
    const alone = visible.length === members.length && members.every((metric) => metric.visible);
    this.show(alone ? this.data.series : members);
  }

  toggle(metric) {
    const visible = this.data.series.filter((other) => (other === metric ? !metric.visible : other.visible));
    this.show(visible.length ? visible : this.data.series);
  }

  show(members) {
    const chosen = new Set(members);
    for (const metric of this.data.series) metric.visible = chosen.has(metric);
    this.chart.highlight(null);
    this.chart.applyVisibility();
    this.refresh();
  }

  refresh() {
    for (const [metric, { button }] of this.entries) button.setAttribute("aria-pressed", String(metric.visible));
    this.showAll.disabled = this.data.series.every((metric) => metric.visible);
  }

  filter(words) {
    for (const [metric, { button }] of this.entries) button.hidden = !metric.name.toLowerCase().includes(words);
    for (const { group, members } of this.groups) {
      group.hidden = members.every((metric) => this.entries.get(metric).button.hidden);
    }
  }

  read(at) {
    this.column.textContent = at === null ? "latest" : `epoch ${this.data.epochs[at]}`;
    for (const [metric, { number }] of this.entries) {
      const shown = at === null ? lastIndex(metric) : at;
      number.textContent = shown < 0 ? "—" : shownAt(metric, shown);
    }
    this.refresh();
  }
}
