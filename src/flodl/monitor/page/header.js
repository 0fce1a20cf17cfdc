"use strict";
// The top of the page: what runs, how far it is, how long it will still take.

const STATE_WORDS = { running: "running", finished: "finished", stopped: "stopped", failed: "failed", lost: "no longer running", empty: "nothing yet" };

class Header {
  constructor(run, { isLive }) {
    Object.assign(this, { run, isLive, values: new Map() });
  }

  stat(name, text, small = "") {
    let shown = this.values.get(name);
    if (!shown) {
      const box = element("div");
      shown = element("dd");
      box.append(element("dt", "", name), shown);
      byId("stats").append(box);
      this.values.set(name, shown);
    }
    shown.parentElement.hidden = text === null;
    if (text === null) return;
    shown.replaceChildren(document.createTextNode(text), element("small", "", small));
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
    const silence = silent_s === null ? "" : `nothing heard for ${shownClock(silent_s)}`;
    const versions = Object.entries(facts.versions ?? {}).map(([name, version]) => `${name} ${version}`);
    const text = [STATE_WORDS[status.state] ?? status.state, silence, facts.host, graph?.device, ...versions].filter(Boolean).join(" · ");
    if (byId("subtitle").textContent !== text) byId("subtitle").textContent = text;
  }

  showNumbers() {
    this.showState();
    const { run } = this;
    const { status } = run;
    const last = run.history[run.history.length - 1];
    const running = run.running && run.withinEpoch() > 0 ? 1 : 0;
    const total = status.total_epochs;
    const epoch = Math.min((last?.epoch ?? 0) + running, total || Infinity);
    this.stat("Epoch", String(epoch), total ? ` / ${total}` : "");
    const left = run.timeLeft();
    this.stat("Remaining", left === null ? null : shownClock(left));
    const elapsed = run.elapsed();
    this.stat("Elapsed", elapsed === null ? null : shownClock(elapsed));
    const durations = run.history.map(({ duration }) => duration).filter((value) => typeof value === "number");
    this.stat("Per epoch", durations.length ? shownDuration(median(durations.slice(-5))) : null);
    const percent = Math.round(run.fraction() * 1000) / 10;
    byId("progress").setAttribute("aria-valuenow", String(percent));
    byId("progress").firstElementChild.style.width = `${percent}%`;
  }

  showNotice() {
    const { status } = this.run;
    const notice = byId("notice");
    const lost = "The process that wrote this journal is gone and did not say why: it was killed, or its machine is another one. Everything that it wrote is shown.";
    const empty = "The journal is empty: no run has begun to write it.";
    const text = status.state === "empty" ? (status.message ?? empty) : status.state === "lost" ? lost : ["failed", "stopped"].includes(status.state) ? (status.message ?? `The run has ${status.state}.`) : "";
    notice.hidden = !text;
    notice.dataset.level = status.state;
    notice.textContent = text;
  }
}
