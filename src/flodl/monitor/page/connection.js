"use strict";
// Where the data come from: inside this file, or from the run by one request and then by messages.

// A browser keeps six connections to one server. So the server lets a few of its pages hold a stream open, and
// the others ask again and again: however many are open, there is room for a request.
const ASK_EVERY_MS = 1000;
const MESSAGES = ["epoch", "tick", "told", "graph", "complete", "reset"];

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function ask(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw Object.assign(new Error(`${address}: ${answer.status}`), { status: answer.status });
  return answer.json();
}

// Of the run that is shown, not of one that took its port: the server compares.
function askOf(run, address, query = "") {
  return ask(`${address}?rank=${run.rank}&server=${run.server}${query}`);
}

// The same for all pages of one browser: the server counts their streams by it.
function browserName() {
  try {
    const known = localStorage.getItem("flodl-browser") ?? String(Math.random()).slice(2);
    localStorage.setItem("flodl-browser", known);
    return known;
  } catch {
    return ""; // no storage: nothing to count by
  }
}

// Messages of the server as they stand in an answer that has ended.
function* readMessages(text) {
  for (const block of text.split("\n\n")) {
    const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
    if (fields.event) yield { name: fields.event, id: Number(fields.id), data: JSON.parse(fields.data) };
  }
}

// Follow a run from the number of the last event that is known.
class Follower {
  constructor(run, { onChange, onReset }) {
    Object.assign(this, { run, onChange, onReset, closed: false, source: null });
    this.listen();
  }

  get address() {
    return `events?after=${this.run.last_id}&rank=${this.run.rank}&server=${this.run.server}`;
  }

  // The browser reconnects by itself, unless the server has said that this page is one too many.
  listen() {
    this.source = new EventSource(`${this.address}&browser=${browserName()}`);
    for (const name of MESSAGES) {
      this.source.addEventListener(name, (event) => this.take(name, Number(event.lastEventId), JSON.parse(event.data)));
    }
    this.source.addEventListener("open", () => this.say(""));
    this.source.addEventListener("error", () => (this.source.readyState === EventSource.CLOSED ? this.askAgain() : this.lost()));
  }

  async askAgain() {
    if (this.closed) return;
    try {
      const answer = await fetch(`${this.address}&once=1`);
      if (!answer.ok) throw new Error(String(answer.status));
      for (const { name, id, data } of readMessages(await answer.text())) this.take(name, id, data);
      this.say("");
    } catch {
      this.lost();
    }
    setTimeout(() => this.askAgain(), ASK_EVERY_MS);
  }

  take(name, id, data) {
    const { run } = this;
    if (this.closed) return;
    if (name === "reset") {
      this.close();
      this.onReset();
      return;
    }
    if (id < run.last_id) return; // told before
    run.hear();
    if (name === "epoch") run.addEpoch(data);
    else if (name === "tick") run.addTick(data);
    else if (name === "told") run.addTold(data);
    else if (name === "graph") run.graph = data;
    else if (run.running) run.status.state = "finished";
    run.last_id = id;
    this.onChange(name);
  }

  // After the end of a run the server still tells what comes late, and then goes.
  lost() {
    if (this.run.running) this.say("connection lost, trying again");
    else this.close();
  }

  say(text) {
    byId("connection").hidden = !text;
    byId("connection").textContent = text;
  }

  close() {
    this.closed = true;
    this.source?.close();
    this.say("");
  }
}
