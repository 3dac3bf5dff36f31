// PoolSummary: the numbers at the top, from the latest statistics and the history.
"use strict";

const HIT_SECONDS = 60;
const SOON = 30; // seconds to a full pool that are worth a colour

class PoolSummary {
  show(stats, history, layout) {
    const { pages } = stats;
    for (const state of STATE_NAMES) {
      setText(byId(`${state}-count`), Quantity.count(pages[state]));
      const share = Quantity.share(pages[state] / pages.total);
      setText(byId(`${state}-bytes`), `${share} · ${Quantity.bytes(pages[state] * layout.page_bytes)}`);
    }
    const bar = byId("pool-bar");
    bar.children[0].style.width = `${(100 * pages.held) / pages.total}%`;
    bar.children[1].style.width = `${(100 * pages.cached) / pages.total}%`;
    bar.setAttribute("aria-label", STATE_NAMES.map((state) => `${state} ${pages[state]}`).join(", "));

    setText(byId("waste"), pages.held > 0 ? Quantity.share(stats.wasted_ratio) : NONE);
    setText(byId("shared"), Quantity.count(pages.shared));
    const seconds = stats.exhaustion_seconds;
    setText(byId("exhaustion"), seconds === null ? "never" : Quantity.seconds(seconds));
    setText(byId("exhaustion-under"), seconds === null ? "as things go" : "forecast");
    byId("exhaustion").classList.toggle("is-alarming", seconds !== null && seconds < SOON);
    this.#rate("output-rate", history.rate("generation_tokens", 3));
    this.#rate("prompt-rate", history.rate("prompt_tokens", 3));
    const hits = history.hitRatio(HIT_SECONDS);
    setText(byId("hits"), hits ? Quantity.share(hits.ratio) : NONE);
    setText(byId("hits-under"), hits && !hits.isRecent ? "since the start" : "last minute");
  }

  #rate(id, perSecond) {
    setText(byId(id), perSecond === null ? NONE : Quantity.rate(perSecond));
  }
}
