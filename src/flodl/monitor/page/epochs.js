"use strict";
// A row for each epoch, newest first; a column for every metric that any epoch has.

const MOST_ROWS = 100;

class EpochsPanel {
  constructor(run) {
    Object.assign(this, { run, all: false });
    byId("epochs-more").addEventListener("click", () => {
      this.all = true;
      this.show();
    });
  }

  show() {
    const { history } = this.run;
    byId("epochs").hidden = !history.length;
    if (!history.length) return;
    const names = [...new Set(history.flatMap(({ metrics }) => Object.keys(metrics)))];
    const heads = [["Epoch", "number"], ...names.map((name) => [name, "number"]), ["Time", "number"]];
    const newest = [...history].reverse();
    const shown = this.all ? newest : newest.slice(0, MOST_ROWS);
    const rows = shown.map(({ epoch, metrics, duration }) =>
      row([[String(epoch), "number quiet"], ...names.map((name) => [shownValue(metrics[name]), "number"]), [shownDuration(duration), "number quiet"]]),
    );
    fillTable(byId("epochs-table"), heads, rows);
    byId("epochs-more").hidden = shown.length === newest.length;
    byId("epochs-more").textContent = `Show all ${newest.length}`;
    const starts = this.run.status.num_starts;
    byId("epochs-aside").textContent = starts > 1 ? `continued ${plural(starts - 1, "time")}` : "";
  }
}
