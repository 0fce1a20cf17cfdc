"use strict";
// Fingers on a chart: one reads the values, two zoom and pan; up and down still scrolls the page.

function followFingers(chart) {
  const { host } = chart;
  const across = (touch) => touch.clientX - chart.plot.over.getBoundingClientRect().left;
  let held = null; // the places on the axis that lie under the two fingers

  host.addEventListener("touchstart", ({ touches }) => {
    held = chart.plot && touches.length === 2 ? [...touches].map((touch) => chart.plot.posToVal(across(touch), "x")) : null;
  }, { passive: true });

  host.addEventListener("touchmove", (event) => {
    if (!chart.plot) return;
    const places = [...event.touches].map(across);
    if (held && places.length === 2 && Math.abs(places[1] - places[0]) > 8) {
      event.preventDefault();
      const each = (held[1] - held[0]) / (places[1] - places[0]);
      const low = held[0] - places[0] * each;
      if (each > 0) chart.zoomTo(low, low + each * chart.plot.over.clientWidth);
    } else if (places.length === 1) {
      chart.plot.setCursor({ left: places[0], top: event.touches[0].clientY - chart.plot.over.getBoundingClientRect().top });
    }
  }, { passive: false });

  host.addEventListener("touchend", ({ touches }) => {
    if (touches.length < 2) held = null;
  });
}
