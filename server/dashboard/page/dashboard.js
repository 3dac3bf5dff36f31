// Dashboard: brings the parts together. Events come from the feed, and each part shows its own share of them.
"use strict";

class Dashboard {
  source = new Source();
  requests = new RequestTable();
  history = new History();
  summary = new PoolSummary();
  table = null;
  stats = null;

  constructor() {
    this.palette = new Palette();
    this.theme = new Theme(() => this.#repaint());
    this.palette.read();
    this.card = new PageCard(this.source, this.requests, this.palette, (id) => this.pick(id));
    this.map = new PageMap(this.palette, this.card, (handle) => this.#pickHandle(handle));
    this.list = new RequestList(this.requests, this.palette, (id) => this.pick(id === this.panel.id ? null : id));
    this.panel = new RequestPanel(this.source, this.requests, {
      onShown: () => this.#showPanel(),
      onPages: (pages) => this.#light(pages),
      onPage: (page) => this.map.go(page),
      onClose: () => this.pick(null),
    });
    this.charts = makeCharts(this.palette);
    this.connection = new Connection(this.source, () => this.feed.resume());
    byId("colouring").addEventListener("change", (event) => this.#colour(event.target.value));
    byId("group").addEventListener("change", ({ target }) => {
      this.map.onlyGroup = target.value === "" ? null : Number(target.value);
    });
    addEventListener("resize", () => this.charts.forEach((chart) => chart.draw()));
    this.feed = new Feed(
      this.source,
      (name, data) => this.#take(name, data),
      (state, detail) => this.connection.show(state, detail),
    );
  }

  /** Pick a request by its id; null lets go. */
  pick(id) {
    this.panel.pick(id);
    this.list.show(id);
    this.list.reveal(id);
    this.#light(null);
  }

  /** Bring the panel into view where it lies below the map, not beside it. */
  #showPanel() {
    const panel = byId("request");
    if (panel.getBoundingClientRect().left < byId("map").getBoundingClientRect().right) panel.scrollIntoView();
  }

  #pickHandle(handle) {
    const sequence = this.requests.ofHandle(handle);
    if (sequence) this.pick(sequence.id);
  }

  /** Light up the picked request's pages: all that the panel knows, or those that name it as their holder. */
  #light(pages) {
    const handle = this.requests.ofId(this.panel.id)?.handle ?? 0;
    this.map.pick(pages ?? (handle > 0 ? new Set() : null), handle);
  }

  #colour(colouring) {
    document.body.dataset.colouring = colouring;
    this.map.colouring = colouring;
  }

  #take(name, data) {
    if (name === "layout") this.#layOut(data);
    else if (name === "engine") this.connection.showEngine(data.state);
    else if (this.table === null) return; // a layout comes before what it lays out
    else if (name === "requests") this.#takeRequests(data);
    else if (name === "stats") this.#takeStats(data);
    else if (name === "pages") {
      this.table.apply(data.first, decodeBase64(data.cells));
      this.map.refresh();
    }
  }

  #layOut(layout) {
    this.table = new PageTable(layout);
    this.map.show(this.table);
    const size = Quantity.bytes(layout.page_bytes);
    const pool = Quantity.bytes(layout.page_bytes * layout.num_pages);
    byId("facts").replaceChildren(
      element("b", "", layout.model),
      element("span", "", layout.device),
      element("span", "", `${Quantity.of(layout.num_pages, "page")} of ${layout.block_size} tokens, ${size} each: ${pool}`),
    );
    setText(byId("version"), `Octavo ${layout.version}`);
    byId("group").replaceChildren(
      new Option("All groups", ""),
      ...layout.groups.map((group, index) => new Option(group, String(index))),
    );
    const legend = (group, index) => element("li", "", element("i", `swatch swatch-group-${index % 6}`), group);
    byId("groups").replaceChildren(...layout.groups.map(legend));
    this.map.onlyGroup = null;
  }

  #takeRequests(data) {
    this.requests.take(data);
    this.list.show(this.panel.id);
  }

  #takeStats(stats) {
    this.connection.showLive();
    this.stats = stats;
    this.history.add(stats);
    this.summary.show(stats, this.history, this.table.layout);
    this.charts.forEach((chart) => chart.show(this.history.points));
    this.panel.refresh();
    this.#mapFacts();
  }

  #mapFacts() {
    const { grid, canvas } = this.map;
    const draw = `${(1000 * canvas.medianDraw).toFixed(1)} ms to draw`;
    setText(byId("map-facts"), `${Quantity.of(grid.numPages, "cell")} of ${grid.size} px, ${draw}`);
  }

  #repaint() {
    this.palette.read();
    this.map.arrange();
    this.list.show(this.panel.id);
    this.charts.forEach((chart) => chart.draw());
  }
}

const dashboard = new Dashboard();
