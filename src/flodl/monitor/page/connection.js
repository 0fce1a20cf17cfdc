"use strict";
// The source of the data: this file, or the server, with one request followed by a stream of messages.

// A browser opens at most six connections to a server. So the server allows a few streams per browser, and the other
// pages poll: there is always a connection left for requests.
const POLL_INTERVAL_MS = 1000;
const MESSAGES = ["epoch", "tick", "told", "graph", "config", "ranks", "complete", "reset"];

async function decompress(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

async function fetchJson(address) {
  const response = await fetch(address);
  if (!response.ok) throw Object.assign(new Error(`${address}: ${response.status}`), { status: response.status });
  return response.json();
}

// The server rejects the request if it now serves a different run.
function fetchForRun(run, address, query = "") {
  return fetchJson(`${address}?rank=${run.rank}&server=${run.server}&run=${run.run}${query}`);
}

// An id shared by all pages of one browser, by which the server counts streams.
function browserId() {
  try {
    const known = localStorage.getItem("flodl-browser") ?? String(Math.random()).slice(2);
    localStorage.setItem("flodl-browser", known);
    return known;
  } catch {
    return ""; // no storage available
  }
}

// Parse the server-sent events in a complete response.
function* readMessages(text) {
  for (const block of text.split("\n\n")) {
    const fields = Object.fromEntries(block.split("\n").map((line) => [line.slice(0, line.indexOf(": ")), line.slice(line.indexOf(": ") + 2)]));
    if (fields.event) yield { name: fields.event, id: Number(fields.id), data: JSON.parse(fields.data) };
  }
}

// Follow a run from the last known event on.
class Follower {
  constructor(run, { onChange, onReset }) {
    Object.assign(this, { run, onChange, onReset, closed: false, source: null });
    this.listen();
  }

  get address() {
    return `events?after=${this.run.last_id}&rank=${this.run.rank}&server=${this.run.server}`;
  }

  // The browser reconnects by itself, unless the server has rejected the stream because of too many pages.
  listen() {
    this.source = new EventSource(`${this.address}&browser=${browserId()}`);
    for (const name of MESSAGES) {
      this.source.addEventListener(name, (event) => this.handle(name, Number(event.lastEventId), JSON.parse(event.data)));
    }
    this.source.addEventListener("open", () => this.showStatus(""));
    this.source.addEventListener("error", () => (this.source.readyState === EventSource.CLOSED ? this.poll() : this.onLost()));
  }

  async poll() {
    if (this.closed) return;
    try {
      const response = await fetch(`${this.address}&once=1`);
      if (!response.ok) throw new Error(String(response.status));
      for (const { name, id, data } of readMessages(await response.text())) this.handle(name, id, data);
      this.showStatus("");
    } catch {
      this.onLost();
    }
    setTimeout(() => this.poll(), POLL_INTERVAL_MS);
  }

  handle(name, id, data) {
    const { run } = this;
    if (this.closed) return;
    // A new start of the run changes its state, settings and elapsed time.
    if (name === "reset" || (name === "told" && data.kind === "run_start" && data.rank === run.rank)) {
      this.close();
      this.onReset();
      return;
    }
    if (id < run.last_id) return; // already received
    run.onMessage();
    if (name === "epoch") run.addEpoch(data);
    else if (name === "tick") run.addTick(data);
    else if (name === "told") run.addEvent(data);
    else if (name === "graph") run.graph = data;
    else if (name === "config") run.addSettings(data);
    else if (name === "ranks") extendRankWork(run.rank_work, data);
    else if (run.running) run.status.state = "finished";
    run.last_id = id;
    this.onChange(name);
  }

  // After the end of a run, the server sends late events and then closes.
  onLost() {
    if (this.run.running) this.showStatus("connection lost, reconnecting");
    else this.close();
  }

  showStatus(text) {
    byId("connection").hidden = !text;
    byId("connection").textContent = text;
  }

  close() {
    this.closed = true;
    this.source?.close();
    this.showStatus("");
  }
}
