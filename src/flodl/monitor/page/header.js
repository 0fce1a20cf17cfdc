"use strict";
// The top of the page: name, state, progress and remaining time of the run.

const STATE_LABELS = { running: "running", finished: "finished", stopped: "stopped", failed: "failed", lost: "no longer running", empty: "no data yet", unreadable: "unreadable" };

class Header {
  constructor(run, { isLive }) {
    Object.assign(this, { run, isLive, values: new Map() });
  }

  stat(name, text, small = "") {
    let value = this.values.get(name);
    if (!value) {
      const box = element("div");
      value = element("dd");
      box.append(element("dt", "", name), value);
      byId("stats").append(box);
      this.values.set(name, value);
    }
    value.parentElement.hidden = text === null;
    if (text === null) return;
    value.replaceChildren(document.createTextNode(text), element("small", "", small));
  }

  show() {
    const { run } = this;
    const { status } = run;
    document.title = `${run.running ? `${Math.round(run.fraction() * 100)}% · ` : ""}${status.name}`;
    byId("name").textContent = byId("name").title = status.name;
    this.showNumbers();
    this.showNotice();
  }

  showState() {
    const { status, graph } = this.run;
    const { facts = {} } = status;
    const silent_s = this.isLive ? this.run.silence() : null;
    byId("dot").dataset.state = status.state;
    byId("dot").classList.toggle("quiet", silent_s !== null);
    const silence = silent_s === null ? "" : `no events for ${formatClock(silent_s)}`;
    const versions = Object.entries(facts.versions ?? {}).map(([name, version]) => `${name} ${version}`);
    const text = [STATE_LABELS[status.state] ?? status.state, silence, facts.host, graph?.device, ...versions].filter(Boolean).join(" · ");
    if (byId("subtitle").textContent !== text) byId("subtitle").textContent = text;
  }

  showNumbers() {
    this.showState();
    const { run } = this;
    const { status } = run;
    const last = run.history[run.history.length - 1];
    const running = run.running && run.epochFraction() > 0 ? 1 : 0;
    const total = status.total_epochs;
    const epoch = Math.min((last?.epoch ?? 0) + running, total || Infinity);
    this.stat("Epoch", String(epoch), total ? ` / ${total}` : "");
    const left = run.remainingSeconds();
    this.stat("Remaining", left === null ? null : formatClock(left));
    const elapsed = run.elapsed();
    this.stat("Elapsed", elapsed === null ? null : formatClock(elapsed));
    const durations = run.history.map(({ duration }) => duration).filter((value) => typeof value === "number");
    this.stat("Per epoch", durations.length ? formatDuration(median(durations.slice(-5))) : null);
    const percent = Math.round(run.fraction() * 1000) / 10;
    byId("progress").setAttribute("aria-valuenow", String(percent));
    byId("progress").firstElementChild.style.width = `${percent}%`;
  }

  showNotice() {
    const { status } = this.run;
    const notice = byId("notice");
    const lost = "The process that wrote this journal has ended without recording why: it was killed, or it ran on another machine. Everything that it wrote is shown.";
    const empty = "The journal is empty: no run has written to it yet.";
    const own = status.state === "empty" ? (status.message ?? empty) : status.state === "lost" ? lost : ["failed", "stopped"].includes(status.state) ? (status.message ?? `The run ${status.state}.`) : "";
    const text = [own, refusal(status)].filter(Boolean).join(" ");
    notice.hidden = !text;
    notice.dataset.level = status.state;
    notice.textContent = text;
  }
}

// A later start that ended before it trained: the state on the page is that of the start before it.
function refusal({ refused }) {
  if (!refused) return "";
  return `A later start (${formatMoment(refused.time_s, true)}) ended before it trained: ${refused.message ?? STATE_LABELS[refused.state] ?? refused.state}`;
}
