"use strict";
// Where the data come from: inside this file, or from the run by one request and then a stream of events.

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer.json();
}

// Follow a run from the number of the last event that is known; the browser reconnects by itself.
class Follower {
  constructor(run, { onChange, onReset }) {
    this.run = run;
    this.source = new EventSource(`events?after=${run.last_id}&rank=${run.rank}`);
    const on = (name, apply) =>
      this.source.addEventListener(name, (event) => {
        const id = Number(event.lastEventId);
        if (id < run.last_id) return; // told before
        apply(JSON.parse(event.data));
        run.last_id = id;
        onChange(name);
      });
    on("epoch", (record) => run.addEpoch(record));
    on("tick", (tick) => run.addTick(tick));
    on("told", (record) => run.addTold(record));
    on("graph", (graph) => (run.graph = graph));
    on("complete", () => {
      if (run.running) run.status.state = "finished";
      this.close();
    });
    this.source.addEventListener("reset", () => {
      this.close();
      onReset();
    });
    this.source.addEventListener("open", () => this.say(""));
    this.source.addEventListener("error", () => this.say("connection lost, trying again"));
  }

  say(text) {
    byId("connection").hidden = !text;
    byId("connection").textContent = text;
  }

  close() {
    this.source.close();
    this.say("");
  }
}
