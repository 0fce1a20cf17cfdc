"use strict";
// Drawing series of numbers: colors and dashes, smoothing, log scales.

const PALETTE_SIZE = 12;
const DASHES = [[], [9, 5], [2, 4]];
const DASH_NAMES = ["solid", "dashed", "dotted"];

function look(index) {
  const turn = Math.floor(index / PALETTE_SIZE) % DASHES.length;
  return { color: `--series-${index % PALETTE_SIZE}`, dash: DASHES[turn], dashName: DASH_NAMES[turn] };
}

// Separate the numbers from the strings that stand for NaN and infinity.
function parted(values) {
  return {
    numbers: values.map((value) => (typeof value === "number" ? value : null)),
    special: values.map((value) => (typeof value === "string" ? value : null)),
  };
}

// An exponential moving average with bias correction: without it, the first points are too close to 0.
function smoothed(values, factor) {
  let mean = 0;
  let weight = 0;
  return values.map((value) => {
    if (value === null || value === undefined) return value;
    mean = factor * mean + (1 - factor) * value;
    weight = factor * weight + (1 - factor);
    return mean / weight;
  });
}

function positiveOnly(values) {
  return values.map((value) => (value !== null && value !== undefined && value > 0 ? value : null));
}

// The scale of the values; without any value to draw, the axes are still shown.
function valueScale(log) {
  const range = log ? (low, high) => uPlot.rangeLog(low, high, 10, true) : (low, high) => uPlot.rangeNum(low, high, 0.1, true);
  const empty = log ? [0.1, 1] : [0, 1];
  return { distr: log ? 3 : 1, range: (plot, low, high) => (low === null || low === undefined ? empty : range(low, high)) };
}

// NaN and infinity are not on the scale: a cross at the edge shows where they occurred.
function drawCrosses(plot, { x, special, color }) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio || 1;
  const arm = 4 * ratio;
  ctx.save();
  ctx.lineWidth = 1.75 * ratio;
  ctx.strokeStyle = color;
  ctx.beginPath();
  special.forEach((word, at) => {
    if (word === null) return;
    const left = plot.valToPos(x[at], "x", true);
    if (left < bbox.left || left > bbox.left + bbox.width) return;
    const top = word === "-inf" ? bbox.top + bbox.height - 2 * arm : bbox.top + 2 * arm;
    ctx.moveTo(left - arm, top - arm);
    ctx.lineTo(left + arm, top + arm);
    ctx.moveTo(left - arm, top + arm);
    ctx.lineTo(left + arm, top - arm);
  });
  ctx.stroke();
  ctx.restore();
}
