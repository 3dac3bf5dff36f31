// Connection: says in the masthead, and where it matters in a notice, whether what is shown is live; asks for the key.
"use strict";

const ENGINE_STATES = {
  restarting: "The engine is restarting. Every page will be free when it is back; the API process goes on.",
  starting: "The engine is starting.",
  failed: "The engine has failed and does not start again. The server's log says why.",
  silent: "The engine has not answered for some seconds: a step takes long, or it hangs.",
  closed: "The server is shutting down.",
};

class Connection {
  /** `onResume` asks the feed to go on at once. */
  constructor(source, onResume) {
    this.source = source;
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      source.key = byId("key").value.trim();
      byId("key").value = "";
      onResume();
    });
    byId("retry").addEventListener("click", onResume);
    setInterval(() => this.#countDown(), 1000);
  }

  #until = 0;
  #lost = "";

  show(state, detail) {
    this.#until = 0;
    if (state === "connecting") this.#mark("connecting", "connecting");
    else if (state === "live") {
      this.#mark("live", "live");
      this.#notice(null);
    } else if (state === "key") this.#askForKey(detail.wasGiven);
    else if (state === "forbidden") {
      this.#mark("refused", "not allowed");
      this.#notice("This page map is closed", detail.text || "Start the server with --admin-key to open it.", "retry");
    } else {
      this.#lost = detail.text;
      this.#until = performance.now() + 1000 * detail.seconds;
      this.#mark("lost", "reconnecting");
      this.#countDown();
    }
  }

  /** The server answers, the engine does not. */
  showEngine(state) {
    this.#mark(state === "failed" ? "lost" : "engine", `engine ${state}`);
    this.#notice(`Engine ${state}`, ENGINE_STATES[state] ?? "The engine does not answer now.");
  }

  /** The engine answers again. */
  showLive() {
    if (byId("connection").dataset.state !== "live") this.show("live", {});
  }

  #askForKey(wasGiven) {
    this.source.key = "";
    this.#mark("refused", "key needed");
    const text = wasGiven
      ? "This is not the server's admin key."
      : "This server shows its pages to whoever has its admin key. It is kept in this tab only, until you close it.";
    this.#notice("Admin key", text, "key-form");
    byId("key").focus();
  }

  #countDown() {
    if (this.#until === 0) return;
    const seconds = Math.max(0, Math.ceil((this.#until - performance.now()) / 1000));
    const when = seconds > 0 ? `Trying again in ${seconds} s.` : "Trying again.";
    this.#notice("The server is gone", `${this.#lost} ${when} What you see is how it was.`, "retry");
  }

  #mark(state, text) {
    byId("connection").dataset.state = state;
    setText(byId("connection-text"), text);
    document.body.classList.toggle("is-stale", state !== "live");
  }

  /** Show a notice with at most one thing to do, named by its id; null hides it. */
  #notice(title, text = "", action = "") {
    byId("notice").hidden = title === null;
    setText(byId("notice-title"), title ?? "");
    setText(byId("notice-text"), text);
    for (const id of ["key-form", "retry"]) byId(id).hidden = id !== action;
  }
}
