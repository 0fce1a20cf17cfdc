"use strict";
// The metrics of each class in the last evaluation: a table with a row for each class, and matrices.

class ClassesPanel {
  constructor(run) {
    this.run = run;
  }

  show() {
    const record = [...this.run.history].reverse().find(({ tables }) => tables);
    byId("classes").hidden = !record;
    if (!record) return;
    byId("classes-aside").textContent = `epoch ${record.epoch}`;
    const tables = Object.entries(record.tables);
    const vectors = tables.filter(([, { values }]) => !Array.isArray(values[0]));
    const matrices = tables.filter(([, { values }]) => Array.isArray(values[0]));
    byId("classes-body").replaceChildren(
      ...groupByLabels(vectors).map(vectorTable),
      ...matrices.map(([name, table]) => matrixTable(name, table)),
    );
  }
}

// Metrics of the same classes share a table.
function groupByLabels(vectors) {
  const groups = new Map();
  for (const [name, { labels, values }] of vectors) {
    const key = JSON.stringify(labels);
    if (!groups.has(key)) groups.set(key, { labels, columns: [] });
    groups.get(key).columns.push([name, values]);
  }
  return [...groups.values()];
}

function vectorTable({ labels, columns }) {
  const table = element("table");
  const rows = labels.map((label, at) => row([[label], ...columns.map(([, values]) => [formatValue(values[at]), "number"])]));
  fillTable(table, [["Class"], ...columns.map(([name]) => [name, "number"])], rows);
  for (const [at, [, values]] of columns.entries()) {
    const known = values.filter((value) => typeof value === "number");
    const [low, high] = [Math.min(...known, 0), Math.max(...known, 1)];
    rows.forEach((line, index) => shade(line.children[at + 1], (values[index] - low) / (high - low)));
  }
  return scrollable(table, "Metrics of each class");
}

// A row for each target, shaded by the share of its predictions.
function matrixTable(name, { labels, values }) {
  const table = element("table", "matrix");
  const rows = values.map((counts, at) => row([[labels[at]], ...counts.map((count) => [formatCount(count), "number"])]));
  fillTable(table, [["target \\ predicted"], ...labels.map((label) => [label, "number"])], rows);
  values.forEach((counts, at) => {
    const total = counts.reduce((sum, count) => sum + (count ?? 0), 0);
    counts.forEach((count, to) => {
      shade(rows[at].children[to + 1], total ? count / total : 0);
      rows[at].children[to + 1].title = `${labels[at]} predicted as ${labels[to]}: ${formatCount(count)} of ${formatCount(total)}`;
    });
  });
  const box = element("div");
  box.append(element("h3", "", name), scrollable(table, `${name}: targets and predictions`));
  return box;
}

function formatCount(count) {
  return Number.isInteger(count) ? String(count) : formatValue(count);
}

function shade(cell, share) {
  if (Number.isFinite(share)) cell.style.setProperty("--share", `${Math.round(100 * Math.min(Math.max(share, 0), 1))}%`);
  cell.classList.add("shaded");
}

function scrollable(table, label) {
  const box = element("div", "scroll tall");
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", label);
  box.append(table);
  return box;
}
