"use strict";
// The comparison of runs: the state of each, and the settings in which they differ.

const MAX_SETTING = 240;

// Runs with the same name are distinguished by part of their path, or else by a number.
function assignDisplayNames(runs) {
  const isAmbiguous = (name) => runs.filter(({ status }) => status.name === name).length > 1;
  const longer = runs.map(({ status: { name }, folder }) => {
    if (!isAmbiguous(name) || !folder || folder === name) return name;
    return folder.endsWith(`/${name}`) ? folder : `${name} (${folder})`;
  });
  runs.forEach((run, at) => {
    const isUnique = longer.indexOf(longer[at]) === longer.lastIndexOf(longer[at]);
    run.displayName = isUnique ? longer[at] : `${longer[at]} (${at + 1})`;
  });
}

function showRuns(runs, styles) {
  const names = [...new Set(runs.flatMap(({ history }) => history.flatMap(({ metrics }) => Object.keys(metrics))))].slice(0, 6);
  const heads = [["Run"], ["State"], ["Epoch", "number"], ...names.map((name) => [name, "number"]), ["Per epoch", "number"], ["Elapsed", "number"]];
  const rows = runs.map((run, at) => {
    const last = run.history[run.history.length - 1];
    const durations = run.history.map(({ duration }) => duration).filter((value) => typeof value === "number");
    const line = row([
      [""],
      [STATE_LABELS[run.status.state] ?? run.status.state, "quiet"],
      [`${last?.epoch ?? 0}${run.status.total_epochs ? ` / ${run.status.total_epochs}` : ""}`, "number"],
      ...names.map((name) => [formatValue(last?.metrics[name]), "number"]),
      [durations.length ? formatDuration(median(durations)) : "—", "number"],
      [run.elapsed() === null ? "—" : formatClock(run.elapsed()), "number"],
    ]);
    line.firstElementChild.append(swatch(styles.of(at).color, "point"), document.createTextNode(` ${run.displayName}`));
    line.firstElementChild.className = "run-name";
    line.firstElementChild.title = run.displayName;
    return line;
  });
  byId("runs").hidden = false;
  fillTable(byId("runs-table"), heads, rows);
}

// What can make two runs differ: the recorded settings, and what is known about each run apart from them.
function settingsOf({ config, status, graph }) {
  const { facts = {} } = status;
  const known = { "total epochs": status.total_epochs || null, architecture: graph.hash, parameters: graph.parameters?.total, device: graph.device, hardware: facts.hardware };
  const versions = Object.entries(facts.versions ?? {}).map(([name, version]) => [`${name} version`, version]);
  const others = [...Object.entries(known), ...versions].filter(([, value]) => value !== undefined && value !== null);
  return new Map([...config.map(({ path, value }) => [path, value]), ...others.map(([name, value]) => [`(${name})`, value])]);
}

// Settings are equal if their JSON is: the number 1 and the text "1" differ.
function showDifferences(runs) {
  const settings = runs.map(settingsOf);
  const paths = [...new Set(settings.flatMap((each) => [...each.keys()]))];
  const texts = (path) => settings.map((each) => (each.has(path) ? JSON.stringify(each.get(path)) : null));
  const different = paths.filter((path) => new Set(texts(path)).size > 1);
  byId("config").hidden = !paths.length;
  byId("config").parentElement.classList.add("wide");
  byId("config-title").textContent = "Settings that differ";
  byId("config-aside").textContent = `${different.length} of ${paths.length}`;
  const rows = different.map((path) => {
    const shown = settings.map((each) => (each.has(path) ? formatSetting(each.get(path)) : null));
    // Values that look the same, such as 1 and "1", are shown as JSON.
    const isClear = new Set(shown).size === new Set(texts(path)).size;
    const values = isClear ? shown : texts(path);
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
  const running = runs.filter((run) => run.running).length;
  document.title = runs.map(({ displayName }) => displayName).join(" · ");
  byId("name").textContent = `${runs.length} runs`;
  byId("subtitle").textContent = running ? `${running} still running` : "all have ended";
  byId("dot").dataset.state = running ? "running" : "finished";
}
