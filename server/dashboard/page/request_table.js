// RequestTable: the sequences that the feed told of last, by handle and by id.
"use strict";

class RequestTable {
  sequences = [];
  total = 0;
  #byHandle = new Map();
  #byId = new Map();
  #names = new Map();

  take({ total, sequences }) {
    this.total = total;
    this.sequences = sequences.toSorted((a, b) => byPlace(a, b) || b.age_seconds - a.age_seconds);
    this.#byHandle = new Map(sequences.filter((one) => one.handle > 0).map((one) => [one.handle, one]));
    this.#byId = new Map(sequences.map((one) => [one.id, one]));
    this.#names = distinctNames(sequences);
  }

  /** Whether every sequence is listed; else some that wait are not. */
  get isWhole() {
    return this.sequences.length >= this.total;
  }

  ofHandle(handle) {
    return this.#byHandle.get(handle);
  }

  ofId(id) {
    return this.#byId.get(id);
  }

  count(status) {
    return this.sequences.filter((one) => one.status === status).length;
  }

  /** What a sequence is shown as. */
  name(sequence) {
    return this.#names.get(sequence.id) ?? (sequence.request_id || sequence.id);
  }

  /** A text of the engine's with ids of sequences in it, in which they have the names they are shown with. */
  withNames(text) {
    return text.replace(/[\w-]+/g, (word) => this.#names.get(word) ?? word); // once, whatever clients call themselves
  }
}

/** What runs comes first, then what waits in the order of the queue, then samples that wait for their first one. */
function byPlace(a, b) {
  const place = ({ status, position }) => (status === "running" ? 0 : (position ?? Number.MAX_SAFE_INTEGER));
  return place(a) - place(b);
}

/** By id the name that a sequence's client knows, with a number where several samples have the same. */
function distinctNames(sequences) {
  const samples = Map.groupBy(sequences, (one) => one.request_id || one.id);
  const names = new Map();
  for (const [name, ones] of samples) {
    const ids = ones.map((one) => one.id).sort();
    for (const [index, id] of ids.entries()) names.set(id, ids.length > 1 ? `${name} #${index + 1}` : name);
  }
  return names;
}
