// RequestTable: the sequences that the feed told of last, by handle and by id.
"use strict";

class RequestTable {
  sequences = [];
  total = 0;
  #byHandle = new Map();
  #byId = new Map();

  take({ total, sequences }) {
    this.total = total;
    this.sequences = sequences.toSorted((a, b) => (a.position ?? 0) - (b.position ?? 0) || b.age_seconds - a.age_seconds);
    this.#byHandle = new Map(sequences.filter((one) => one.handle > 0).map((one) => [one.handle, one]));
    this.#byId = new Map(sequences.map((one) => [one.id, one]));
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

  /** What a sequence is shown as: the name its client knows, or its own where several have that. */
  name(sequence) {
    return sequence.request_id || sequence.id;
  }
}
