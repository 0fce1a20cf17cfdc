"use strict";
// The panels for configuration, training step, architecture and ranks.

function formatSetting(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// A setting of a run in a comparison, after the values that later starts replaced: "0.002 → 0.001". A start may lack it.
function settingText({ settings, changed }, path, format = formatSetting) {
  const changes = changed && Object.hasOwn(changed, path) ? changed[path] : [];
  const text = (values, name) => (Object.hasOwn(values, name) ? format(values[name]) : "not set");
  const texts = changes.length ? [text(changes[0], "was"), ...changes.map((change) => text(change, "now"))] : [text(settings, path)];
  return texts.join(" → ");
}

// Whether a run has a setting, or had it before a later start.
function hasSetting({ settings, changed }, path) {
  return Object.hasOwn(settings, path) || (changed !== undefined && Object.hasOwn(changed, path));
}

function showConfig(run) {
  const { config } = run;
  byId("config").hidden = !config.length;
  if (!config.length) return;
  const withOrigin = config.some(({ origin }) => origin);
  const heads = [["Setting"], ["Value"], ...(withOrigin ? [["From"]] : [])];
  const rows = config.map(({ path, value, origin }) =>
    row([[path], [formatSetting(value), "code"], ...(withOrigin ? [[origin ?? "", "quiet"]] : [])]),
  );
  fillTable(byId("config-table"), heads, rows);
  byId("config-aside").textContent = plural(config.length, "setting");
}

let renderedTiers = "";

function showTiers(run) {
  const tiers = run.events.filter(({ kind }) => kind === "tier");
  byId("tiers").hidden = !tiers.length;
  const decisions = run.events.filter(({ kind }) => kind === "tier" || kind === "note");
  const newest = `${run.status.started_s} ${decisions[decisions.length - 1]?.id}`;
  if (!tiers.length || newest === renderedTiers) return;
  renderedTiers = newest;
  const now = [...tiers].reverse().find(({ what }) => what === undefined) ?? tiers[tiers.length - 1];
  const numbers = element("dl", "tier-now");
  const add = (name, text) => {
    const box = element("div");
    box.append(element("dt", "", name), element("dd", "", text));
    numbers.append(box);
  };
  add("Tier", now.tier ?? "—");
  if (now.gain) add("Gain over eager", `${now.gain.toFixed(2)}×`);
  if (now.step_s) add("Step", formatDuration(now.step_s));
  if (now.eager_step_s) add("Eager step", formatDuration(now.eager_step_s));
  byId("tiers-body").replaceChildren(numbers, element("p", "reason", now.reason ?? ""));
  if (decisions.length < 2) return; // the table would only repeat the text above
  const table = element("table");
  const rows = decisions.map(({ step, about, what, tier, message, reason }) =>
    row([[String(step ?? ""), "number quiet"], [about ?? what ?? tier ?? ""], [message ?? reason ?? "", "quiet"]]),
  );
  fillTable(table, [["Step", "number"], ["Decision"], ["Reason"]], rows);
  const scroll = element("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Decisions about the training step");
  scroll.append(table);
  byId("tiers-body").append(scroll);
}

let renderedPicture = null;

function showGraph(run, address) {
  const { graph } = run;
  const known = Object.keys(graph).length > 0;
  byId("graph").hidden = !known;
  if (!known) return;
  const { total, trainable } = graph.parameters ?? {};
  const sizes = total === undefined ? [] : [`${formatCount(total)} parameters`, ...(trainable === total ? [] : [`${formatCount(trainable)} trainable`])];
  byId("graph-aside").textContent = [graph.label, ...sizes, graph.hash?.slice(0, 8)].filter(Boolean).join(" · ");
  const picture = byId("picture");
  picture.parentElement.hidden = !(graph.path && address);
  if (graph.path && address && address !== renderedPicture) {
    renderedPicture = address;
    picture.src = address;
    picture.alt = `Architecture of ${graph.label ?? "the model"}`;
    picture.hidden = false;
    byId("picture-link").href = address;
    byId("picture-link").hidden = false;
  }
}

let renderedRanks = null;

// Ranks grouped by host; a click shows the page of a rank. Redrawn only if the data changed, because a button may have
// the focus or the list may be open.
function showRanks(run, choose) {
  const { ranks } = run;
  byId("ranks").hidden = ranks.length < 2;
  byId("rank").hidden = ranks.length < 2 || !choose;
  if (ranks.length < 2 || ranks === renderedRanks) return;
  renderedRanks = ranks;
  const focused = document.activeElement?.dataset.rank;
  const names = [...new Set(ranks.flatMap(({ metrics }) => Object.keys(metrics ?? {})))].slice(0, 4);
  const heads = [["Rank"], ["Epoch", "number"], ["Step", "number"], ...names.map((name) => [name, "number"]), ["CPU", "number"], ["GPU", "number"], ["GPU memory", "number"]];
  const hosts = [...new Set(ranks.map(({ host }) => host))];
  const rows = hosts.flatMap((host) => {
    const members = ranks.filter((rank) => rank.host === host);
    const head = element("tr", "host");
    const cell = element("td", "", `${host || "unknown host"} · ${plural(members.length, "rank")}`);
    cell.colSpan = heads.length;
    head.append(cell);
    return [head, ...members.map((rank) => rankRow(rank, names, run.rank, choose))];
  });
  fillTable(byId("ranks-table"), heads, rows);
  byId("ranks-aside").textContent = `${plural(ranks.length, "rank")} on ${plural(hosts.length, "host")}`;
  if (focused) byId("ranks-table").querySelector(`[data-rank="${focused}"]`)?.focus();
  showRankSelector(ranks, run.rank);
}

function showRankSelector(ranks, current) {
  const select = byId("rank");
  if (select.options.length !== ranks.length) {
    select.replaceChildren(...ranks.map(({ rank }) => new Option(`rank ${rank}`, String(rank))));
  }
  select.value = String(current);
}

function rankRow(rank, names, current, choose) {
  const { resources = {}, metrics = {} } = rank;
  const orDash = (value, format) => (typeof value === "number" ? format(value) : "—");
  const percent = (value) => orDash(value, () => `${Math.round(value)}%`);
  const line = row([
    [""],
    [orDash(rank.epoch, () => String(rank.epoch + 1)), "number"],
    [orDash(rank.global_step ?? rank.step, String), "number"],
    ...names.map((name) => [formatValue(metrics[name]), "number"]),
    [percent(resources.cpu_pct), "number"],
    [percent(resources["gpus.0.util_pct"]), "number"],
    [orDash(resources["gpus.0.vram_used_bytes"], formatBytes), "number"],
  ]);
  const button = element("button", "link", `rank ${rank.rank}`);
  button.type = "button";
  button.dataset.rank = rank.rank;
  if (choose) button.addEventListener("click", () => choose(rank.rank));
  line.firstElementChild.append(choose ? button : document.createTextNode(`rank ${rank.rank}`));
  if (rank.rank === current) line.setAttribute("aria-current", "true");
  return line;
}
