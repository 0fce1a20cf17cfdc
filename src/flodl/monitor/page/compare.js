"use strict";
// The comparison of runs: their names, and a few of them side by side.

const MAX_SETTING = 240;
const MAX_SIDE_BY_SIDE = 6;
const MAX_TITLES = 4;

// Runs with the same name are distinguished by part of their path, or else by a number.
function assignDisplayNames(runs) {
  const count = new Map();
  for (const { name } of runs) count.set(name, (count.get(name) ?? 0) + 1);
  const longer = runs.map(({ name, folder }) => {
    if (count.get(name) < 2 || !folder || folder === name) return name;
    return folder.endsWith(`/${name}`) ? folder : `${name} (${folder})`;
  });
  const times = new Map();
  for (const name of longer) times.set(name, (times.get(name) ?? 0) + 1);
  runs.forEach((run, at) => (run.displayName = times.get(longer[at]) === 1 ? longer[at] : `${longer[at]} (${at + 1})`));
}

// A few runs side by side: every setting that differs, with long values; many runs have the table only.
function showDifferences({ runs, differing, num_settings }) {
  const isShown = runs.length > 1 && runs.length <= MAX_SIDE_BY_SIDE && num_settings > 0;
  byId("config").hidden = !isShown;
  if (!isShown) return;
  byId("config").parentElement.classList.add("wide");
  byId("config-title").textContent = "Settings that differ";
  byId("config-aside").textContent = `${differing.length} of ${num_settings}`;
  const rows = differing.map((path) => {
    const texts = runs.map((run) => (hasSetting(run, path) ? settingText(run, path, JSON.stringify) : null));
    const shown = runs.map((run) => (hasSetting(run, path) ? settingText(run, path) : null));
    // Values that look the same, such as 1 and "1", are shown as JSON.
    const isClear = new Set(shown).size === new Set(texts).size;
    const values = isClear ? shown : texts;
    const line = row([[path], ...fromFirstDifference(values).map((value) => [value ?? "—", "code"])]);
    values.forEach((value, at) => (line.children[at + 1].title = value ?? ""));
    return line;
  });
  fillTable(byId("config-table"), [["Setting"], ...runs.map(({ displayName }) => [displayName])], rows);
}

// Long values are cut so that the first difference is visible.
function fromFirstDifference(values) {
  const known = values.filter((value) => value !== null);
  if (known.every((value) => value.length <= MAX_SETTING)) return values;
  let same = 0;
  while (known.every((value) => same < value.length && value[same] === known[0][same])) same += 1;
  const start = known.length > 1 && same > MAX_SETTING / 2 ? same - MAX_SETTING / 4 : 0;
  return values.map((value) => {
    if (value === null) return null;
    const part = value.slice(start, start + MAX_SETTING);
    return `${start ? "…" : ""}${part}${start + MAX_SETTING < value.length ? "…" : ""}`;
  });
}

function showComparisonHeader(runs) {
  const count = (state) => runs.filter((run) => run.state === state).length;
  const running = count("running");
  document.title = runs.length > MAX_TITLES ? `${runs.length} runs` : runs.map(({ displayName }) => displayName).join(" · ");
  byId("name").textContent = plural(runs.length, "run");
  const others = ["failed", "lost", "unreadable"].filter(count).map((state) => `${count(state)} ${STATE_LABELS[state]}`);
  byId("subtitle").textContent = [running ? `${running} still running` : runs.length ? "all have ended" : "no run has started yet", ...others].join(" · ");
  byId("dot").dataset.state = running ? "running" : "finished";
}
