"use strict";
// The table of runs: best and last values, time, and the settings that differ. Sort, filter, and choose what is charted.

const MAX_CHARTED = 10;
const MAX_RUN_ROWS = 500;
// When the page opens, these rows are painted first, then the others (`painted` is the promise of all).
const FIRST_ROWS = 40;
const MAX_SETTING_COLUMNS = 12;
const MAX_OTHER_METRICS = 4;
const MAX_CELL = 60;

class RunsTable {
  // onChange(what) is called with "order" or "charted"; onHover(run) with a run or null.
  constructor(styles, { onChange, onHover }) {
    Object.assign(this, { styles, onChange, onHover, runs: [], columns: [], metric: null, sort: null, picked: null, brushes: [], showAll: false });
    const view = loadView("runs");
    byId("runs-filter").value = typeof view.filter === "string" ? view.filter : "";
    Object.assign(this, { metric: view.metric ?? null, sort: view.sort ?? null });
    byId("runs-filter").addEventListener("input", () => this.update("order"));
    byId("runs-metric").addEventListener("change", ({ target }) => this.setMetric(target.value));
    byId("runs-top").addEventListener("click", () => this.pick(null));
    byId("runs-more").addEventListener("click", () => {
      this.showAll = true;
      this.draw();
    });
  }

  show(comparison) {
    this.runs = comparison.runs;
    this.comparison = comparison;
    if (!comparison.metrics.includes(this.metric)) this.metric = comparison.metric;
    const select = byId("runs-metric");
    select.replaceChildren(...comparison.metrics.map((name) => new Option(name, name)));
    select.value = this.metric;
    select.parentElement.hidden = comparison.metrics.length < 2;
    this.makeColumns();
    this.update("order");
  }

  get mode() {
    return this.runs.map(({ metrics }) => metrics[this.metric]?.mode).find(Boolean) ?? "min";
  }

  setMetric(name) {
    this.metric = name;
    this.sort = null;
    this.makeColumns();
    this.update("metric");
  }

  makeColumns() {
    const { columns, metrics } = this.comparison;
    const isNumeric = (path) => this.runs.every(({ settings }) => settings[path] === undefined || typeof settings[path] === "number");
    const setting = (path) => ({ id: `setting ${path}`, label: path, value: ({ settings }) => settings[path], text: (value, run) => settingText(run, path), isKnown: (run) => hasSetting(run, path), className: isNumeric(path) ? "number" : "code" });
    const number = (label, value, format = formatValue) => ({ id: label, label, value, text: format, className: "number" });
    const best = (name, label) => ({ ...number(label, ({ metrics: own }) => own[name]?.best), mode: this.modeOf(name) });
    const others = metrics.filter((name) => name !== this.metric && !columns.includes(name)).slice(0, MAX_OTHER_METRICS);
    this.columns = [
      { id: "Run", label: "Run", value: ({ displayName }) => displayName, text: String, className: "run-name" },
      ...(this.metric === null ? [] : [best(this.metric, `best ${this.metric}`), number(`last ${this.metric}`, ({ metrics: own }) => lastValue(own[this.metric]))]),
      ...columns.slice(0, MAX_SETTING_COLUMNS).map(setting),
      ...others.map((name) => best(name, `best ${name}`)),
      number("Epoch", ({ epoch }) => epoch, String),
      number("Time", ({ elapsed_s }) => elapsed_s, formatDuration),
      { id: "State", label: "State", value: ({ state }) => STATE_LABELS[state] ?? state, text: String, className: "quiet" },
    ];
  }

  modeOf(name) {
    return this.runs.map(({ metrics }) => metrics[name]?.mode).find(Boolean) ?? "min";
  }

  // The runs that match the filter and the ranges chosen in the plot, sorted.
  visible() {
    const matches = makeFilter(byId("runs-filter").value);
    const found = this.runs.filter((run) => matches(run) && this.brushes.every(({ test }) => test(run)));
    const { id, descending } = this.currentSort();
    const column = this.columns.find((each) => each.id === id) ?? this.columns[0];
    return sortRuns(found, column.value, descending);
  }

  currentSort() {
    if (this.sort && this.columns.some(({ id }) => id === this.sort.id)) return this.sort;
    return this.metric === null ? { id: "Run", descending: false } : { id: `best ${this.metric}`, descending: this.mode === "max" };
  }

  // The runs in the charts: those that were picked, or the first ones of the table.
  charted() {
    return this.order.filter(({ run }, at) => (this.picked ? this.picked.has(run) : at < MAX_CHARTED));
  }

  pick(picked) {
    this.picked = picked;
    this.draw();
    this.onChange("charted");
  }

  toggle(run) {
    const picked = new Set(this.charted().map((each) => each.run));
    if (!picked.delete(run)) picked.add(run);
    this.pick(picked);
  }

  sortBy({ id, mode }) {
    const now = this.currentSort();
    const descending = now.id === id ? !now.descending : mode === "max";
    this.sort = { id, descending };
    this.update("order");
  }

  setBrushes(brushes) {
    this.brushes = brushes;
    this.update("order");
  }

  update(what) {
    saveView({ filter: byId("runs-filter").value, metric: this.metric, sort: this.sort }, "runs");
    this.draw();
    this.onChange(what);
  }

  draw() {
    this.order = this.visible();
    const charted = new Set(this.charted().map(({ run }) => run));
    const shown = this.showAll ? this.order : this.order.slice(0, MAX_RUN_ROWS);
    const head = element("tr");
    head.append(...this.columns.map((column) => this.makeHead(column)));
    const body = element("tbody");
    const addRows = (runs) => body.append(...runs.map((run) => this.makeRow(run, charted.has(run.run))));
    if (this.painted) addRows(shown);
    else {
      addRows(shown.slice(0, FIRST_ROWS));
      const addOthers = () => body.isConnected && addRows(shown.slice(FIRST_ROWS));
      this.painted = shown.length <= FIRST_ROWS ? nextPaint() : nextPaint().then(addOthers).then(nextPaint);
    }
    const top = element("thead");
    top.append(head);
    const focused = document.activeElement?.dataset.column;
    byId("runs-table").replaceChildren(top, body);
    if (focused) [...byId("runs-table").querySelectorAll("th button")].find(({ dataset }) => dataset.column === focused)?.focus();
    this.describe(shown.length);
  }

  describe(numShown) {
    const { columns, differing, num_settings } = this.comparison;
    const hidden = columns.length - Math.min(columns.length, MAX_SETTING_COLUMNS);
    const parts = [this.order.length === this.runs.length ? plural(this.runs.length, "run") : `${this.order.length} of ${plural(this.runs.length, "run")}`];
    parts.push(`${differing.length} of ${plural(num_settings, "setting")} ${differing.length === 1 ? "differs" : "differ"}${hidden ? `, ${hidden} of them not shown` : ""}`);
    byId("runs-aside").textContent = parts.join(" · ");
    byId("runs-more").hidden = numShown === this.order.length;
    byId("runs-more").textContent = `Show all ${this.order.length}`;
    byId("runs-top").hidden = this.picked === null;
    byId("runs-none").hidden = this.order.length > 0;
    byId("runs-none").textContent = this.runs.length ? "No run matches the filter." : "No run has started yet.";
  }

  makeHead(column) {
    const { id, descending } = this.currentSort();
    const cell = element("th", column.className === "number" ? "number" : "");
    const button = element("button", "sort");
    button.type = "button";
    button.dataset.column = column.id;
    button.append(longName(column.label), element("span", "arrow", column.id === id ? (descending ? "↓" : "↑") : ""));
    button.addEventListener("click", () => this.sortBy(column));
    cell.scope = "col";
    cell.ariaSort = column.id === id ? (descending ? "descending" : "ascending") : "none";
    cell.append(button);
    return cell;
  }

  makeRow(run, isCharted) {
    const line = element("tr");
    line.dataset.run = run.run;
    line.append(this.makeNameCell(run, isCharted));
    for (const { value, text, className, isKnown } of this.columns.slice(1)) {
      const known = value(run);
      const isShown = isKnown?.(run) ?? (known !== null && known !== undefined);
      const words = isShown ? text(known, run) : "—";
      const cell = element("td", className, words.length > MAX_CELL ? `${words.slice(0, MAX_CELL)}…` : words);
      if (words.length > MAX_CELL) cell.title = words.slice(0, 2000);
      line.append(cell);
    }
    line.addEventListener("pointerenter", () => this.onHover(run));
    line.addEventListener("pointerleave", () => this.onHover(null));
    return line;
  }

  makeNameCell(run, isCharted) {
    const cell = element("td", "run-name");
    const box = element("label", "charted");
    const input = element("input");
    input.type = "checkbox";
    input.checked = isCharted;
    input.ariaLabel = `Chart ${run.displayName}`;
    input.addEventListener("change", () => this.toggle(run.run));
    box.append(input);
    if (isCharted) box.style.setProperty("--color", `var(${this.styles.of(run.run).color})`);
    const link = element("a", "", run.displayName);
    link.href = `?run=${run.run}`;
    cell.title = run.message ? `${run.displayName}: ${run.message}` : run.displayName;
    cell.append(box, link);
    return cell;
  }

  highlight(run) {
    for (const line of byId("runs-table").tBodies[0]?.rows ?? []) line.classList.toggle("lit", run !== null && Number(line.dataset.run) === run.run);
  }
}

function lastValue(metric) {
  return metric?.not_finite?.last ?? metric?.last;
}

// Runs without a value come last in either direction; equal ones keep the order in which they were given.
function sortRuns(runs, valueOf, descending) {
  const isKnown = (value) => value !== null && value !== undefined;
  const sign = descending ? -1 : 1;
  return [...runs].sort((a, b) => {
    const [left, right] = [valueOf(a), valueOf(b)];
    if (!isKnown(left) || !isKnown(right)) return isKnown(right) - isKnown(left);
    if (typeof left === "number" && typeof right === "number") return sign * (left - right);
    if (typeof left !== typeof right && (typeof left === "number" || typeof right === "number")) return typeof left === "number" ? -1 : 1;
    return sign * compareNatural(formatSetting(left), formatSetting(right));
  });
}
