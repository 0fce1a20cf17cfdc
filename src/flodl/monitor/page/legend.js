"use strict";
// The legend: the names of the lines in groups. Click to show only one, Shift-click to hide it.

class Legend {
  constructor(host, chart, { filter = null, showAll = null, onChange = null } = {}) {
    Object.assign(this, { host, chart, filterInput: filter, showAllButton: showAll, onChange, entries: new Map(), signature: "", x: null });
    showAll?.addEventListener("click", () => this.setHidden(new Set()));
    filter?.addEventListener("input", () => this.filter());
  }

  show(lines) {
    this.lines = lines;
    const signature = JSON.stringify(lines.map(({ key, group }) => [key, group]));
    if (signature !== this.signature) {
      this.signature = signature;
      this.build();
    }
    this.showValues(this.x);
  }

  build() {
    this.entries.clear();
    this.groups = groupLines(this.lines).map(({ name, members }) => this.makeGroup(name, members));
    this.host.replaceChildren(...this.groups.map(({ box }) => box));
    if (this.filterInput) this.filterInput.hidden = this.lines.length <= 10;
    this.refresh();
  }

  makeGroup(name, members) {
    const box = element("div", name ? "group nested" : "group");
    if (name) {
      const heading = element("h3");
      const button = element("button");
      button.type = "button";
      button.append(longName(name));
      button.addEventListener("click", () => this.solo(members));
      heading.append(button);
      box.append(heading);
    }
    box.append(...members.map((line) => this.makeEntry(line)));
    return { box, members };
  }

  makeEntry(line) {
    const button = element("button", "entry");
    button.type = "button";
    button.title = line.name;
    const number = element("span", "number");
    button.append(swatch(line.color, line.dashName === "solid" ? "" : line.dashName), element("span", "label", line.label), number);
    button.addEventListener("click", (event) => (event.shiftKey ? this.toggle(line) : this.solo([line])));
    const current = () => this.lines.find(({ key }) => key === line.key) ?? null;
    for (const type of ["pointerenter", "focus"]) button.addEventListener(type, () => this.chart.highlight(current()));
    for (const type of ["pointerleave", "blur"]) button.addEventListener(type, () => this.chart.highlight(null));
    this.entries.set(line.key, { button, number });
    return button;
  }

  // A second click on the only visible lines shows all lines again.
  solo(members) {
    const keys = new Set(members.map(({ key }) => key));
    const visible = this.lines.filter(({ key }) => !this.chart.hidden.has(key));
    const isSolo = visible.length === keys.size && visible.every(({ key }) => keys.has(key));
    this.setHidden(new Set(isSolo ? [] : this.lines.filter(({ key }) => !keys.has(key)).map(({ key }) => key)));
  }

  // Show only one group: of those with the most lines, the one with the simplest name that passes the test.
  soloGroup(test) {
    const most = Math.max(0, ...this.groups.map(({ members }) => members.length));
    const depth = ({ members }) => members[0].group.split(/[./]/).length;
    const shared = this.groups.filter(({ members }) => members.length === most).sort((a, b) => depth(a) - depth(b));
    const best = shared.find(({ members }) => test(members[0].group)) ?? shared[0];
    if (!best || this.groups.length < 2) return;
    this.solo(best.members);
    this.scrollTo(best.members[0]);
  }

  scrollTo(line) {
    const group = this.groups.find(({ members }) => members.includes(line));
    if (group) this.host.scrollTop = group.box.offsetTop - this.host.offsetTop;
  }

  // Show only these lines, without calling onChange: this is not a choice of the user.
  showInitially(keys) {
    this.chart.setVisible(new Set(this.lines.map(({ key }) => key).filter((key) => !keys.has(key))));
    this.refresh();
  }

  toggle(line) {
    const hidden = new Set(this.chart.hidden);
    if (!hidden.delete(line.key)) hidden.add(line.key);
    this.setHidden(this.lines.every(({ key }) => hidden.has(key)) ? new Set() : hidden);
  }

  setHidden(hidden) {
    this.chart.highlight(null);
    this.chart.setVisible(hidden);
    this.refresh();
    this.onChange?.();
  }

  refresh() {
    for (const [key, { button }] of this.entries) button.setAttribute("aria-pressed", String(!this.chart.hidden.has(key)));
    if (this.showAllButton) this.showAllButton.disabled = this.lines.every(({ key }) => !this.chart.hidden.has(key));
  }

  filter() {
    const text = this.filterInput.value.toLowerCase();
    for (const { box, members } of this.groups) {
      for (const line of members) this.entries.get(line.key).button.hidden = !line.name.toLowerCase().includes(text);
      box.hidden = members.every((line) => this.entries.get(line.key).button.hidden);
    }
  }

  // Show the values at a position on the axis, or the latest ones.
  showValues(x) {
    this.x = x;
    for (const line of this.lines) {
      const { number } = this.entries.get(line.key);
      if (!line.x.length) continue;
      const at = x === null ? line.x.length - 1 : nearestIndex(line.x, x);
      number.textContent = formatValue(line.special[at] ?? line.y[at]);
    }
  }
}
