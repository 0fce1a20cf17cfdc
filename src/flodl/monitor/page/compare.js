"use strict";
// Several runs side by side: how each stands, and in which settings they differ.

// Runs of the same name get as much of their paths as tells them apart, or else a number.
function nameApart(runs) {
  const isTaken = (name) => runs.filter(({ status }) => status.name === name).length > 1;
  const longer = runs.map(({ status: { name }, folder }) => {
    if (!isTaken(name) || !folder || folder === name) return name;
    return folder.endsWith(`/${name}`) ? folder : `${name} (${folder})`;
  });
  runs.forEach((run, at) => {
    const isOnce = longer.indexOf(longer[at]) === longer.lastIndexOf(longer[at]);
    run.shownName = isOnce ? longer[at] : `${longer[at]} (${at + 1})`;
  });
}

function showRuns(runs, looks) {
  const names = [...new Set(runs.flatMap(({ history }) => history.flatMap(({ metrics }) => Object.keys(metrics))))].slice(0, 6);
  const heads = [["Run"], ["State"], ["Epoch", "number"], ...names.map((name) => [name, "number"]), ["Per epoch", "number"], ["Elapsed", "number"]];
  const rows = runs.map((run, at) => {
    const last = run.history[run.history.length - 1];
    const durations = run.history.map(({ duration }) => duration).filter((value) => typeof value === "number");
    const made = row([
      [""],
      [STATE_WORDS[run.status.state] ?? run.status.state, "quiet"],
      [`${last?.epoch ?? 0}${run.status.total_epochs ? ` / ${run.status.total_epochs}` : ""}`, "number"],
      ...names.map((name) => [shownValue(last?.metrics[name]), "number"]),
      [durations.length ? shownDuration(median(durations)) : "—", "number"],
      [run.elapsed() === null ? "—" : shownClock(run.elapsed()), "number"],
    ]);
    made.firstElementChild.append(swatch(looks.of(at).colour, "point"), document.createTextNode(` ${run.shownName}`));
    made.firstElementChild.className = "run-name";
    made.firstElementChild.title = run.shownName;
    return made;
  });
  byId("runs").hidden = false;
  fillTable(byId("runs-table"), heads, rows);
}

function showDifferences(runs) {
  const values = new Map();
  runs.forEach(({ config }, at) => {
    for (const { path, value } of config) {
      if (!values.has(path)) values.set(path, runs.map(() => undefined));
      values.get(path)[at] = shownSetting(value);
    }
  });
  const different = [...values].filter(([, each]) => each.some((value) => value !== each[0]));
  byId("config").hidden = !values.size;
  byId("config").parentElement.classList.add("wide");
  byId("config-title").textContent = "Settings that differ";
  byId("config-aside").textContent = `${different.length} of ${values.size}`;
  const rows = different.map(([path, each]) => row([[path], ...each.map((value) => [value ?? "—", "code"])]));
  fillTable(byId("config-table"), [["Setting"], ...runs.map(({ shownName }) => [shownName])], rows);
}

function showComparisonHeader(runs) {
  const running = runs.filter((run) => run.running).length;
  document.title = runs.map(({ shownName }) => shownName).join(" · ");
  byId("name").textContent = `${runs.length} runs`;
  byId("subtitle").textContent = running ? `${running} still running` : "all have ended";
  byId("dot").dataset.state = running ? "running" : "finished";
}
