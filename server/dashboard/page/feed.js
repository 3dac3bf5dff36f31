// Feed: the stream of events, opened again whenever it ends. Knows how events are framed, not what they mean.
//
//     connecting ─► live ─► lost ─► connecting ...       waits longer each time, up to 15 s
//          ├─► key         until `resume`: a key is needed
//          └─► forbidden   until `resume`
"use strict";

const FIRST_WAIT = 0.5; // seconds
const LONGEST_WAIT = 15;
const LONGEST_SILENCE = 12;

class Feed {
  /** `onEvent(name, data)` for each event; `onState(state, detail)` when the connection changes. */
  constructor(source, onEvent, onState) {
    this.source = source;
    this.onEvent = onEvent;
    this.onState = onState;
    this.state = "";
    this.#run();
  }

  #wake = null;
  #wait = FIRST_WAIT;

  /** Go on at once: a key was given, or somebody does not want to wait. */
  resume() {
    this.#wait = FIRST_WAIT;
    this.#wake?.();
  }

  #set(state, detail = {}) {
    this.state = state;
    this.onState(state, detail);
  }

  async #run() {
    for (;;) {
      const outcome = await this.#connect();
      if (outcome.state === "lost") {
        const seconds = this.#wait;
        this.#wait = Math.min(LONGEST_WAIT, 2 * seconds);
        this.#set("lost", { ...outcome, seconds });
        await this.#pause(1000 * seconds * (0.85 + 0.3 * Math.random()));
      } else {
        this.#set(outcome.state, outcome);
        await this.#pause(null);
      }
    }
  }

  /** Wait so long, or until `resume`. */
  #pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? 0 : setTimeout(resolve, milliseconds);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** One connection, from its start to its end; how it ended. */
  async #connect() {
    this.#set("connecting");
    const cut = new AbortController();
    let silence = setTimeout(() => cut.abort(), 1000 * LONGEST_SILENCE);
    try {
      const response = await this.source.fetch("feed", cut.signal);
      if (response.status === 401) return { state: "key", wasGiven: this.source.key !== "" };
      if (response.status === 403) return { state: "forbidden", text: await errorText(response) };
      if (!response.ok) return { state: "lost", text: (await errorText(response)) || `It answers ${response.status}.` };
      this.#wait = FIRST_WAIT;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return { state: "lost", text: "The stream has ended." };
        clearTimeout(silence);
        silence = setTimeout(() => cut.abort(), 1000 * LONGEST_SILENCE);
        text = this.#take(text + value);
        if (this.state !== "live") this.#set("live");
      }
    } catch {
      return { state: "lost", text: cut.signal.aborted ? "It has been silent for too long." : "It does not answer." };
    } finally {
      clearTimeout(silence);
      cut.abort(); // a stream whose events could not be read is not left open
    }
  }

  /** Tell the whole events in a text; what is left of it is the start of another. */
  #take(text) {
    let from = 0;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n", from)) {
      let name = "message";
      let data = "";
      for (const line of text.slice(from, end).split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data += line.slice(6);
      }
      if (data) this.onEvent(name, JSON.parse(data));
      from = end + 2;
    }
    return text.slice(from);
  }
}
