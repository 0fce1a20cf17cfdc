"use strict";
// The lists beside the lanes: kinds of marks to show or hide, gaps and long marks to go to.

const MOST_ROWS = 40;

function row(variable, label, value, act) {
  const button = element("button", "row");
  button.type = "button";
  button.append(swatch(variable, "point"), element("span", "label", label), element("span", "number", value));
  button.addEventListener("click", act);
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
    const value = seconds ? `${count} × · ${shownTime(seconds)}` : `${count} ×`;
    const item = row(markColour(kind), kind, value, ({ currentTarget }) => {
      currentTarget.setAttribute("aria-pressed", String(timeline.toggle(kind)));
    });
    item.firstChild.setAttribute("aria-pressed", "true");
    return item;
  });
  fillList("kinds", "Marks", rows, "Nothing was marked.");
}

function fillGaps(timeline) {
  const longest = [...timeline.data.gaps].sort((a, b) => b.end - b.start - (a.end - a.start));
  const rows = longest.slice(0, MOST_ROWS).map((gap) =>
    row("--series-7", `GPU ${gap.device} at ${shownTime(gap.start)}: ${gap.cause}`, shownTime(gap.end - gap.start), () =>
      timeline.goTo(gap.start, gap.end),
    ),
  );
  const hasGpu = timeline.data.lanes.some((lane) => lane.device !== undefined);
  fillList("gaps", "Idle gaps, longest first", rows, hasGpu ? "The GPU always had work." : "No GPU was seen.");
}

// What was noted at one moment; epochs have their lines in the lanes.
function fillNotes(timeline) {
  const notes = timeline.data.marks.filter(({ kind, length, label }) => label && !length && kind !== "epoch");
  const rows = notes.slice(-MOST_ROWS).map((mark) =>
    row(markColour(mark.kind), `${mark.kind}: ${mark.label}`, shownTime(mark.start), () => timeline.goTo(mark.start, mark.start)),
  );
  fillList("notes", "Notes", rows, "Nothing was noted.");
}

function fillLongest(timeline) {
  const longest = timeline.data.marks.filter(({ length }) => length > 0).sort((a, b) => b.length - a.length);
  const rows = longest.slice(0, MOST_ROWS).map((mark) => {
    const label = mark.label ? `${mark.kind}: ${mark.label}` : mark.kind;
    return row(markColour(mark.kind), `${label} at ${shownTime(mark.start)}`, shownTime(mark.length), () =>
      timeline.goTo(mark.start, mark.start + mark.length),
    );
  });
  fillList("longest", "Longest marks", rows, "Nothing took time of its own.");
}
