// The four strip charts: what each shows, and what its caption says.
"use strict";

const amount = (value) => (value === null ? NONE : Quantity.short(value));

function makeCharts(palette) {
  const chart = (name, options) => new StripChart(byId(`chart-${name}`), byId(`chart-${name}-text`), palette, options);
  return [
    chart("pages", {
      lanes: [
        {
          top: (points) => points.at(-1)?.stats.pages.total,
          series: [
            { kind: "area", read: (point) => point.stats.pages.held, colour: "held" },
            { kind: "area", read: (point) => point.stats.pages.cached, colour: "cached" },
          ],
        },
      ],
      describe: ({ stats: { pages } }) => [
        ["key-held", "held", amount(pages.held)],
        ["key-cached", "cached", amount(pages.cached)],
      ],
    }),
    chart("tokens", {
      lanes: [
        { series: [{ kind: "line", read: (point) => point.outputRate, colour: "output" }] },
        { series: [{ kind: "line", read: (point) => point.promptRate, colour: "prompt" }] },
      ],
      describe: (point) => [
        ["key-output", "output", amount(point.outputRate)],
        ["key-prompt", "prompts", amount(point.promptRate)],
      ],
    }),
    chart("queue", {
      lanes: [
        {
          series: [
            { kind: "line", read: (point) => point.stats.running, colour: "output" },
            { kind: "line", read: (point) => point.stats.waiting, colour: "alarm" },
          ],
        },
      ],
      describe: ({ stats }) => [
        ["key-output", "running", amount(stats.running)],
        ["key-alarm", "waiting", amount(stats.waiting)],
      ],
    }),
    chart("preemptions", {
      lanes: [{ series: [{ kind: "bar", read: (point) => point.preempted, colour: "alarm" }] }],
      describe: (point, points) => [
        ["", "in 3 min", amount(points.reduce((sum, one) => sum + one.preempted, 0))],
        ["", "since the start", amount(point.stats.preemptions)],
      ],
    }),
  ];
}
