"use strict";
// The table of epochs: newest first, with a column for every metric of any epoch.

const MAX_ROWS = 100;

class EpochsPanel {
  constructor(run) {
    Object.assign(this, { run, showAll: false });
    byId("epochs-more").addEventListener("click", () => {
      this.showAll = true;
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
    const shown = this.showAll ? newest : newest.slice(0, MAX_ROWS);
    const rows = shown.map(({ epoch, metrics, duration }) =>
      row([[String(epoch), "number quiet"], ...names.map((name) => [formatValue(metrics[name]), "number"]), [formatDuration(duration), "number quiet"]]),
    );
    fillTable(byId("epochs-table"), heads, rows);
    byId("epochs-more").hidden = shown.length === newest.length;
    byId("epochs-more").textContent = `Show all ${newest.length}`;
    const starts = this.run.status.num_starts;
    byId("epochs-aside").textContent = starts > 1 ? `resumed ${plural(starts - 1, "time")}` : "";
  }
}
