"use strict";
// Touch input on a chart: one finger reads values, two zoom and pan; vertical moves still scroll the page.

function enableTouch(chart) {
  const { host } = chart;
  const offset = (touch) => touch.clientX - chart.plot.over.getBoundingClientRect().left;
  let pinned = null; // the positions on the axis under the two fingers

  host.addEventListener("touchstart", ({ touches }) => {
    pinned = chart.plot && touches.length === 2 ? [...touches].map((touch) => chart.plot.posToVal(offset(touch), "x")) : null;
  }, { passive: true });

  host.addEventListener("touchmove", (event) => {
    if (!chart.plot) return;
    const offsets = [...event.touches].map(offset);
    if (pinned && offsets.length === 2 && Math.abs(offsets[1] - offsets[0]) > 8) {
      event.preventDefault();
      const scale = (pinned[1] - pinned[0]) / (offsets[1] - offsets[0]);
      const low = pinned[0] - offsets[0] * scale;
      if (scale > 0) chart.zoomTo(low, low + scale * chart.plot.over.clientWidth);
    } else if (offsets.length === 1) {
      chart.plot.setCursor({ left: offsets[0], top: event.touches[0].clientY - chart.plot.over.getBoundingClientRect().top });
    }
  }, { passive: false });

  host.addEventListener("touchend", ({ touches }) => {
    if (touches.length < 2) pinned = null;
  });
}
