"use strict";
// The filter of the table of runs: words that all have to match, as text or as a comparison such as lr<0.01.

const COMPARISON = /^(.+?)(<=|>=|!=|<|>|=)(.+)$/;
const COMPARE = {
  "<": (a, b) => a < b,
  ">": (a, b) => a > b,
  "<=": (a, b) => a <= b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

// Return a function that tells whether a run matches. A name is a setting, its last part, or a metric (its best value).
function makeFilter(text) {
  const words = (text.match(/"[^"]*"|\S+/g) ?? []).map((word) => word.replaceAll('"', "").toLowerCase()).filter(Boolean);
  return (run) => words.every((word) => matchesText(run, word) || matchesComparison(run, word));
}

function matchesText(run, word) {
  run.searched ??= [run.displayName, run.state, ...Object.entries(run.settings).map(([path, value]) => `${path}=${formatSetting(value)}`)].join("\n").toLowerCase();
  return run.searched.includes(word);
}

function matchesComparison(run, word) {
  const [, name, operator, text] = word.match(COMPARISON) ?? [];
  if (!operator) return false;
  const wanted = Number(text);
  return namedValues(run, name).some((value) => {
    if (typeof value === "number" && !Number.isNaN(wanted)) return COMPARE[operator](value, wanted);
    return ["=", "!="].includes(operator) && COMPARE[operator](formatSetting(value).toLowerCase(), text);
  });
}

function namedValues(run, name) {
  const isNamed = (path) => path.toLowerCase() === name || path.toLowerCase().endsWith(`.${name}`);
  const settings = Object.entries(run.settings).filter(([path]) => isNamed(path)).map(([, value]) => value);
  const metrics = Object.entries(run.metrics).filter(([metric]) => isNamed(metric)).map(([, { best }]) => best);
  const own = { epoch: run.epoch, state: run.state, time: run.elapsed_s, run: run.displayName };
  return [...settings, ...metrics, ...(Object.hasOwn(own, name) ? [own[name]] : [])].filter((value) => value !== null && value !== undefined);
}
