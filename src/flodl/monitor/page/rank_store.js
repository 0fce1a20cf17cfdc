"use strict";
// The data of several ranks: what was loaded, and the events since. Long runs are thinned, so memory is bounded.

const MAX_SLICES = 24000;
const MIN_SLICES = 200;
const MAX_RANK_POINTS = 1000;
const MAX_SYNCS = 2000;

// A slice: start, end, and the seconds of computing, reducing and waiting in between; the rest is a pause.
function mergeSlices(slices, longest) {
  const found = [];
  for (const each of slices) {
    const last = found[found.length - 1];
    if (last && each[1] - last[0] <= longest) {
      found[found.length - 1] = [last[0], each[1], last[2] + each[2], last[3] + each[3], last[4] + each[4]];
    } else found.push(each);
  }
  return found;
}

function thinSlices(slices, most) {
  if (slices.length <= most) return slices;
  let longest = (4 * (slices[slices.length - 1][1] - slices[0][0])) / most;
  let found = mergeSlices(slices, longest);
  while (found.length > most) found = mergeSlices(slices, (longest *= 2));
  return found;
}

// Merge pairs of syncs; a merged one has the number of both.
function thinSyncs(marks) {
  if (marks.length <= MAX_SYNCS) return marks;
  return marks.flatMap((mark, at) => (at % 2 ? [[mark[0], mark[1] + marks[at - 1][1]]] : at === marks.length - 1 ? [mark] : []));
}

function thinEvenly(points, most) {
  return points.length > most ? points.filter((_, at) => at % 2 || at === 0 || at === points.length - 1) : points;
}

// Add an event. One of a new start replaces everything.
function extendRankWork(work, update) {
  if (work.start_s !== update.start_s) Object.assign(work, { slices: {}, syncs: [], pace: {}, speed: {}, number: -1 });
  if (update.number <= work.number) return; // part of the state that was loaded
  const { start_s, time_s, number, policy, totals = {}, ranks } = update;
  Object.assign(work, { start_s, time_s, number, policy, totals, ranks });
  work.syncs = thinSyncs([...work.syncs, ...(update.syncs ?? [])]);
  const most = Math.max(Math.floor(MAX_SLICES / ranks.length), MIN_SLICES);
  for (const { rank, since_s, speed } of ranks) {
    work.slices[rank] = thinSlices([...(work.slices[rank] ?? []), ...(update.slices?.[rank] ?? [])], most);
    work.pace[rank] = thinEvenly([...(work.pace[rank] ?? []), ...(update.pace?.[rank] ?? [])], MAX_RANK_POINTS);
    work.speed[rank] = thinEvenly([...(work.speed[rank] ?? []), ...(speed ? [[since_s, speed]] : [])], MAX_RANK_POINTS);
  }
}

// What a rank does now, as a slice up to this moment; null if it has not joined yet or has ended.
function openSlice({ state, since_s, joined_s, ended_s }, now) {
  if (!joined_s || ended_s || now <= since_s) return null;
  const spent = now - since_s;
  const isComputing = state === "running" || state === "late";
  return [since_s, now, isComputing ? spent : 0, 0, state === "waiting" ? spent : 0];
}
