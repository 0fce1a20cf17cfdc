"use strict";
// The events of a run: a lane over time, and a list that can be filtered.

const KINDS = {
  alert: ["Alerts", "--series-7"],
  tier: ["Tiers", "--series-4"],
  note: ["Notes", "--series-8"],
  save: ["Saves", "--series-2"],
  gc: ["GC pauses", "--series-6"],
  sync: ["Syncs", "--series-5"],
  run: ["Run", "--series-10"],
};
const MAX_LISTED = 200;
const SVG = "http://www.w3.org/2000/svg";

const LEVELS = { error: "--bad", warning: "--warn", info: "--accent" };

// An alert has the color of its level, other events that of their kind.
function colorOf(event) {
  if (event.kind === "alert" || event.level === "warning") return LEVELS[event.level] ?? LEVELS.warning;
  return KINDS[kindOf(event)]?.[1] ?? "--quiet";
}

function kindOf({ kind }) {
  return kind.startsWith("run_") ? "run" : kind;
}

// Describe an event as [bold text, other text].
function describeEvent(event) {
  const took = typeof event.duration_s === "number" ? formatDuration(event.duration_s) : "";
  const of = event.rank ? ` · rank ${event.rank}` : "";
  switch (event.kind) {
    case "alert":
      return [event.message ?? "", (event.path ? `${event.path}` : "") + of];
    case "tier":
      return [event.what ?? event.tier ?? "", (event.reason ?? "") + of];
    case "note":
      return [event.about ?? "note", (event.message ?? "") + of];
    case "save":
      return [event.path ?? "saved", [event.reason, took].filter(Boolean).join(" · ") + of];
    case "gc":
      return [`${took} pause`, `generation ${event.generation ?? "?"}${of}`];
    case "sync":
      return [`${took} sync`, (event.ranks ? `ranks ${event.ranks}` : "") + of];
    case "run_start":
      return ["started", (event.host ?? "") + of];
    case "run_end":
      return [event.status ?? "ended", [event.message, took].filter(Boolean).join(" · ") + of];
    default:
      return [event.kind, of];
  }
}

class EventsPanel {
  constructor(run) {
    Object.assign(this, { run, hidden: new Set(), count: -1 });
    new ResizeObserver(() => this.drawLane()).observe(byId("lane"));
  }

  show() {
    const { events } = this.run;
    const hasEvents = events.some(({ kind }) => !kind.startsWith("run_"));
    byId("events").hidden = !hasEvents && events.length < 2;
    const newest = events.length ? events[events.length - 1].id : 0;
    if (newest !== this.count) {
      this.count = newest;
      this.showChips();
      this.showList();
    }
    this.drawLane();
  }

  present() {
    return Object.keys(KINDS).filter((kind) => this.run.events.some((event) => kindOf(event) === kind));
  }

  showChips() {
    const chips = this.present().map((kind) => {
      const [label, color] = KINDS[kind];
      const chip = element("button", "chip");
      const count = this.run.events.filter((event) => kindOf(event) === kind).length;
      chip.type = "button";
      chip.append(swatch(color, "point"), document.createTextNode(`${label} ${count}`));
      chip.setAttribute("aria-pressed", String(!this.hidden.has(kind)));
      chip.addEventListener("click", () => {
        if (!this.hidden.delete(kind)) this.hidden.add(kind);
        this.showChips();
        this.showList();
        byId("kinds").children[this.present().indexOf(kind)].focus();
      });
      return chip;
    });
    byId("kinds").replaceChildren(...chips);
  }

  showList() {
    const visible = this.run.events.filter((event) => !this.hidden.has(kindOf(event))).sort((a, b) => a.time_s - b.time_s).slice(-MAX_LISTED).reverse();
    const dated = this.isDated();
    byId("events-list").classList.toggle("dated", dated);
    byId("events-list").replaceChildren(
      ...visible.map((event) => {
        const item = element("li", "event");
        const [bold, rest] = describeEvent(event);
        const what = element("span", "what");
        if (event.kind === "alert") {
          const level = element("i", "level", event.level ?? "warning");
          level.style.setProperty("--color", `var(${colorOf(event)})`);
          what.append(level, document.createTextNode(" "));
        }
        what.append(element("b", "", bold), document.createTextNode(" "), element("span", "", rest));
        item.append(element("time", "", formatMoment(event.time_s, dated)), swatch(colorOf(event), "point"), what);
        return item;
      }),
    );
  }

  // Whether the events span several days, so that times need a date.
  isDated() {
    const times = this.run.events.map(({ time_s }) => time_s);
    return spansDays(Math.min(...times), Math.max(this.run.now(), ...times));
  }

  drawLane() {
    const kinds = this.present();
    const host = byId("lane");
    const start = this.run.status.started_s ?? this.run.events[0]?.time_s;
    if (!kinds.length || start === undefined) return;
    const end = Math.max(this.run.now(), start + 1, ...this.run.events.map(({ time_s }) => time_s));
    const begin = Math.min(start, ...this.run.events.map(({ time_s }) => time_s));
    const dated = spansDays(begin, end);
    const [width, left, high] = [Math.max(host.clientWidth, 200), 72, 18];
    const x = (time) => left + ((time - begin) / (end - begin)) * (width - left - 6);
    const svg = this.node("svg", { viewBox: `0 0 ${width} ${kinds.length * high + 14}`, role: "img", "aria-label": "Events over time" });
    kinds.forEach((kind, at) => {
      const y = at * high + high / 2;
      const label = this.node("text", { x: 0, y: y + 4 });
      label.textContent = KINDS[kind][0];
      svg.append(label, this.node("line", { class: "guide", x1: left, x2: width - 4, y1: y, y2: y }));
      for (const event of this.run.events.filter((each) => kindOf(each) === kind)) {
        const mark = this.node("line", { class: "mark", x1: x(event.time_s), x2: x(event.time_s), y1: y - 5, y2: y + 5 });
        mark.style.stroke = `var(${colorOf(event)})`;
        const title = this.node("title", {});
        title.textContent = `${formatMoment(event.time_s, dated)} ${describeEvent(event).join(" ")}`;
        mark.append(title);
        svg.append(mark);
      }
    });
    const foot = kinds.length * high + 10;
    const from = this.node("text", { x: left, y: foot });
    from.textContent = formatMoment(begin, dated);
    const to = this.node("text", { x: width - 4, y: foot, "text-anchor": "end" });
    to.textContent = formatMoment(end, dated);
    svg.append(from, to);
    host.replaceChildren(svg);
  }

  node(tag, attributes) {
    const created = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) created.setAttribute(name, value);
    return created;
  }
}
