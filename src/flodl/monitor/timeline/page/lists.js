"use strict";
// The lists next to the lanes: kinds of marks to show or hide, gaps and long marks to jump to.

const MAX_ROWS = 40;

function row(variable, label, value, onClick) {
  const button = element("button", "row");
  button.type = "button";
  button.append(swatch(variable, "point"), element("span", "label", label), element("span", "number", value));
  button.addEventListener("click", onClick);
  const item = element("li");
  item.append(button);
  return item;
}

function fillList(id, title, rows, empty) {
  const host = document.getElementById(id);
  const list = element("ul");
  list.append(...rows);
  host.replaceChildren(element("h2", "", title), rows.length ? list : element("p", "", empty));
}

function fillKinds(timeline) {
  const totals = new Map();
  for (const mark of timeline.data.marks) {
    const known = totals.get(mark.kind) ?? { count: 0, seconds: 0 };
    totals.set(mark.kind, { count: known.count + 1, seconds: known.seconds + mark.length });
  }
  const rows = [...totals].map(([kind, { count, seconds }]) => {
    const value = seconds ? `${count} × · ${formatSeconds(seconds)}` : `${count} ×`;
    const item = row(markColor(kind), kind, value, ({ currentTarget }) => {
      currentTarget.setAttribute("aria-pressed", String(timeline.toggle(kind)));
    });
    item.firstChild.setAttribute("aria-pressed", "true");
    return item;
  });
  fillList("kinds", "Marks", rows, "No marks.");
}

function fillGaps(timeline) {
  const longest = [...timeline.data.gaps].sort((a, b) => b.end - b.start - (a.end - a.start));
  const rows = longest.slice(0, MAX_ROWS).map((gap) =>
    row("--series-7", `GPU ${gap.device} at ${formatSeconds(gap.start)}: ${gap.cause}`, formatSeconds(gap.end - gap.start), () =>
      timeline.goTo(gap.start, gap.end),
    ),
  );
  const hasGpu = timeline.data.lanes.some((lane) => lane.device !== undefined);
  fillList("gaps", "Idle gaps, longest first", rows, hasGpu ? "The GPU was never idle." : "No GPU was found.");
}

// Marks without a duration; epochs are shown as lines in the lanes.
function fillNotes(timeline) {
  const notes = timeline.data.marks.filter(({ kind, length, label }) => label && !length && kind !== "epoch");
  const rows = notes.slice(-MAX_ROWS).map((mark) =>
    row(markColor(mark.kind), `${mark.kind}: ${mark.label}`, formatSeconds(mark.start), () => timeline.goTo(mark.start, mark.start)),
  );
  fillList("notes", "Notes", rows, "No notes.");
}

function fillLongest(timeline) {
  const longest = timeline.data.marks.filter(({ length }) => length > 0).sort((a, b) => b.length - a.length);
  const rows = longest.slice(0, MAX_ROWS).map((mark) => {
    const label = mark.label ? `${mark.kind}: ${mark.label}` : mark.kind;
    return row(markColor(mark.kind), `${label} at ${formatSeconds(mark.start)}`, formatSeconds(mark.length), () =>
      timeline.goTo(mark.start, mark.start + mark.length),
    );
  });
  fillList("longest", "Longest marks", rows, "No marks with a duration.");
}
