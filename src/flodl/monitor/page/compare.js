"use strict";
// The comparison of runs: the state of each, and the settings in which they differ.

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

function showDifferences(runs) {
  const values = new Map();
  runs.forEach(({ config }, at) => {
    for (const { path, value } of config) {
      if (!values.has(path)) values.set(path, runs.map(() => undefined));
      values.get(path)[at] = formatSetting(value);
    }
  });
  const different = [...values].filter(([, each]) => each.some((value) => value !== each[0]));
  byId("config").hidden = !values.size;
  byId("config").parentElement.classList.add("wide");
  byId("config-title").textContent = "Settings that differ";
  byId("config-aside").textContent = `${different.length} of ${values.size}`;
  const rows = different.map(([path, each]) => row([[path], ...each.map((value) => [value ?? "—", "code"])]));
  fillTable(byId("config-table"), [["Setting"], ...runs.map(({ displayName }) => [displayName])], rows);
}

function showComparisonHeader(runs) {
  const running = runs.filter((run) => run.running).length;
  document.title = runs.map(({ displayName }) => displayName).join(" · ");
  byId("name").textContent = `${runs.length} runs`;
  byId("subtitle").textContent = running ? `${running} still running` : "all have ended";
  byId("dot").dataset.state = running ? "running" : "finished";
}
