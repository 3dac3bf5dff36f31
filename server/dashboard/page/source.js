// Source: the server's answers, asked for with the admin key where one was given. The key stays in this tab's session.
"use strict";

const KEY_NAME = "octavo-admin-key";
const SENDABLE_KEY = /^[!-~]*$/; // what servers take for a key; the rest of Unicode fits in no header

class Source {
  get key() {
    return sessionStorage.getItem(KEY_NAME) ?? "";
  }

  set key(key) {
    if (key) sessionStorage.setItem(KEY_NAME, key);
    else sessionStorage.removeItem(KEY_NAME);
  }

  /** Ask for a path under /dashboard/, wherever the server is mounted. */
  fetch(path, signal) {
    if (!SENDABLE_KEY.test(this.key)) return Promise.resolve(new Response(null, { status: 401 })); // no server has it
    const headers = this.key ? { authorization: `Bearer ${this.key}` } : {};
    return fetch(new URL(`dashboard/${path}`, location.href), { headers, signal, cache: "no-store" });
  }

  /** An object of the server; null where it has none, or does not answer now: the feed says why. */
  async read(path) {
    try {
      const response = await this.fetch(path);
      return response.ok ? await response.json() : null;
    } catch {
      return null;
    }
  }
}

/** What an error answer says, in the server's words. */
async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "";
  }
}
