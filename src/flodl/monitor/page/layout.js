"use strict";
// The layout of the panels: each visible panel goes to the shorter of two columns, or into one column on a phone.
// Heights are estimates instead of measurements, so that panels do not jump while a run grows.

const HEIGHTS = { resources: 3, epochs: 3, events: 3, tiers: 2, config: 3, graph: 5 };
const NARROW = matchMedia("(max-width: 900px)");

let arranged = "";

function arrange() {
  const shown = Object.keys(HEIGHTS).filter((id) => !byId(id).hidden);
  const hasPicture = !byId("picture").hidden;
  const wanted = [NARROW.matches, hasPicture, ...shown].join();
  if (wanted === arranged) return;
  arranged = wanted;
  const columns = document.querySelectorAll(".column");
  const heights = [0, NARROW.matches ? Infinity : 0];
  for (const id of shown) {
    const at = heights[0] <= heights[1] ? 0 : 1;
    heights[at] += id === "graph" && !hasPicture ? 1 : HEIGHTS[id];
    columns[at].append(byId(id));
  }
}

NARROW.addEventListener("change", arrange);
